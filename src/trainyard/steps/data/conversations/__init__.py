"""Conversations and prompts with completions, on their way into a dataset of tokens."""
