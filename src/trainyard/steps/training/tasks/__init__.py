"""What is trained: a model, its loss and its measures, one file per task, all behind `base.Task`."""
