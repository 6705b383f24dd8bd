"""Writing a trained model in the formats that other programs load."""
