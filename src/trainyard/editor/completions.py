"""What may be written at a place: names in bindings, ports, files, machines, clusters, profiles and settings.

The keys and values that a schema lists are left to yaml-language-server, which reads our schemas.

Text is rarely valid where somebody is typing. So a placeholder is put there, in the ways that may make it valid, and
the text is read like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lsprotocol.types import CompletionItemKind as ItemKind

from trainyard.catalogue.skus import all_skus
from trainyard.editor.cursor import Cursor, KeyPath, cursor_at
from trainyard.editor.hovers import SIZE_KEYS, field_text, fields_of_document, port_text, sku_text
from trainyard.editor.workspace import EditorWorkspace
from trainyard.lint.checks import LintContext
from trainyard.project_files import yaml_files
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import Node, parse_document
from trainyard.spec.file_kinds import Kind, kind_of
from trainyard.spec.findings import DocumentStore
from trainyard.spec.model import Job, Port
from trainyard.spec.parsed import Parsed
from trainyard.spec.yaml_parsing import line_starts

_MARK = "trainyard_cursor"
_WORD = re.compile(r"(?<![\w.$/:@\\-])[\w.$/:@\\-]*$")
_NAME = re.compile(r"(?<![\w-])[\w-]*$")
_OPEN_BINDING = re.compile(r"\$\{\{\s*([\w.-]*)$")
_CLOSED_BINDING = re.compile(r"[\w.-]*\s*\}\}")
_ENDS_A_KEY = re.compile(r"[\w-]*\s*:")
_FILES_LISTED = 500
_COMPUTE_KEYS = ("compute", "default_compute", "target")


@dataclass(frozen=True)
class Completion:
    """One proposal: what is inserted in place of the `replaced` characters before the cursor."""

    label: str
    kind: ItemKind
    replaced: int
    detail: str = ""
    documentation: str = ""
    insert: str = ""
    """Empty where that is the label."""


def completions(workspace: EditorWorkspace, file: Path, text: str, offset: int) -> list[Completion]:
    """Return what may be written at an offset of a file's present text."""
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    binding = _OPEN_BINDING.search(line)
    if binding is not None:
        return list(_of_binding(workspace, file, text, offset, binding[1]))
    if line.lstrip().startswith("#"):
        return []
    word, name = _WORD.search(line), _NAME.search(line)
    assert word is not None
    assert name is not None
    found = _placed(file, text, offset, word[0]) or _placed(file, text, offset, name[0])
    if found is None:
        return []
    changed, cursor = found
    parsed, store = workspace.read([file], {file: changed})
    behind = text[offset:].partition("\n")[0]
    return list(_Proposals(workspace, file, cursor, parsed, store, len(word[0]), len(name[0]), behind).all())


def _placed(file: Path, text: str, offset: int, word: str) -> tuple[str, Cursor] | None:
    """Return the text with a placeholder for the word that ends at the cursor, and where that is."""
    before = text[: offset - len(word)]
    behind, line_break, below = text[offset:].partition("\n")
    endings = (behind, ":" if behind.strip() else f": {behind}", "")
    following = (line_break + below, "")
    return _first_readable(file, before, [f"{ending}{after}\n" for ending in endings for after in following])


def _first_readable(file: Path, before: str, endings: Iterable[str]) -> tuple[str, Cursor] | None:
    """Return the first text that is YAML with a placeholder behind `before`, and where that is; None without one."""
    starts = line_starts(before)
    line, column = len(starts), len(before) - starts[-1] + 1
    for ending in endings:
        changed = f"{before}{_MARK}{ending}"
        try:
            cursor = cursor_at(parse_document(file, changed), line, column)
        except SpecError:
            continue
        if cursor is not None and _MARK in cursor.node.text:
            return changed, cursor
    return None


# Bindings --------------------------------------------------------------------------------------------------------


def _of_binding(workspace: EditorWorkspace, file: Path, text: str, offset: int, typed: str) -> Iterator[Completion]:
    """Yield the names that may be next in the path of an open binding."""
    rest = text[offset:]
    is_closed = _CLOSED_BINDING.match(rest) is not None
    endings = (rest if is_closed else "}}" + rest, "}}\n", "\n")
    found = _first_readable(file, text[: offset - len(typed)], endings)
    if found is None:
        return
    changed, cursor = found
    parsed, _ = workspace.read([file], {file: changed})
    *steps, last = typed.split(".")
    end = "" if is_closed else "}}"
    for name, (detail, is_last) in _names_after(tuple(steps), cursor, parsed).items():
        yield Completion(name, ItemKind.Reference, len(last), detail, insert=name + (end if is_last else "."))


_Names = dict[str, tuple[str, bool]]
"""Names that may follow, with what each is, and whether it ends the path."""


def _names_after(steps: tuple[str, ...], cursor: Cursor, parsed: Parsed) -> _Names:
    """Return the names that may follow those of a path."""
    key = cursor.key
    if key in ("command", "args", "program_arguments", "append_row_to", "input_data"):
        return _names_of_own_ports(cursor).get(steps, {})
    # The model was read from text of its own, so places tell what nodes are the same.
    around, here = {holder.offsets for holder in cursor.holders}, cursor.document.file
    of_file = (each for each in parsed.pipelines if each.reading.file == here)
    pipeline = next((each for each in of_file if each.body.offsets in around), None)
    if pipeline is None:
        return {}
    scope = pipeline.model
    inputs: _Names = {"inputs": ("the pipeline's inputs", False), "jobs": ("other jobs", False)}
    outputs: _Names = {"outputs": ("the pipeline's outputs", False)}
    own = str(cursor.path[cursor.path.index("jobs") + 1]) if "jobs" in cursor.path else ""
    names: dict[tuple[str, ...], _Names] = {
        (): {"parent": ("the pipeline", False)},
        ("parent",): outputs if "outputs" in cursor.path[2:] else inputs,
        ("parent", "inputs"): _names_of(scope.inputs),
        ("parent", "outputs"): _names_of(scope.outputs),
        ("parent", "jobs"): {name: ("job", False) for name in scope.jobs if name != own},
    }
    for name, job in scope.jobs.items():
        names["parent", "jobs", name] = {"outputs": ("its outputs", False), "inputs": ("its inputs", False)}
        names["parent", "jobs", name, "outputs"] = _names_of(job.declared_outputs)
        names["parent", "jobs", name, "inputs"] = _names_of(job.declared_inputs)
    return names.get(steps, {})


def _names_of(ports: Mapping[str, Port] | None) -> _Names:
    return {name: (port.type, True) for name, port in (ports or {}).items()}


def _names_of_own_ports(cursor: Cursor) -> dict[tuple[str, ...], _Names]:
    """Return the names in the nearest mapping around an argument that declares ports."""
    names: dict[tuple[str, ...], _Names] = {(): {"inputs": ("the inputs", False), "outputs": ("the outputs", False)}}
    holders = (each for each in reversed(cursor.holders) if each.entries.keys() & {"inputs", "outputs"})
    for holder in islice(holders, 1):
        for kind in ("inputs", "outputs"):
            types = {name: entry.value.get("type") for name, entry in holder.entries_of(kind).items()}
            names[kind,] = {name: (stated.text if stated else "", True) for name, stated in types.items()}
    return names


# Keys and values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Proposals:
    """What may stand where a placeholder is."""

    workspace: EditorWorkspace
    file: Path
    cursor: Cursor
    parsed: Parsed
    store: DocumentStore
    word: int
    name: int
    behind: str

    def all(self) -> Iterator[Completion]:
        path = self.cursor.path
        kind = kind_of(self.cursor.document)
        if kind == "settings":
            yield from self._settings(path)
        elif self.cursor.is_key:
            yield from self._ports(path[:-1], self.cursor.holders[-1])
        else:
            yield from self._values(kind, self.cursor.key, path)
            # A value on a line of its own may become a mapping.
            start, text = self.cursor.node.offsets[0], self.cursor.document.text
            if not text[text.rfind("\n", 0, start) + 1 : start].strip(" -"):
                yield from self._ports(path, None)

    @property
    def _colon(self) -> str:
        """What follows a new key."""
        return "" if _ENDS_A_KEY.match(self.behind) else ": "

    def _ports(self, path: KeyPath, holder: Node | None) -> Iterator[Completion]:
        present = holder.entries if holder is not None else {}
        for name, (port, word) in self._ports_at(path).items():
            if name not in present:
                detail = f"{word}, {port.type}"
                yield Completion(name, ItemKind.Property, self.name, detail, port_text(port, word), name + self._colon)

    def _settings(self, path: KeyPath) -> Iterator[Completion]:
        """The settings that a settings file may have, and the choices of one."""
        fields = fields_of_document(self.cursor.document, self.store)
        if len(path) != 1:
            return
        if self.cursor.is_key:
            for field in (each for name, each in fields.items() if name not in self.cursor.holders[-1].entries):
                text = field.name + self._colon
                yield Completion(field.name, ItemKind.Property, self.name, field.type, field_text(field), text)
        elif path[0] in fields:
            field = fields[str(path[0])]
            for value in ("true", "false") if field.type == "boolean" else field.choices or ():
                yield Completion(value, ItemKind.Value, self.word)

    def _ports_at(self, path: KeyPath) -> Mapping[str, tuple[Port, str]]:
        """The ports that a job's `inputs` or `outputs` may set."""
        if len(path) < 3 or path[-3] != "jobs" or path[-1] not in ("inputs", "outputs", "search_space"):
            return {}
        job = self._job(str(path[-2]))
        if job is None or job.has_own_command:
            return {}
        declared = (job.declared_outputs if path[-1] == "outputs" else job.declared_inputs) or {}
        word = "output" if path[-1] == "outputs" else "input"
        return {name: (port, word) for name, port in declared.items()}

    def _job(self, name: str) -> Job | None:
        return next(
            (each.model.jobs[name] for each in self.parsed.pipelines
             if each.reading.file == self.file and name in each.model.jobs), None
        )  # fmt: skip

    def _values(self, kind: Kind | None, key: str, path: KeyPath) -> Iterator[Completion]:
        if key in SIZE_KEYS:
            for sku in all_skus():
                if sku.is_current:
                    gpus = f"{sku.gpu_count} x {sku.gpu_model}" if sku.gpu_count else "no GPUs"
                    yield Completion(sku.name, ItemKind.EnumMember, self.word, gpus, sku_text(sku))
        elif key in _COMPUTE_KEYS:
            yield from self._clusters()
        elif key == "extends" and kind in ("profile", None):
            others = (file for file in sorted(self.file.parent.glob("*.yaml")) if file != self.file)
            yield from (Completion(file.stem, ItemKind.Value, self.word) for file in others)
        elif key in ("component", "trial", "job"):
            yield from self._files(("component", "pipeline_component") if key != "job" else ("pipeline", "command_job"))
        elif key == "environment":
            yield from self._files(("environment",))
        elif key == "command":
            yield from self._flags()
        elif key == "type" and len(path) >= 3 and path[-3] in ("inputs", "outputs"):
            return
        elif len(path) >= 2 and path[-2] in ("inputs", "outputs"):
            yield from self._values_of_port(path)

    def _values_of_port(self, path: KeyPath) -> Iterator[Completion]:
        """The choices of a parameter, and bindings that suit a port."""
        job = self._job(str(path[-3])) if len(path) >= 4 and path[-4] == "jobs" else None
        pipeline = next((each for each in self.parsed.pipelines if job in each.model.jobs.values()), None)
        if job is None or pipeline is None:
            return
        scope = pipeline.model
        ports = (job.declared_inputs if path[-2] == "inputs" else job.declared_outputs) or {}
        port = ports.get(str(path[-1]))
        for choice in (port.choices or ()) if port is not None else ():
            yield Completion(choice.text, ItemKind.Value, self.word)
        others: dict[str, Mapping[str, Port]] = {
            f"parent.{path[-2]}": scope.inputs if path[-2] == "inputs" else scope.outputs
        }
        if path[-2] == "inputs":
            outputs = {each.name: each.declared_outputs or {} for each in scope.jobs.values() if each is not job}
            others |= {f"parent.jobs.{name}.outputs": ports for name, ports in outputs.items()}
        for place, declared in others.items():
            for name, other in declared.items():
                if port is None or port.is_parameter == other.is_parameter:
                    yield Completion(f"${{{{{place}.{name}}}}}", ItemKind.Reference, self.word, other.type)

    def _flags(self) -> Iterator[Completion]:
        """The flags of the script in whose call the cursor is, but for those that the call has."""
        context = LintContext(self.parsed, Computes(self.store, {}))
        for called in (called for command in self.parsed.commands for called in context.calls_of(command)):
            given = {word.text.partition("=")[0] for word in called.call.arguments}
            known = context.flags_of(called.file, called.root) if called.file is not None and _MARK in given else None
            for name, flag in known.flags.items() if known is not None else ():
                if name.startswith("--") and given.isdisjoint(flag.names):
                    detail = "required" if flag.is_required else flag.default or flag.number or ""
                    yield Completion(name, ItemKind.Property, self.word, detail, ", ".join(flag.choices or ()))

    def _clusters(self) -> Iterator[Completion]:
        computes = Computes(self.store, self.workspace.settings(self.file).computes)
        for name in sorted(computes.names(self.file)):
            found = computes.find(name, self.file)
            yield Completion(f"azureml:{name}", ItemKind.Value, self.word, found.size if found is not None else "")

    def _files(self, kinds: Iterable[Kind]) -> Iterator[Completion]:
        """The files of some kinds in the editor's folder, relative to this one."""
        wanted = frozenset(kinds)
        for at, file in enumerate(yaml_files(self.workspace.root_of(self.file))):
            if at >= _FILES_LISTED:
                return
            document = self.store.find(file)
            if document is not None and file != self.file and kind_of(document) in wanted:
                relative = Path(os.path.relpath(file, self.file.parent)).as_posix()
                text = relative if relative.startswith(".") else f"./{relative}"
                name = document.root.get("description") or document.root.get("name")
                yield Completion(text, ItemKind.File, self.word, name.text if name is not None else "")
