"""ZeRO by DeepSpeed: the engine, and what it takes to hand a model over and to find its masters again."""
