"""The order of samples: a permutation that is computed, not stored."""
