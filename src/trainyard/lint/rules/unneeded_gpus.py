"""Jobs without work for a GPU, on machines that have some."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.lint.placements import Placement
from trainyard.lint.rules.vm_sizes import machine_related
from trainyard.settings.quantities import counted
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.rule import Rule

# Environments whose packages cannot use a GPU: scikit-learn's among Azure's curated ones, and Microsoft's base images
# for CPUs (azureml-docs, concept-environments: the images for GPUs have cuda in their names).
_NO_GPU_ENVIRONMENT = re.compile(r"environments/sklearn-|\bazureml/openmpi[\d.]+-ubuntu[\d.]+(?![\w-]*cuda)|[-_/]cpu\b")
# Trainyard's own steps that compute on CPUs only.
_NO_GPU_MODULE = re.compile(r"\bpython3? -m trainyard\.steps\.(prepare_\w+|export_model)\b")


UNNEEDED_GPUS = Rule("AML620", "unneeded-gpus", "warning", suppressed_by_errors=True).explained(
    summary="A job that uses no GPU runs on machines with GPUs.",
    why="Its environment has no packages that use a GPU, or its step computes on CPUs only. An hour of "
    "eight A100s costs 70 times as much as one of eight CPUs, and no training can use them meanwhile. Give the job a "
    "`compute:` of its own; in a profile of Trainyard, set `clusters.prepare`.",
    example="""\
type: command
command: python prepare.py
code: .
environment: azureml://registries/azureml/environments/sklearn-1.5/versions/54
resources: {instance_type: ‹Standard_ND96asr_v4⇒Standard_D8s_v5›, shm_size: 64g}
=== prepare.py
print("prepared")
""",
)


@check("placement")
def _unneeded_gpus(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    sku, distribution = placement.sku, placement.distribution
    if sku is None or not sku.gpu_count or distribution is not None:
        return
    environment = placement.use.environment
    named = (environment.reference or environment.image or "") if environment is not None else ""
    if _NO_GPU_ENVIRONMENT.search(named):
        reason = f"the environment {named.rpartition('environments/')[2].partition('/')[0]} has nothing that uses a GPU"
    elif _NO_GPU_MODULE.search(str(placement.component.command.data)):
        reason = "this step uses no GPU"
    else:
        return
    price = f" at ${sku.on_demand_usd_per_hour:.2f} an hour" if sku.on_demand_usd_per_hour is not None else ""
    message = f"{reason}, but {sku.name} has {counted(sku.gpu_count, 'GPU')}{price}"
    hint = "Run it on a cluster without GPUs; Standard_D8s_v5, for example, has 8 vCPUs."
    resources = placement.resources
    chosen = resources.instance_type if resources is not None else None
    span = chosen.span if chosen is not None else placement.head
    yield UNNEEDED_GPUS.at(span, message, hint, [] if chosen is not None else machine_related(placement))
