import argparse


def parse():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--data", "-d", required=True)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--learning-rate", "--lr", type=float)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
    parser.add_argument("--out")
    arguments, _ = parser.parse_known_args()
    return arguments


parse()
