"""What may end a training, or must be said of it: non-finite steps, hangs, requests to stop."""
