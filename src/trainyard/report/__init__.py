"""A run as one HTML page that needs no network. Reads what a run wrote; imports nothing that ran it."""
