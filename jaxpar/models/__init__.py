"""Model families: Flax modules written as for one device."""
