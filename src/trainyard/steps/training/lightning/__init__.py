"""Lightning's Trainer in place of the training loop; everything around the loop stays the same."""
