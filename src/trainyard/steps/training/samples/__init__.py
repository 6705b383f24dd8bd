"""Which samples each rank takes at each step, and how they come to the model."""
