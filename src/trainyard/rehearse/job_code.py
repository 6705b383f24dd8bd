"""The code of a job: its snapshot, and the part of it that the job's result can depend on.

That part is found by reading imports, without running anything. Of a job whose command is a single `python -m MODULE`
or `python SCRIPT.py`, other entry modules (those with an `if __name__ == "__main__":`) and the modules that only they
import are left out of the cache's key. Everything else counts: files that are not Python, all that the entry module can
import, modules that are named in a string or in an input's value, and modules that no entry module imports. Whenever
reading cannot tell, the whole snapshot counts:

- any other command, such as one with several parts or another launcher, and PYTHONPATH in it or among the job's
  variables: so all code counts in a project that has Trainyard's steps as an archive, which is one file of it;
- a module that counts and can load or run code by other means (`importlib`, `subprocess`, `exec`, `sys.path` …), unless
  a comment `# may import: PATTERN, …` in it says which modules that may be. A pattern is a module's name, `package.*`
  for all beneath a package, or `not package` for all modules outside a package;
- a module that counts and is not valid Python.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.errors import cannot_write, error_at
from trainyard.settings.files import files_beneath
from trainyard.spec.model import Component
from trainyard.spec.uploads import ignore_rule

# Dropped whatever the ignore file says: the client drops the first too, and our runs lie in the second.
_ALWAYS_DROPPED = frozenset({"__pycache__", ".trainyard"})


@dataclass(frozen=True)
class Snapshot:
    """Files and their places in the job's working directory, sorted by place."""

    files: tuple[tuple[Path, str], ...]

    def digest(self, digests: ContentDigests) -> str:
        """Return the digest of the files' content and places."""
        return digests.of_files(self.files)

    def copy_to(self, folder: Path) -> None:
        """Copy the files into a new folder. Raise `RunError` if that fails, after removing the folder."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, place in self.files:
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise cannot_write(folder, error) from error


def snapshot_of(component: Component) -> Snapshot:
    """Return the files that Azure ML would upload for a component: code and additional includes, without ignored ones.

    Raise `SpecError` when the code folder or an include is missing.
    """
    files: dict[str, Path] = {}
    if component.code is not None:
        _must_exist(component, component.code, "code")
        if component.code.is_file():
            files[component.code.name] = component.code
        else:
            files |= {place: file for file, place in _included(component.code)}
    for include in component.additional_includes:
        _must_exist(component, include, "additional_includes")
        if include.is_file():
            files[include.name] = include
        else:
            files |= {f"{include.name}/{place}": file for file, place in _included(include)}
    return Snapshot(tuple((files[place], place) for place in sorted(files)))


def _must_exist(component: Component, path: Path, key: str) -> None:
    if not path.exists():
        raise error_at(component.span, f"{key} of {component.name}: {path} does not exist")


def _included(folder: Path) -> Iterator[tuple[Path, str]]:
    is_ignored, can_prune = ignore_rule(folder)

    def enters(name: str) -> bool:
        dropped = name.rsplit("/", 1)[-1] in _ALWAYS_DROPPED
        return not dropped and not (can_prune and is_ignored(name + "/"))

    for file, place in files_beneath(folder, enters):
        if not is_ignored(place):
            yield file, place


_BINDING = re.compile(r"\$\{\{.*?\}\}")
_OPTIONAL_PART = re.compile(r"\$\[\[|\]\]")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_DECLARATION = re.compile(r"# may import: (.+)")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_LOADING_MODULES = frozenset(
    {"builtins", "code", "imp", "importlib", "pkgutil", "pty", "runpy", "site", "subprocess", "zipimport"}
)
_HARMLESS_MODULES = frozenset({"importlib.metadata"})
_LOADING_BUILTINS = frozenset({"__import__", "eval", "exec"})
_LOADING_ATTRIBUTES = {
    "os": re.compile(r"exec\w+|popen|posix_spawnp?|spawn\w+|startfile|system"),
    "sys": re.compile(r"meta_path|modules|path|path_hooks"),
    "asyncio": re.compile(r"create_subprocess_\w+"),
}


def code_of_job(command: str, values: Iterable[object], variables: Mapping[str, str], snapshot: Snapshot) -> Snapshot:
    """Return the files of a snapshot that count for a job with this command, these input values and variables."""
    entry = None if "PYTHONPATH" in variables else _entry_module(command)
    if entry is None:
        return snapshot
    root, module = entry
    code = _code_of(tuple(_stamp(file, place) for file, place in snapshot.files if _is_python(place)))
    counted = code.counted_for(module, root, [str(value) for value in (*values, *variables.values())])
    if counted is None:
        return snapshot
    return Snapshot(tuple((file, place) for file, place in snapshot.files if not _is_python(place) or place in counted))


def _entry_module(command: str) -> tuple[str, str] | None:
    """Return the folder that Python puts on its path and the module that it runs; None if reading cannot tell."""
    text = _OPTIONAL_PART.sub(" ", _BINDING.sub("value", command)).replace("\\\n", " ").strip()
    if any(mark in text for mark in "$`\n"):
        return None
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return None
    if any(set(word) <= set(lexer.punctuation_chars) for word in words if word):
        return None
    words = [word for position, word in enumerate(words) if (position, word) != (1, "-u")]
    if len(words) < 2 or not _PYTHON.fullmatch(words[0]):
        return None
    if words[1] == "-m":
        return ("", words[2]) if len(words) > 2 else None
    script = PurePosixPath(words[1])
    if script.suffix != ".py" or script.is_absolute() or ".." in script.parts:
        return None
    folder = "" if str(script.parent) == "." else f"{script.parent}/"
    return folder, script.stem


def _is_python(place: str) -> bool:
    return place.endswith((".py", ".pyi"))


@dataclass(frozen=True)
class _Module:
    """What one file says: its imports as (level, module, names), the names in its strings, and how it may load code."""

    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    names: frozenset[str]
    is_entry: bool
    loads_code: bool
    may_import: tuple[str, ...] | None


@dataclass(frozen=True)
class _Stamp:
    """A file of a snapshot, by its place there, with what changes when the file does."""

    place: str
    file: Path
    modified_ns: int
    size: int


def _stamp(file: Path, place: str) -> _Stamp:
    status = file.stat()
    return _Stamp(place, file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _code_of(files: tuple[_Stamp, ...]) -> _Code:
    """Return the code of these files, remembered as long as they stay the same: most jobs of a pipeline share it."""
    return _Code(files)


class _Code:
    """The Python files of a snapshot by place, and what has been found out about them."""

    def __init__(self, files: Iterable[_Stamp]) -> None:
        self._files = {stamp.place: stamp for stamp in files}
        self._imports: dict[tuple[str, str], tuple[str, ...]] = {}
        self._by_others: dict[tuple[str, str], set[str]] = {}
        self._names: dict[str, dict[str, str]] = {}

    def counted_for(self, entry: str, root: str, values: Iterable[str]) -> set[str] | None:
        """Return the places of the modules that count; None if that is all of them."""
        starts = {*self._places(entry, root), *self._places(f"{entry}.__main__", root)}
        if not starts:
            return None
        own = self._reach({*starts, *self._named(values, root)}, root, follows_names=True)
        if own is None:
            return None
        others = [place for place in self._files if place not in own and self._is_entry(place)]
        of_others: set[str] = set(others)
        for place in others:
            folder = place.rpartition("/")[0]
            for other_root in {"", f"{folder}/" if folder else ""}:
                if (place, other_root) not in self._by_others:
                    found = self._reach({place}, other_root, follows_names=False)
                    self._by_others[place, other_root] = found or set()
                of_others |= self._by_others[place, other_root]
        unclaimed = self._files.keys() - own - of_others
        rest = self._reach(unclaimed, root, follows_names=True)
        return None if rest is None else own | rest

    def _is_entry(self, place: str) -> bool:
        module = self._module(place)
        return module is not None and module.is_entry

    def _reach(self, starts: Iterable[str], root: str, *, follows_names: bool) -> set[str] | None:
        """Return the places of all that these modules can import; None where reading cannot tell and that matters."""
        reached: set[str] = set()
        pending = list(starts)
        while pending:
            place = pending.pop()
            if place in reached:
                continue
            reached.add(place)
            module = self._module(place)
            if module is None or (module.loads_code and module.may_import is None):
                if follows_names:
                    return None
                continue
            pending += self._imported_by(place, root, module)
            if follows_names:
                pending += self._named(module.names, root)
                pending += self._declared(module.may_import or (), root)
        return reached

    def _imported_by(self, place: str, root: str, module: _Module) -> tuple[str, ...]:
        if (place, root) not in self._imports:
            found: list[str] = []
            for level, name, parts in module.imports:
                found += self._imported(place, root, level, name, parts)
            self._imports[place, root] = tuple(dict.fromkeys(found))
        return self._imports[place, root]

    def _imported(self, place: str, root: str, level: int, name: str, parts: tuple[str, ...]) -> Iterator[str]:
        base = name
        if level:
            folders = place.removeprefix(root).split("/")[:-1]
            base = ".".join([*folders[: len(folders) - level + 1], *filter(None, [name])])
        yield from self._places(base, root)
        for part in parts:
            if part == "*":
                yield from self._declared((f"{base}.*",), root)
            else:
                yield from self._places(f"{base}.{part}" if base else part, root)

    def _places(self, name: str, root: str) -> Iterator[str]:
        """Yield the files that importing a module runs: those of its packages and its own."""
        path = ""
        for part in name.split("."):
            path += f"/{part}" if path else part
            for place in (f"{root}{path}/__init__.py", f"{root}{path}.py"):
                if place in self._files:
                    yield place

    def _named(self, texts: Iterable[str], root: str) -> Iterator[str]:
        """Yield the modules whose name or file appears in a text."""
        for text in texts:
            if text.endswith(".py"):
                yield from (place for place in self._files if f"/{place}".endswith(f"/{text.removeprefix('./')}"))
            for name in _NAME.findall(text):
                if "." in name or name == text.partition(":")[0]:
                    yield from self._places(name, root)

    def _declared(self, patterns: Iterable[str], root: str) -> Iterator[str]:
        names = self._names_below(root)
        for pattern in patterns:
            if pattern.startswith("not "):
                package = pattern.removeprefix("not ").strip()
                yield from (p for p, name in names.items() if name != package and not name.startswith(f"{package}."))
            elif pattern.endswith(".*"):
                yield from (p for p, name in names.items() if name.startswith(pattern.removesuffix("*")))
                yield from self._places(pattern.removesuffix(".*"), root)
            else:
                yield from self._places(pattern, root)

    def _names_below(self, root: str) -> Mapping[str, str]:
        """Return the names by which modules are imported, by their places."""
        if root not in self._names:
            self._names[root] = {
                place: place.removeprefix(root).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                for place in self._files
            }
        return self._names[root]

    def _module(self, place: str) -> _Module | None:
        stamp = self._files[place]
        return _read_module(stamp.file, stamp.modified_ns, stamp.size)


@functools.lru_cache(maxsize=4096)
def _read_module(file: Path, _modified_ns: int, _size: int) -> _Module | None:
    """Return what a file says, remembered as long as it stays the same; None if it is not valid Python."""
    source = file.read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    imports: list[tuple[int, str, tuple[str, ...]]] = []
    names: set[str] = set()
    documentation: set[int] = set()
    is_entry = loads_code = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, ()) for alias in node.names]
            loads_code |= any(_loads(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = tuple(alias.name for alias in node.names)
            imports.append((node.level, node.module or "", parts))
            if not node.level:
                loads_code |= any(_loads(f"{node.module}.{part}") for part in parts)
                pattern = _LOADING_ATTRIBUTES.get(node.module or "")
                loads_code |= pattern is not None and any(pattern.fullmatch(part) for part in parts)
        elif isinstance(node, ast.Name):
            loads_code |= node.id in _LOADING_BUILTINS and isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pattern = _LOADING_ATTRIBUTES.get(node.value.id)
            loads_code |= pattern is not None and pattern.fullmatch(node.attr) is not None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documentation.add(id(node.value))  # a string that is a statement does nothing
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            names.add(node.value)
        elif isinstance(node, ast.If):
            is_entry |= "__name__" in ast.dump(node.test) and "__main__" in ast.dump(node.test)
    declared = _DECLARATION.findall(source.decode("utf-8", errors="replace"))
    may_import = tuple(part.strip() for part in ",".join(declared).split(",")) if declared else None
    return _Module(tuple(imports), frozenset(names), is_entry or file.name == "__main__.py", loads_code, may_import)


def _loads(module: str) -> bool:
    """Return whether a module of the standard library can load or run other code."""
    is_harmless = any(module == name or module.startswith(f"{name}.") for name in _HARMLESS_MODULES)
    return module.partition(".")[0] in _LOADING_MODULES and not is_harmless
