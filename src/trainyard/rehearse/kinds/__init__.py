"""Kinds of jobs that are more than one command line: sweeps, parallel and Spark jobs."""
