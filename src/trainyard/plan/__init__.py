"""What a pipeline takes before it runs: processes, machines, batches, the price of an hour. And its drawing as text."""
