"""What a run reads (corpus.py), as rows of one length (rows.py), in an order by position (stream.py)."""
