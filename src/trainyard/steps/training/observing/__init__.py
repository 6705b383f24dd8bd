"""Everything that watches a training and takes no part in it."""
