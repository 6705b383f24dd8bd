"""What a training takes before it runs: memory, time and money of a model on machines, from published formulas."""
