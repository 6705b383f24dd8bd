"""Checkpoints that are complete or do not count, and that any engine at any world size can resume from.

A checkpoint is a folder `step-00000100` with one file of state per rank and `commit.json`, which is written last and
names every file with its size and digest. Without it, or with one that does not match, a folder is not a checkpoint.
Nothing is renamed: blob storage cannot rename a folder atomically.
"""
