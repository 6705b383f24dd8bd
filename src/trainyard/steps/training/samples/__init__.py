"""Which samples each rank takes at each step, and how they reach the model."""
