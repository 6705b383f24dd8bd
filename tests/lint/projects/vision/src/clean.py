import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--pictures", required=True)
parser.add_argument("--labels", required=True)
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--out", required=True)
parser.add_argument("--grayscale", type=str, default="false")
args = parser.parse_args()
print(args)
