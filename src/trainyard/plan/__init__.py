"""What a pipeline will take: processes, machines, batches, the price of an hour; and its drawing as text."""
