"""Exact evaluation over ranks, and what the evaluation step writes: figures, a confusion matrix, a sample."""
