"""What the steps that write evaluation.json and the report that reads it agree on."""

EVALUATION_FORMAT = "trainyard.evaluation/1"

EVALUATION_COUNTS = ("samples", "tokens", "pairs")
"""The numbers of an evaluation that say how much was evaluated, not how well."""
