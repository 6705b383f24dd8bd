import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--raw", required=True)
parser.add_argument("--horizon", type=int, required=True)
parser.add_argument("--frequency", choices=("hourly", "daily", "weekly"))
parser.add_argument("--holidays")
parser.add_argument("--drop-outliers", default="True")
parser.add_argument("--table", required=True)
if __name__ == "__main__":
    print(parser.parse_args())
