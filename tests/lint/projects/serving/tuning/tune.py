"""One trial."""

import argparse

import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
mlflow.log_metric("loss", 1 / parser.parse_args().rate)
