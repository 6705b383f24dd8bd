import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
print(parser.parse_args())
