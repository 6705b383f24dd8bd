"""Which machines are behind a cluster's name: compute files, profiles and settings, read one way for lint and plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from trainyard.project_files import names_in
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Document, Node
from trainyard.spec.file_kinds import kind_of
from trainyard.spec.findings import DocumentStore

# How far above a file its project's `compute/` and `profiles/` are looked for.
_LEVELS_UP = 3
_CLUSTER = regex(r"azureml:([\w-]+)")


class Compute(NamedTuple):
    """A cluster: its VM size, how many machines it can have at most, and where that is written."""

    name: str
    size: str
    tier: str = ""
    max_instances: int | None = None
    span: Span | None = None


@dataclass(eq=False)
class Computes:
    """The clusters that are known where a file uses one; each file is read once.

    `named` are those that settings name, by name, with their VM size; `size_of_unknown` returns that of a cluster that
    nothing describes, empty where it is not known either. Files that cannot be read, and those of another kind, are
    skipped: lint reports what is wrong with them.
    """

    store: DocumentStore
    named: Mapping[str, str] = field(default_factory=dict)
    size_of_unknown: Callable[[str], str] | None = None
    _known: dict[tuple[str, Path], dict[str, Compute]] = field(default_factory=dict)

    def find(self, reference: str, used_in: Path) -> Compute | None:
        """Return the cluster that `azureml:NAME` means in a file: settings first, then the nearest folder's files."""
        name = reference.removeprefix("azureml:")
        if name in self.named:
            return Compute(name, self.named[name])
        found = next((known[name] for known in self._known_around(used_in) if name in known), None)
        if found is None and self.size_of_unknown is not None and (size := self.size_of_unknown(name)):
            return Compute(name, size)
        return found

    def names(self, used_in: Path) -> frozenset[str]:
        """Return the names of all clusters that are known where a file uses one."""
        return frozenset({*self.named, *(name for known in self._known_around(used_in) for name in known)})

    def unknown(self, files: Iterable[Path]) -> list[str]:
        """Return the names of the clusters that files use and nothing describes, sorted."""
        used = {(name, file) for file in files for name in _clusters_of(self.store.peek(file).root)}
        return sorted({name for name, file in used if self.find(name, file) is None})

    def _known_around(self, used_in: Path) -> Iterator[dict[str, Compute]]:
        for source in ("compute", "profiles"):
            for folder in used_in.parents[: _LEVELS_UP + 1]:
                key = (source, folder)
                if key not in self._known:
                    read = self._of_files if source == "compute" else self._of_profiles
                    self._known[key] = {compute.name: compute for compute in read(folder)}
                yield self._known[key]

    def _of_profiles(self, folder: Path) -> Iterator[Compute]:
        """The clusters of a project's profiles; one that two profiles describe differently is left out."""
        sizes: dict[str, set[str]] = {}
        for file in _yaml_files(folder / "profiles"):
            try:
                chain = list(profile_chain(file.parent, file.stem, self.store.peek))
            except SpecError:
                continue
            cluster, size = (next(filter(None, (d.root.text_of(key) for d in chain)), "") for key in ("cluster", "sku"))
            if cluster and size:
                sizes.setdefault(cluster, set()).add(size)
        for cluster, known in sizes.items():
            if len(known) == 1:
                yield Compute(cluster, known.pop())

    def _of_files(self, folder: Path) -> Iterator[Compute]:
        for place in (folder / "compute", folder / "computes", folder):
            # A folder itself may hold anything: of its files only those are looked at that were read anyway.
            for file in _yaml_files(place) if place != folder else self._read_by_folder.get(folder, ()):
                document = self.store.find(file)
                if document is not None and kind_of(document) == "compute":
                    yield from _compute_of(document)

    @cached_property
    def _read_by_folder(self) -> dict[Path, list[Path]]:
        found: dict[Path, list[Path]] = {}
        for file in self.store.files:
            found.setdefault(file.parent, []).append(file)
        return found


def _compute_of(document: Document) -> Iterator[Compute]:
    name, size = document.root.text_of("name"), document.root.text_of("size")
    most = document.root.get("max_instances")
    if name and size:
        max_instances = most.data if most is not None and type(most.data) is int else None
        yield Compute(name, size, document.root.word("tier"), max_instances, document.root.key_span("size"))


def _clusters_of(root: Node) -> Iterator[str]:
    """Yield the names of the clusters that a file's jobs run on."""
    jobs = (entry.value for entry in root.entries_of("jobs").values())
    settings = (root.find(*keys, "default_compute") for keys in (("settings",), ("create_job", "settings")))
    for node in (root.get("compute"), *settings, *(job.get("compute") for job in jobs)):
        named = _CLUSTER.fullmatch(node.text) if node is not None and node.is_text else None
        if named is not None and named[1] not in ("local", "serverless"):
            yield named[1]


def _yaml_files(folder: Path) -> list[Path]:
    return [folder / name for name in names_in(folder) if name.endswith((".yaml", ".yml"))]


def profile_chain(folder: Path, name: str, read: Callable[[Path], Document]) -> Iterator[Document]:
    """Yield a profile of a folder and those it extends, nearest first.

    The chain ends where nothing is extended, and where `extends` is not the name of another profile: the last document
    has the key then. What `read` raises is raised.
    """
    met: set[str] = set()
    while name not in met and (folder / f"{name}.yaml").is_file():
        met.add(name)
        document = read(folder / f"{name}.yaml")
        yield document
        extended = document.root.find_text("extends")
        if extended is None:
            return
        name = extended.text
