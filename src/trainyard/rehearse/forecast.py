"""What a run would reuse and what it would run again, and which file or value changed, without running anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.rehearse.cache import StepCache, job_key
from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.job_work import reason_to_run_again
from trainyard.rehearse.key_details import KeyDetails, details_of
from trainyard.rehearse.resolution import ResolvedJob, WrittenValue
from trainyard.rehearse.runner import RunOptions, check
from trainyard.rehearse.snapshot import snapshot_of
from trainyard.spec.model import Pipeline
from trainyard.spec.resolution import JobOutput


@dataclass(frozen=True)
class JobForecast:
    """What would become of a job: `reused_from` names a run, or `why` says why it runs, and `changes` what differs."""

    name: str
    reused_from: str | None = None
    why: str | None = None
    changes: list[str] = field(default_factory=list)


def forecast(pipeline: Pipeline, options: RunOptions) -> list[JobForecast]:
    """Return what a run with these options would do with each job, in the order in which they can run.

    Raise what `run_pipeline` raises before it starts anything.
    """
    resolved = check(pipeline, options, options.runs_folder / "run").resolved
    cache = StepCache(options.state_folder / "cache")
    digests = ContentDigests(options.state_folder / "cache" / "file_digests.json")
    software = _software_here(list(resolved.jobs.values()), options, digests)
    identities: dict[str, str] = {}
    found: dict[str, JobForecast] = {}
    for name, job in resolved.jobs.items():
        unknown = [each for each in job.depends_on if each not in identities]
        if unknown:
            found[name] = JobForecast(name, why=f"it reads what {' and '.join(unknown)} will write")
            continue
        if name in software.absent:
            found[name] = JobForecast(name, why=software.absent[name])
            continue
        snapshot = snapshot_of(job.component)
        python, image = software.pythons.get(name, options.python), software.image_digests.get(name)
        key = job_key(job, snapshot, identities, digests, python, image)
        why = reason_to_run_again(job.component, use_cache=options.use_cache, force_rerun=resolved.pipeline.force_rerun)
        earlier, problem = (None, None) if why is not None else cache.find(key, Path())
        if earlier is not None:
            identities[name] = earlier.identity
            found[name] = JobForecast(name, reused_from=earlier.run)
            continue
        if job.component.is_deterministic:
            identities[name] = key.key
        if why is None and problem is None:
            last = cache.last_start(f"{pipeline.name}.{name}")
            why = cache.why_new(f"{pipeline.name}.{name}", key)
            changed = [part for part in key.parts if last and key.parts[part] != last.parts.get(part)]
            gone = [part for part in last.parts if part not in key.parts] if last else []
            here = details_of(job, snapshot, digests, python if image is None else None)
            changes = [_described(part, job, last.details if last else {}, here, found) for part in changed]
            changes += [f"{part}: no longer given" for part in gone]
            why = f"changed since run {last.run}" if last and changes else why
            found[name] = JobForecast(name, why=why, changes=changes)
        else:
            found[name] = JobForecast(name, why=why or problem)
    digests.save()
    return list(found.values())


@dataclass
class _SoftwareHere:
    """What jobs would run in, by name, as far as it is on this machine; `absent` says what is built or pulled first."""

    pythons: dict[str, Path] = field(default_factory=dict)
    image_digests: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def _software_here(jobs: list[ResolvedJob], options: RunOptions, digests: ContentDigests) -> _SoftwareHere:
    here = _SoftwareHere()
    if options.environments == "venv":
        from trainyard.rehearse.virtual_environments import environments_here  # packaging takes 30 ms to import

        for name, python in environments_here(jobs, options.environments_folder, options.python).items():
            if python is not None:
                here.pythons[name] = python
            else:
                here.absent[name] = "its environment has not been built here yet"
    elif options.environments == "docker":
        from trainyard.rehearse.containers.engine import find_engine
        from trainyard.rehearse.containers.images import images_here

        for name, digest in images_here(jobs, find_engine(os.environ), digests).items():
            if digest is not None:
                here.image_digests[name] = digest
            else:
                here.absent[name] = "its image is not on this machine yet"
    return here


def _described(
    part: str, job: ResolvedJob, before: KeyDetails, here: KeyDetails, earlier_jobs: Mapping[str, JobForecast]
) -> str:
    """Say what changed in one part of a job's key: files, values, or the job whose output it is."""
    source = job.inputs.get(part.removeprefix("input "))
    output = source.output if isinstance(source, WrittenValue) else source
    if isinstance(output, JobOutput):
        runs = earlier_jobs[output.job].reused_from is None
        return f"{part}: from {output.job}, which {'runs again' if runs else 'has another result'}"
    old, new = before.get(part), here.get(part)
    if old is None or new is None:
        return part
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return f"{part}: {_listed([_difference(name, old.get(name), new.get(name)) for name in names])}"


def _difference(name: str, old: str | None, new: str | None) -> str:
    if not name:
        return _changed_lines(str(old), str(new))
    return f"{name} (new)" if old is None else f"{name} (gone)" if new is None else name


def _changed_lines(old: str, new: str) -> str:
    """Two values in one line: of texts with several, those that differ."""
    before, after = old.splitlines(), new.splitlines()
    for place in (0, -1):
        while before and after and before[place] == after[place]:
            del before[place], after[place]
    return f"{' ⏎ '.join(after) or 'nothing'} instead of {' ⏎ '.join(before) or 'nothing'}"


_MOST_NAMES = 8


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MOST_NAMES
    return ", ".join(texts[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
