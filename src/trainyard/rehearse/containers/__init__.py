"""`--environments docker`: each process of a job in a container of the job's environment."""
