import argparse


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=str)
    parser.add_argument("--epochs", default=10, type=int)
    parser.add_argument("--learning-rate", default=0.001, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    return parser.parse_args()


if __name__ == "__main__":
    parse_args()
