import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--titanic")
parser.add_argument("--wrangled")
parser.add_argument("--share", type=float)
parser.parse_args()
