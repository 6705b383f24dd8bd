import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print(parser.parse_args())
