#!/usr/bin/env python3
"""`az ml … create -f FILE`, done as the Azure CLI's extension `ml` does it: azure-ai-ml loads FILE and creates it.

The extension is on no package index, so what documents and tests show of `az` runs through this, in the environment of
`LoopbackAzure.variables`. Other commands of `az` are refused.
"""

from __future__ import annotations

import argparse
import os
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # The client warns of its own dealings with marshmallow.
    from azure.ai.ml import MLClient, load_component, load_compute, load_environment, load_job
    from azure.identity import DefaultAzureCredential


def main() -> None:
    """Create what a file describes, and print its name."""
    client = MLClient(
        DefaultAzureCredential(),
        os.environ["AZURE_SUBSCRIPTION_ID"],
        os.environ["AZURE_DEFAULTS_GROUP"],
        os.environ["AZURE_DEFAULTS_WORKSPACE"],
        enable_telemetry=False,
        show_progress=False,
    )
    kinds = {
        "job": (load_job, client.jobs.create_or_update),
        "component": (load_component, client.components.create_or_update),
        "environment": (load_environment, client.environments.create_or_update),
        "compute": (load_compute, lambda compute: client.compute.begin_create_or_update(compute).result()),
    }
    parser = argparse.ArgumentParser(prog="az")
    parser.add_argument("service", choices=["ml"])
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("verb", choices=["create"])
    parser.add_argument("-f", "--file", required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    load, create = kinds[arguments.kind]
    overrides = [dict([each.split("=", 1)]) for each in arguments.set]
    print(create(load(arguments.file, params_override=overrides)).name)


if __name__ == "__main__":
    main()
