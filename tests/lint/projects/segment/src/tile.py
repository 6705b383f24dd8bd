"""Cut images into tiles."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from segment import tiles


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--classes", required=True)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--overlap", type=float, default=0.1)
    parser.add_argument("--tiles", required=True)
    parser.add_argument("--index", required=True)
    args = parser.parse_args()
    with open(args.classes) as file:
        classes = json.load(file)
    rows = []
    for name in os.listdir(args.images):
        image = np.asarray(Image.open(os.path.join(args.images, name)))
        rows += tiles.cut(image, args.size, args.overlap, Path(args.tiles) / name, classes)
    pd.DataFrame(rows).to_csv(args.index)


if __name__ == "__main__":
    main()
