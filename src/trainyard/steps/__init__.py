"""What runs inside a job. Steps import nothing of the author's side, and start within the job's environment."""
