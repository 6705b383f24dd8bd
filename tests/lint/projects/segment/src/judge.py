"""Score tiles, some at a time."""

import argparse

import torch

network = None


def init():
    global network
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--threshold", type=float, default=0.5)
    args, _ = parser.parse_known_args()
    network = torch.jit.load(args.weights)


def run(mini_batch):
    return [f"{file}: {network}" for file in mini_batch]
