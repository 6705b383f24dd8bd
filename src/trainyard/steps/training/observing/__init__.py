"""Everything that watches a training without taking part in it."""
