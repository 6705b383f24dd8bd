"""A rendered pipeline changed and submitted from Python, and one of our components in a pipeline of your own.

python docs/python_sdk.py SUBSCRIPTION RESOURCE_GROUP WORKSPACE
"""

# No `from __future__ import annotations`: the SDK reads the annotations of a pipeline's inputs as they are.
import sys

from azure.ai.ml import MLClient
from azure.ai.ml.dsl import pipeline
from azure.identity import DefaultAzureCredential

from trainyard.azure import as_component, as_job

prepare_images = as_component("components/prepare_images.yaml")
train_ddp = as_component("components/train_ddp.yaml")


@pipeline(default_compute="gpu-t4")
def without_evaluation(epochs: int = 2):
    """Prepare the digits and train on them."""
    prepared = prepare_images(format="digits")
    trained = train_ddp(data=prepared.outputs.prepared, epochs=epochs)
    return {"model": trained.outputs.model}


def main(subscription: str, resource_group: str, workspace: str) -> None:
    """Submit the rendered pipeline with three epochs, then the one above."""
    client = MLClient(DefaultAzureCredential(), subscription, resource_group, workspace)

    job = as_job("pipelines/ddp.yaml")
    job.inputs.overrides = "{epochs: 3}"
    print(client.jobs.create_or_update(job).studio_url)

    print(client.jobs.create_or_update(without_evaluation(epochs=4)).studio_url)


if __name__ == "__main__":
    main(*sys.argv[1:])
