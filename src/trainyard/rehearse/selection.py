"""`--only J` and `--from J`: which jobs run, and the earlier outputs of the others that fit this run best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.local_data import LocalPath
from trainyard.rehearse.local_jobs import LocalPipeline
from trainyard.rehearse.reuse import EarlierResult, JobKey, job_key
from trainyard.rehearse.run_store import recorded_inputs
from trainyard.settings.run_record import JobRecord, RunRecord
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import SpecError


class Selection(NamedTuple):
    """`run` are the jobs to run, `reused` those whose earlier outputs they read, `named` the one the user named."""

    run: frozenset[str]
    reused: frozenset[str]
    named: str | None


def select(upstream: Mapping[str, frozenset[str]], *, only: str | None, from_job: str | None) -> Selection:
    """Return the selected jobs of a graph, given as what each job directly depends on.

    `only` is one job alone; `from_job` is a job and all that depend on it. Raise `UsageError` for an unknown job, or if
    both are given.
    """
    if only is not None and from_job is not None:
        raise UsageError("--only and --from cannot be used together")
    named = only if only is not None else from_job
    if named is None:
        return Selection(frozenset(upstream), frozenset(), None)
    if named not in upstream:
        flag = "--only" if only is not None else "--from"
        raise UsageError(f"{flag} {named}: unknown job. {did_you_mean(named, upstream)}")
    dependents = {job: [name for name, needs in upstream.items() if job in needs] for job in upstream}
    run = {named} if only is not None else _reached([named], dependents)
    reused = frozenset[str]().union(*(upstream[job] for job in run)) - run
    return Selection(frozenset(run), reused, named)


def _reached(jobs: Iterable[str], following: Mapping[str, Iterable[str]]) -> set[str]:
    """Return some jobs with all that follow them in a graph, directly or through others."""
    found, left = set[str](), list(jobs)
    while left:
        if (job := left.pop()) not in found:
            found.add(job)
            left += following[job]
    return found


class ReusedResult(NamedTuple):
    """The earlier result of a job that is left out, the job's record in that run, and a description of the choice."""

    earlier: EarlierResult
    record: JobRecord
    why: str


def find_reused(
    resolved: LocalPipeline,
    jobs: Collection[str],
    runs: Collection[RunRecord],
    digests: ContentDigests,
    *,
    without_gpus: bool = False,
) -> dict[str, ReusedResult]:
    """Return for each of these jobs the completed result that fits this run best, among `runs`, newest first.

    That is the newest with the key that the job would have here, else the newest with the same inputs, else the newest
    of all. Raise `UsageError` naming the jobs that have none.
    """
    pipeline = resolved.pipeline.name
    keys = _keys_here(resolved, jobs, digests, without_gpus=without_gpus) if jobs else {}
    found: dict[str, ReusedResult] = {}
    for name in (name for name in resolved.jobs if name in jobs):
        inputs_here, key = recorded_inputs(resolved.jobs[name]), keys.get(name)
        candidates = list(_completed(name, pipeline, runs))
        if candidates:
            # The sort is stable: among equally good ones the newest stays first.
            run, job = min(candidates, key=lambda candidate: _fit_rank(candidate[1], inputs_here, key))
            is_same_file = run.pipeline_file == str(resolved.pipeline.file.resolve())
            origin = run.name if is_same_file else f"{run.name} of {run.pipeline_file}"
            why = f"taken from run {origin}{_differences(job, inputs_here, key if is_same_file else None)}"
            earlier = EarlierResult(run.folder.resolve(), run.name, name, str(job.identity))
            found[name] = ReusedResult(earlier, job, why)
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


def _keys_here(
    resolved: LocalPipeline, jobs: Collection[str], digests: ContentDigests, *, without_gpus: bool
) -> dict[str, JobKey]:
    """Return the key that each of these jobs would have in this run, if it can be known without running anything."""
    keys: dict[str, JobKey] = {}
    identities: dict[str, str] = {}
    reached = _reached(jobs, {name: job.depends_on for name, job in resolved.jobs.items()})
    for name in (name for name in resolved.jobs if name in reached):
        job = resolved.jobs[name]
        has_its_data = all(source.path.exists() for source in job.inputs.values() if isinstance(source, LocalPath))
        if set(job.depends_on) <= set(identities) and has_its_data:
            try:
                keys[name] = job_key(job, identities, digests, without_gpus=without_gpus)
            except (SpecError, OSError):
                continue  # a job that is left out may lack its code or data; then only its recorded inputs are compared
            if job.component.is_deterministic:
                identities[name] = keys[name].key
    return keys


def _fit_rank(job: JobRecord, inputs_here: Mapping[str, object], key: JobKey | None) -> int:
    if key is not None and job.cache_key == key.key:
        return 0
    return 1 if job.inputs == inputs_here else 2


def _differences(job: JobRecord, inputs_here: Mapping[str, object], key: JobKey | None) -> str:
    """Describe what a result was made with, where that differs from this run; empty if nothing does."""
    names = [name for name in {**inputs_here, **job.inputs} if job.inputs.get(name) != inputs_here.get(name)]
    values = [f"{name} {job.inputs.get(name, 'none')} instead of {inputs_here.get(name, 'none')}" for name in names]
    text = f", whose inputs differ: {', '.join(values)}" if values else ""
    if key is not None and job.key_parts:
        differing = [part for part in key.parts if job.key_parts.get(part) != key.parts[part]]
        others = [part for part in differing if part.removeprefix("input ") not in names]
        text += f"; changed since: {', '.join(others)}" if others else ""
    return text
