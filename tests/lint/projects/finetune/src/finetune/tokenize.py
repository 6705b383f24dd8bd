"""Cut texts into blocks of tokens."""

import argparse


def get_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--split", choices=["train", "validation", "all"], default="all")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", required=True)
    parser.add_argument("--vocabulary", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    print(get_arguments())
