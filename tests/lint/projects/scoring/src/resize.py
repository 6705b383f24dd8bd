import sys


def init():
    print(sys.argv)


def run(mini_batch):
    return mini_batch
