"""What the bench compares, how it measures, and what it writes."""
