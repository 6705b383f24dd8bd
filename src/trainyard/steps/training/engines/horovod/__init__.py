"""Horovod: the whole model on every rank, gradients summed by Horovod's background thread."""
