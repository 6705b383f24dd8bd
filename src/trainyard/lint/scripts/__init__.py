"""Users' Python scripts, read from their source without running them."""
