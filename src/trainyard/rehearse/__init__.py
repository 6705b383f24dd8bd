"""A pipeline on this machine: graph to processes, with the environment that Azure ML gives, and a record of it all."""
