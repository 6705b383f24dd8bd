import argparse
import sys


def parse(argv):
    ap = argparse.ArgumentParser()
    ap.add_argument("--table", required=True)
    ap.add_argument("--trees", type=int, default=100)
    ap.add_argument("-o", "--out", required=True)
    return ap.parse_args(argv)


if __name__ == "__main__":
    parse(sys.argv[1:])
