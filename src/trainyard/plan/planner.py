"""Plan a pipeline: machines, processes and prices of each job, and memory and time of its trainings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from trainyard import printing
from trainyard.catalogue.prices import KINDS, price_of
from trainyard.catalogue.skus import Sku, UnknownSku, find_sku, retirement_of
from trainyard.errors import UsageError
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.job_plans import JobPlan, Plan, Totals, UnplannedJob, totals_of
from trainyard.plan.job_sizes import JobBatch, batch_of, kind_of_job
from trainyard.plan.training_jobs import NOTHING_STATED, Stated, TrainingJobs, data_shares_of, is_training, steps_of
from trainyard.settings.quantities import counted
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Value
from trainyard.spec.model import KEPT_IN_AZURE_ML, Environment, Pipeline, ProcessCounts, Spark, code_of
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import Known, Wrong, settled
from trainyard.spec.rules import NOT_A_CHOICE
from trainyard.spec.training_settings import refused_settings

_REFERENCE = "azureml:"


def plan(
    pipeline: Pipeline,
    computes: Computes,
    stated: Stated = NOTHING_STATED,
    values_set: Mapping[str, Value] = MappingProxyType({}),
) -> Plan:
    """Return what a pipeline takes. `computes` say which VM size the nodes of each cluster are.

    `values_set` are in place of the pipeline's own, by their keys.

    A job that names its machine (`resources.instance_type`) has that one. Nothing is guessed: if a machine is not
    known, its figures are None and a finding says why. Raises `SpecError` for counts that are unknown or wrong,
    settings that a training step would refuse, unknown VM sizes and jobs that wait for each other, `UsageError` for a
    cluster of an unknown size. What is kept in Azure ML is named, and the rest planned.
    """
    resolution = Resolution(pipeline, values_set, store=computes.store)
    waits_for = {name: use.reads_from & resolution.leaves.keys() for name, use in resolution.leaves.items()}
    if refused := [problem for job in resolution.jobs.values() for problem in refused_settings(job)]:
        raise SpecError(refused)
    order = resolution.order(resolution.leaves)
    jobs = tuple(
        _plan_job(resolution.jobs[name], resolution, computes, stated) for name in order if name in resolution.jobs
    )
    not_planned = tuple(
        UnplannedJob(
            job.name, job.job.reference, _before(job, resolution), _compute(job), f"{job.job.elsewhere}: not known here"
        )
        for job in (resolution.leaves[name] for name in order if name not in resolution.jobs)
    )
    if pipeline.reference:
        reason = f"{KEPT_IN_AZURE_ML}: not known here"
        not_planned = (UnplannedJob(pipeline.name, pipeline.reference, (), "", reason),)
    return Plan(
        pipeline=pipeline.display_name or pipeline.name or pipeline.file.stem,
        file=str(printing.short(pipeline.file)),
        jobs=jobs,
        totals=totals_of(jobs, waits_for, are_all_jobs=not not_planned),
        not_planned=not_planned,
    )


def without_jobs(file: Path) -> Plan:
    """Return the plan of a pipeline that does not exist."""
    return Plan(file.stem, str(printing.short(file)), (), Totals({}, {}, 0.0, 0.0))


def _before(job: JobUse, resolution: Resolution) -> tuple[str, ...]:
    return tuple(name for name in resolution.leaves if name in job.reads_from)


def _plan_job(job: JobUse, resolution: Resolution, computes: Computes, stated: Stated) -> JobPlan:
    processes = job.processes()
    distribution, compute = job.job.effective_distribution, _compute(job)
    sku = _sku(job, computes)
    kind = kind_of_job(job, processes.nodes, sku)
    batch = batch_of(job, processes.training_processes, resolution)
    try:
        found = estimate(TrainingJobs(resolution, stated).training_of(job, sku, processes, batch))
        reason = ""
    except UsageError as error:
        found, reason = None, str(error)
    on_demand, spot = (price_of(sku, each, kind.machines) for each in KINDS)
    memory_findings = [found.memory_finding] if found is not None and found.memory_finding else []
    return JobPlan(
        name=job.name,
        component=job.component.name,
        waits_for=_before(job, resolution),
        processes=processes,
        compute=compute,
        sku=sku,
        gpus_idle_per_node=_gpus_idle(job, sku, processes) if sku else None,
        gpu_memory_gb=processes.nodes * (sku.gpu_memory_gb_total or 0) if sku else None,
        batch=batch,
        environment=_environment(job.component.environment),
        on_demand=on_demand,
        spot=spot,
        findings=(*_findings(job, processes, compute, sku, batch), *memory_findings),
        kind=kind,
        estimate=found,
        estimate_reason=reason,
        is_training=is_training(job),
        may_train=distribution is not None and processes.training_processes > 1 and job.step_settings is None,
        steps=steps_of(job, batch, stated),
        data_shares=data_shares_of(job),
    )


def _compute(job: JobUse) -> str:
    """The cluster a job runs on, without `azureml:`; empty where the pipeline names none."""
    component = code_of(job.job.component)
    if component is not None and isinstance(component.task, Spark) and isinstance(job.instance_type, Known):
        return "serverless"  # with `resources` of its own, so it does not take the pipeline's default
    found = job.compute
    if isinstance(found, Wrong):
        settled(found)
    return str(found.value or "").removeprefix(_REFERENCE) if isinstance(found, Known) else ""


def _sku(job: JobUse, computes: Computes) -> Sku | None:
    named, cluster = job.instance_type, job.compute
    if not isinstance(named, Known):
        compute = computes.find(str(cluster.value), cluster.written.span.file) if isinstance(cluster, Known) else None
        if compute is None:
            return None
        size, span, where = compute.size, compute.span, f"the cluster '{compute.name}': "
    else:
        size, span, where = str(named.value), named.written.span, ""
    try:
        return find_sku(size)
    except UnknownSku as error:
        if span is None:
            raise UsageError(f"{where}{error}") from error
        raise SpecError(NOT_A_CHOICE.at(span, f"{where}{error}")) from error


def _environment(environment: Environment | None) -> str:
    if environment is None:
        return "none"
    parts = [
        environment.reference,
        f"image {environment.image}" if environment.image else None,
        f"build context {environment.build_path.name}/" if environment.build_path else None,
        f"conda file {environment.conda_file.name}" if environment.conda_file else None,
    ]
    return " with ".join(filter(None, parts))


def _gpus_idle(job: JobUse, sku: Sku, processes: ProcessCounts) -> int:
    distribution = job.job.effective_distribution
    if distribution is None:
        return max(0, sku.gpu_count - processes.processes_per_node)
    return sku.gpu_count - distribution.gpus_used(sku.gpu_count, processes)


def _findings(
    job: JobUse, processes: ProcessCounts, compute: str, sku: Sku | None, batch: JobBatch | None
) -> list[str]:
    findings = []
    if batch is not None and not batch.fits:
        findings.append(f"batch sizes do not multiply out: {batch}")
    if sku is None:
        where = f"of the cluster '{compute}'" if compute else "(no compute is named)"
        declared = f'.trainyard.toml: [lint.computes] {compute} = "Standard_…"'
        advice = f"; give its size as --sku, or in {declared}" if compute and compute != "serverless" else ""
        findings.append(f"unknown machine {where}: no figures for GPUs and prices{advice}")
        return findings
    if retirement := retirement_of(sku):
        findings.append(retirement)
    distribution = job.job.effective_distribution
    if distribution is not None and not distribution.has_process_per_gpu:
        if processes.parameter_servers and sku.gpu_count > 1:
            findings.append(f"with parameter servers a machine uses one of its {sku.gpu_count} GPUs")
        return findings
    advice = f"one process per GPU is process_count_per_instance: {sku.gpu_count}"
    per_node = processes.processes_per_node
    if 0 < sku.gpu_count < per_node:
        findings.append(f"{per_node} processes share the {counted(sku.gpu_count, 'GPU')} of a node; {advice}")
    if processes.world_size > 1 and per_node < sku.gpu_count:
        idle = f"{sku.gpu_count - per_node} of the {sku.gpu_count} GPUs of a node have no process"
        findings.append(f"{idle}; {advice}")
    return findings
