"""Autotuning: what one candidate's steps take, and which candidate is the fastest."""
