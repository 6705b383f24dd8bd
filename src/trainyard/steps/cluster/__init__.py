"""Measuring a cluster: its nodes, and the bandwidth between them."""
