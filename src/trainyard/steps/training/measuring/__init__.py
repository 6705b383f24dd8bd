"""What a training says of itself: times, rates, memory, metrics.jsonl, MLflow, traces."""
