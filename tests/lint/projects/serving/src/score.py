"""Scores digits."""

import json

model = None


def init():
    global model
    model = {"weights": [1.0]}


def run(raw_data):
    images = json.loads(raw_data)["images"]
    return {"digits": [len(image) % 10 for image in images]}
