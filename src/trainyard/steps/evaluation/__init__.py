"""What the evaluation step makes of a model's results: figures per class, a confusion matrix, and its picture."""
