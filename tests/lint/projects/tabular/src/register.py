import argparse

p = argparse.ArgumentParser()
p.add_argument("--model")
p.add_argument("--name")
p.parse_args()
