"""A profile, what it extends and `--set`, merged; each value keeps where it was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.render import rules
from trainyard.render.project import Project
from trainyard.render.settings import as_argument
from trainyard.render.values import written
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.computes import profile_chain
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.documents import Document, Node, describe, read_document, require_faultless
from trainyard.spec.rule import Rule
from trainyard.spec.set_arguments import COMMAND_LINE

KeyPath = tuple[str, ...]


@dataclass
class Layers:
    """The keys of a profile after laying everything over each other.

    `files` are in the order of reading, the profile itself first. A path that `--set` gave has no spans, but its text
    in `set_texts`.
    """

    files: tuple[Path, ...]
    data: dict[str, Any] = field(default_factory=dict)
    value_spans: dict[KeyPath, Span] = field(default_factory=dict)
    key_spans: dict[KeyPath, Span] = field(default_factory=dict)
    set_texts: dict[KeyPath, str] = field(default_factory=dict)

    @property
    def written_data(self) -> dict[str, Any]:
        """The data, whose values know where they were written."""
        return dict(self._marked((), self.data))

    def _marked(self, path: KeyPath, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._marked((*path, key), each) for key, each in value.items()}
        return written(value, self.value_spans.get(path))

    def problem(self, path: KeyPath, rule: Rule, message: str, hint: str = "", *, at_key: bool = False) -> Diagnostic:
        """A finding about the value (or the key) at a path: at its line, or naming the `--set` that gave it."""
        setting = self._setting_about(path)
        if setting is not None:
            return rule.at(Span(COMMAND_LINE), f"--set {setting}: {message}", hint=hint)
        spans = self.key_spans if at_key else self.value_spans
        return rule.at(spans.get(path, Span(self.files[0])), message, hint=hint)

    def _setting_about(self, path: KeyPath) -> str | None:
        """The `--set` that gave the value at a path, or that made the path."""
        for given, text in self.set_texts.items():
            if path and (given[: len(path)] == path or path[: len(given)] == given) and path not in self.value_spans:
                return text
        return None

    def lay_over(self, node: Node, path: KeyPath = (), into: dict[str, Any] | None = None) -> None:
        """Take the keys of a mapping: nested mappings are joined, everything else is replaced."""
        into = self.data if into is None else into
        for key, entry in node.entries.items():
            here = (*path, key)
            if not entry.value.is_mapping or not isinstance(into.get(key), dict):
                self._forget(here)
                into[key] = {} if entry.value.is_mapping else entry.value.data
            self.key_spans[here], self.value_spans[here] = entry.key.span, entry.value.span
            if entry.value.is_mapping:
                self.lay_over(entry.value, here, into[key])

    def lay_setting_over(self, dotted_key: str, value: object) -> None:
        """Take one `--set`: `nodes` or `pipelines.ddp.epochs` with its value."""
        path = tuple(dotted_key.split("."))
        into = self.data
        for depth, key in enumerate(path[:-1]):
            if not isinstance(into.get(key), dict):
                self._forget(path[: depth + 1])
                into[key] = {}
            into = into[key]
        self._forget(path)
        into[path[-1]] = value
        self.set_texts[path] = as_argument(dotted_key, value)

    def take_cluster_of_trainings(self) -> None:
        """Take `clusters.train` for what it stands for: the keys cluster, sku and nodes."""
        clusters = self.data.get("clusters")
        train = clusters.get("train") if isinstance(clusters, dict) else None
        if not isinstance(clusters, dict) or not isinstance(train, dict):
            return
        for key, meant in (("name", "cluster"), ("sku", "sku"), ("nodes", "nodes")):
            if key in train:
                self.data[meant] = train.pop(key)
                for spans in (self.key_spans, self.value_spans):
                    spans[(meant,)] = spans.pop(("clusters", "train", key))
        if not train:
            del clusters["train"]

    def _forget(self, path: KeyPath) -> None:
        if path not in self.key_spans:
            return  # what is within it was noted after it
        for spans in (self.key_spans, self.value_spans):
            for known in [known for known in spans if known[: len(path)] == path]:
                del spans[known]


def read_layers(
    project: Project, name: str, settings: Mapping[str, object], read: Callable[[Path], Document] = read_document
) -> Layers:
    """Read a profile and what it extends. Raises SpecError for unreadable files, unknown names and cycles."""
    documents = list(profile_chain(project.profiles, name, lambda file: require_faultless(read(file))))
    if (extended := documents[-1].root.get("extends")) is not None:
        raise SpecError(_broken_chain(project, extended, documents))
    layers = Layers(tuple(document.file for document in documents))
    for document in reversed(documents):
        layers.lay_over(document.root)
    layers.data.pop("extends", None)
    layers.take_cluster_of_trainings()
    for dotted_key, value in settings.items():
        layers.lay_setting_over(dotted_key, value)
    return layers


def _broken_chain(project: Project, extended: Node, documents: list[Document]) -> Diagnostic:
    """What is wrong with the `extends` that a chain of profiles ends at."""
    known = sorted(file.stem for file in project.profiles.glob("*.yaml"))
    if not extended.is_text:
        message = f"'extends' is the name of one profile, not {describe(extended.data)}"
        return rules.PROFILE_VALUE.at(extended.span, message)
    if extended.data not in known:
        hint = did_you_mean(extended.text, known)
        return rules.UNKNOWN_PROFILE.at(extended.span, f"unknown profile '{extended.text}'", hint)
    names = [document.file.stem for document in documents]
    circle = " extends ".join([*names[names.index(extended.data) :], extended.data])
    related = [Related(document.node_at(("extends",)).span, "extends this") for document in documents[:-1]]
    message = f"profiles extend each other in a circle: {circle}"
    return rules.PROFILE_CYCLE.at(extended.span, message, "Remove one of these `extends`.", related)
