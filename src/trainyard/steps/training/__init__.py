"""What the training steps share: one loop over one sample order, whatever the engine."""
