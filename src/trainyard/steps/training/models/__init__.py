"""Models from transformers, sized to a dataset: one file per kind of data."""
