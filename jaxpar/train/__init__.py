"""Optimizer, state, training step, evaluation."""
