"""Outputs that jobs left out by `--only` and `--from` lend from an earlier run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from trainyard.local.cache import EarlierResult, JobKey, job_key
from trainyard.local.digests import ContentDigests
from trainyard.local.errors import UsageError
from trainyard.local.new_records import inputs_in_words
from trainyard.local.records import JobRecord, RunRecord
from trainyard.local.resolution import LocalPath, ResolvedJob, ResolvedPipeline
from trainyard.local.snapshot import snapshot_of
from trainyard.spec.diagnostic import SpecError


@dataclass(frozen=True)
class Lent:
    """A left-out job's earlier result, that job's record in the run it comes from, and in words what was taken."""

    earlier: EarlierResult
    record: JobRecord
    why: str


def find_lent(
    resolved: ResolvedPipeline, jobs: Collection[str], runs: Collection[RunRecord], digests: ContentDigests
) -> dict[str, Lent]:
    """For each of these jobs the completed result that suits this run best, among `runs`, newest first.

    That is the newest with the key that the job would have here, else the newest with the same inputs, else the newest
    at all. Raises `UsageError` naming the jobs that have none.
    """
    pipeline = resolved.pipeline.name
    keys = _keys_here(resolved, jobs, digests) if jobs else {}
    found: dict[str, Lent] = {}
    for name in (name for name in resolved.jobs if name in jobs):
        wanted_inputs, key = inputs_in_words(resolved.jobs[name]), keys.get(name)
        candidates = list(_completed(name, pipeline, runs))
        if candidates:
            # The sort is stable: among equally good ones the newest stays first.
            run, job = min(candidates, key=lambda candidate: _misfit(candidate[1], wanted_inputs, key))
            why = f"taken from run {run.name}{_difference_in_words(job, wanted_inputs, key)}"
            found[name] = Lent(EarlierResult(run.folder.resolve(), run.name, name, str(job.identity)), job, why)
    missing = sorted(set(jobs) - set(found))
    if missing:
        raise UsageError(
            f"no earlier run of {pipeline} has completed {', '.join(missing)}, whose outputs are needed; "
            "run the whole pipeline first"
        )
    return found


def _completed(name: str, pipeline: str, runs: Collection[RunRecord]) -> Iterator[tuple[RunRecord, JobRecord]]:
    for run in runs:
        job = run.jobs.get(name)
        if job is None or run.pipeline != pipeline or job.status != "completed" or not job.identity:
            continue
        if (run.folder / "jobs" / name).is_dir():
            yield run, job


def _keys_here(resolved: ResolvedPipeline, jobs: Collection[str], digests: ContentDigests) -> dict[str, JobKey]:
    """The key that each of these jobs would have in this run, where that can be known without running anything."""
    keys: dict[str, JobKey] = {}
    identities: dict[str, str] = {}
    for name in (name for name in resolved.jobs if name in _with_upstream(resolved, jobs)):
        job = resolved.jobs[name]
        if set(job.depends_on) <= set(identities) and _has_its_data(job):
            try:
                keys[name] = job_key(job, snapshot_of(job.component), identities, digests)
            except (SpecError, OSError):
                continue  # a job that is left out may lack its code or data; its inputs as recorded must do
            if job.component.is_deterministic:
                identities[name] = keys[name].key
    return keys


def _with_upstream(resolved: ResolvedPipeline, jobs: Collection[str]) -> set[str]:
    found, open_jobs = set(jobs), list(jobs)
    while open_jobs:
        more = set(resolved.jobs[open_jobs.pop()].depends_on) - found
        found |= more
        open_jobs += more
    return found


def _has_its_data(job: ResolvedJob) -> bool:
    return all(source.path.exists() for source in job.inputs.values() if isinstance(source, LocalPath))


def _misfit(job: JobRecord, wanted_inputs: Mapping[str, object], key: JobKey | None) -> int:
    if key is not None and job.cache_key == key.key:
        return 0
    return 1 if job.inputs == wanted_inputs else 2


def _difference_in_words(job: JobRecord, wanted_inputs: Mapping[str, object], key: JobKey | None) -> str:
    """What a lent result was made with, where that is not what this run would make it with; empty when all is equal."""
    names = [name for name in {**wanted_inputs, **job.inputs} if job.inputs.get(name) != wanted_inputs.get(name)]
    values = [f"{name} {job.inputs.get(name, 'none')} instead of {wanted_inputs.get(name, 'none')}" for name in names]
    text = f", whose inputs differ: {', '.join(values)}" if values else ""
    if key is not None and job.key_parts:
        differing = [part for part in key.parts if job.key_parts.get(part) != key.parts[part]]
        others = [part for part in differing if part.removeprefix("input ") not in names]
        text += f"; changed since: {', '.join(others)}" if others else ""
    return text
