"""Reuse of unchanged jobs: a key is computed from everything that goes into a job, and its outputs are found by it.

A key holds one digest for each thing that a job's result depends on, under a name that users know. When a job is not
reused, the names whose digests changed since its last run say why.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.rehearse.digests import ContentDigests, digest_of, write_json
from trainyard.rehearse.errors import writing
from trainyard.rehearse.job_imports import imported_files, is_python
from trainyard.rehearse.local_data import LocalPath
from trainyard.rehearse.local_jobs import LocalJob, WrittenValue
from trainyard.rehearse.local_python import editable_installs, importable_files, local_python_digest
from trainyard.rehearse.outside_files import named_absolutely
from trainyard.rehearse.snapshots import SnapshotLists, changes_in_words
from trainyard.settings.files import files_beneath
from trainyard.settings.run_record import InvalidRunRecord, JobRecord, read_run_record
from trainyard.spec.documents import Value
from trainyard.spec.model import Component, Environment, Task
from trainyard.spec.resolved import JobOutput

CACHE_FORMAT = "trainyard.cache/1"
_LOCATIONS_KEPT = 5
_STARTS_KEPT = 4
_LOCAL_PYTHON = "the local Python and its packages"
_IMAGE = "the container image"


class JobKey(NamedTuple):
    """The key of a job's result, and the digest of each part of it."""

    key: str
    parts: dict[str, str]


class EarlierResult(NamedTuple):
    """A completed job of an earlier run whose outputs are complete and unaltered."""

    run_folder: Path
    run: str
    job: str
    identity: str

    @property
    def made(self) -> JobRecord | None:
        """How the earlier job is recorded; None if it no longer is."""
        return _jobs_of(self.run_folder).get(self.job)


@functools.lru_cache(maxsize=4)
def _jobs_of(run_folder: Path) -> Mapping[str, JobRecord]:
    try:
        return read_run_record(run_folder).jobs
    except InvalidRunRecord:
        return {}


def job_key(
    job: LocalJob,
    upstream_identities: Mapping[str, str],
    digests: ContentDigests,
    python: Path = Path(sys.executable),
    image: str | None = None,
    *,
    without_gpus: bool = False,
) -> JobKey:
    """Return the key of a job: code, command, inputs by content, environment, processes, resources, variables.

    The command counts as written, with the names of its ports; their values are in the inputs. Outputs of other jobs
    count by `upstream_identities`, local data by content. For a job in containers, the digest of their
    `image` counts in place of `python`.
    """
    component, task = job.component, job.component.task
    resources = () if job.resources is None else (job.resources.instance_type, job.resources.shm_size)
    # Of a sweep, parallel or Spark job all settings, without their places.
    task_parts = [] if task is None else [type(task).__name__, _without_places(task)]
    parts = {
        "code": job.snapshot.digest(digests),
        "command": digest_of(component.command.data, *task_parts),
        "outputs": digest_of(sorted((port.name, port.type) for port in component.outputs.values())),
        "environment": _environment_digest(component.environment, digests),
        "distribution": digest_of(job.distribution_type, job.counts.nodes, job.counts.processes_per_node),
        "resources": digest_of([value.data if value is not None else None for value in resources]),
        "environment_variables": digest_of(job.environment_variables),
    }
    if image is not None:
        parts[_IMAGE] = digest_of(image)
    else:
        parts[_LOCAL_PYTHON] = local_python_digest(python)
        parts |= {named.text: named.digest(digests) for named in named_absolutely(job)}
        for root in editable_installs(python):
            if not job.has_in_its_code(root):
                parts[f"editable install {root}"] = digests.once(str(root), importable_files(root))
    if without_gpus:
        parts["--without-gpus"] = digest_of(without_gpus)
    for name, source in job.inputs.items():
        if isinstance(source, WrittenValue):
            content = digest_of(upstream_identities[source.output.job], source.output.port)
        elif isinstance(source, JobOutput):
            content = digest_of(upstream_identities[source.job], source.port)
        elif isinstance(source, LocalPath):
            content = digests.of_path(source.path)
        else:
            content = digest_of(type(source).__name__, source)
        parts[f"input {name}"] = content
    return JobKey(digest_of(parts), parts)


def _without_places(setting: object) -> object:
    if isinstance(setting, Value):
        return setting.data
    if isinstance(setting, Component):
        return setting.command.data
    if isinstance(setting, Task):
        return {name: _without_places(value) for name, value in setting._asdict().items()}
    if isinstance(setting, dict):
        return {key: _without_places(value) for key, value in setting.items()}
    return setting


def _environment_digest(environment: Environment | None, digests: ContentDigests) -> str:
    if environment is None:
        return digest_of(None)
    paths = [path for path in (environment.build_path, environment.conda_file) if path is not None]
    contents = [digests.of_path(path) for path in paths if path.exists()]
    conda = environment.conda.data if environment.conda is not None else None
    return digest_of(environment.reference, environment.image, environment.dockerfile, contents, conda)


def not_imported(job: LocalJob, changes: Mapping[str, str]) -> set[str]:
    """Return those of the changed files that a job cannot import; empty where reading cannot tell."""
    texts = [source for source in job.inputs.values() if isinstance(source, (str, int, float))]
    files: dict[str, Path | None] = {place: file for file, place in job.snapshot.files}
    files |= {place: None for place in changes if place not in files}
    imported = imported_files(job.component.command.data, texts, job.environment_variables, files)
    return set() if imported is None else {place for place in changes if is_python(place)} - imported


def _changes_of(job: LocalJob, changes: Mapping[str, str]) -> str:
    """The changed files that a job may read, or if it imports none of them that it does not."""
    others = not_imported(job, changes)
    read = {place: how for place, how in changes.items() if place not in others}
    if read:
        return changes_in_words(read)
    return f"{changes_in_words(changes)}; {job.name} does not import {'it' if len(changes) == 1 else 'them'}"


class StepCache:
    """The index of results: one small file per key, which lists the run folders that hold the outputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._snapshots = SnapshotLists(folder / "snapshots")
        self._replacing = threading.Lock()  # equal jobs of a run share a file, which is away while it is replaced

    def find(self, key: JobKey, own_run: Path) -> tuple[EarlierResult | None, str | None]:
        """Return the newest complete result with this key in another run, or None and what is wrong with known ones."""
        with self._replacing:
            entry = _read(self._result_file(key))
        problem = None
        for location in reversed(entry.get("locations", [])):
            run_folder = Path(location["run_folder"])
            if run_folder == own_run:
                continue
            difference = _difference(run_folder / "jobs" / location["job"] / "outputs", location["files"])
            if difference is None:
                return EarlierResult(run_folder, location["run"], location["job"], entry["identity"]), None
            problem = problem or f"its result in run {location['run']} {difference}"
        return None, problem

    def why_new(self, last_file_name: str, key: JobKey, job: LocalJob, digests: ContentDigests) -> str:
        """Return why there is no result with this key: what changed since this job last ran."""
        last = _read(self._last_file(last_file_name))
        if not last:
            return "it has not run from this file before"
        names = sorted({*key.parts, *last["parts"]})
        changed = [name for name in names if key.parts.get(name) != last["parts"].get(name)]
        if not changed:
            return f"it did not complete in run {last['run']}, completed with warnings, or its result is gone"
        if "code" in changed:
            changes = self._snapshots.changes(last["parts"].get("code", ""), job.snapshot, digests)
            changed[changed.index("code")] = f"code ({_changes_of(job, changes)})" if changes else "code"
        return f"changed since run {last['run']}: {', '.join(changed)}"

    def find_by_imports(
        self, last_file_name: str, key: JobKey, job: LocalJob, digests: ContentDigests, own_run: Path
    ) -> tuple[EarlierResult, JobKey, str] | None:
        """Return the newest result of an earlier start that differs only in files that the job does not import.

        With it come its key, and what differs.
        """
        last = _read(self._last_file(last_file_name))
        for parts in [last["parts"], *last.get("earlier", [])] if last else []:
            if any(parts.get(name) != key.parts.get(name) for name in {*parts, *key.parts} - {"code"}):
                continue
            changes = self._snapshots.changes(parts.get("code", ""), job.snapshot, digests)
            if not changes or not changes.keys() <= not_imported(job, changes):
                continue
            found, _ = self.find(earlier_key := JobKey(digest_of(parts), parts), own_run)
            if found is not None:
                return found, earlier_key, _changes_of(job, changes)
        return None

    def remember_start(
        self, last_file_name: str, key: JobKey, run: str, job: LocalJob, digests: ContentDigests
    ) -> None:
        """Record what goes into this start of a job, to explain later what changed. Raise `RunError` on failure."""
        self._snapshots.remember(key.parts["code"], job.snapshot, digests)
        last = _read(self._last_file(last_file_name))
        known = [last["parts"], *last.get("earlier", [])] if last else []
        earlier = [parts for parts in known if parts != key.parts][:_STARTS_KEPT]
        document = {"format": CACHE_FORMAT, "run": run, "parts": key.parts, "earlier": earlier}
        write_json(self._last_file(last_file_name), document)

    def remember_result(self, key: JobKey, identity: str, run_folder: Path, run: str, job: str) -> None:
        """Record a completed job's outputs under its key, with file sizes and times. Raise `RunError` on failure."""
        location = {
            "run_folder": str(run_folder.resolve()),
            "run": run,
            "job": job,
            "files": _inventory(run_folder / "jobs" / job / "outputs"),
        }
        file = self._result_file(key)
        with self._replacing:
            entry = _read(file)
            known = entry.get("locations", []) if entry.get("identity") == identity else []
            # One of each run: its equal jobs, which do not reuse each other's, would displace the results of others.
            known = [other for other in known if other["run_folder"] != location["run_folder"]]
            locations = [*known, location][-_LOCATIONS_KEPT:]
            write_json(file, {"format": CACHE_FORMAT, "identity": identity, "locations": locations})

    def _result_file(self, key: JobKey) -> Path:
        return self._folder / "results" / f"{key.key}.json"

    def _last_file(self, name: str) -> Path:
        return self._folder / "last" / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.json"


def link_result(earlier: EarlierResult, job_folder: Path) -> None:
    """Put an earlier job's outputs and logs into a job's folder: as hard links, or copies across file systems.

    The folder is emptied first, because a runner that was killed at this point leaves a part of a result. Raise
    `RunError` when the folder cannot be written; it is then emptied again.
    """
    shutil.rmtree(job_folder, ignore_errors=True)
    with ExitStack() as undone:
        undone.callback(shutil.rmtree, job_folder, ignore_errors=True)
        link_parts(earlier.run_folder / "jobs" / earlier.job, job_folder, ("outputs", "user_logs", "artifacts"))
        undone.pop_all()


def link_parts(source: Path, target: Path, parts: Sequence[str]) -> None:
    """Put folders of one job in place of another's: as hard links or copies. Raise `RunError` on failure."""
    with writing(target):
        for part in (part for part in parts if (source / part).is_dir()):
            shutil.rmtree(target / part, ignore_errors=True)
            shutil.copytree(source / part, target / part, symlinks=True, copy_function=link_or_copy)


def link_or_copy(source: str, target: str) -> None:
    """Make a file a hard link to another, or a copy of it where the file system has no such links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _inventory(folder: Path) -> dict[str, list[int]]:
    """Return the size and modification time (ns) of every file beneath a folder, by relative name."""
    inventory = {}
    for file, name in files_beneath(folder):
        status = file.stat()
        inventory[name] = [status.st_size, status.st_mtime_ns]
    return inventory


def _difference(folder: Path, recorded: Mapping[str, list[int]]) -> str | None:
    """Return how a folder's files differ from those recorded, or None if they do not."""
    if not folder.is_dir():
        return "is gone"
    found = _inventory(folder)
    for name in sorted(set(found) | set(recorded)):
        if name not in found:
            return f"lacks {name}"
        if name not in recorded:
            return f"has an additional file, {name}"
        if found[name] != recorded[name]:
            return f"was altered ({name})"
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # the cache only saves time; without it the job runs
    return document if isinstance(document, dict) and document.get("format") == CACHE_FORMAT else {}
