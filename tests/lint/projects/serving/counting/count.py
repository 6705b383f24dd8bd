"""Counts digits."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--table", required=True)
parser.add_argument("--counts", required=True)
options = parser.parse_args()
print(options.table, options.counts)
