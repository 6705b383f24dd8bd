"""Preparation on Spark: signatures of documents, duplicates among them, and shards written by tasks."""
