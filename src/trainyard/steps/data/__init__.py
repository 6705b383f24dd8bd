"""Datasets: what people have is read, turned into samples, and read again for training."""
