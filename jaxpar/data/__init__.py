"""Text as bytes: documents (documents.py), what is held out (split.py), rows for a step (batches.py). NumPy alone."""
