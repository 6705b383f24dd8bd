import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--epochs", type=int)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--checkpoints")
print(parser.parse_args())
