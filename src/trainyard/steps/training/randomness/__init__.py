"""Where chance comes from, and how it is put back."""
