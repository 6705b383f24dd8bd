"""Which Python files of its snapshot a job can import, found by reading, without running anything.

The whole snapshot counts for a job's result, as on Azure ML: a script may list its own folder. What it imports explains
why a job runs again although nothing that it imports has changed, and is what counts with `--reuse-imports`.

It is known of a job whose command is a single `python -m MODULE` or `python SCRIPT.py`: the entry module, all that it
imports, and the modules that a string or an input's value names. Reading cannot tell

- of any other command, such as one with several parts or another launcher, and with PYTHONPATH in it or among the job's
  variables;
- where a module that is reached can load or run code by other means (`importlib`, `subprocess`, `exec`, `sys.path` …),
  unless a comment `# may import: PATTERN, …` in it says which modules that may be. A pattern is a module's name,
  `package.*` for all beneath a package, or `not package` for all modules outside a package;
- where a module that is reached is not valid Python.
"""

from __future__ import annotations

import ast
import functools
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from trainyard.settings.regex import regex

_BINDING = regex(r"\$\{\{.*?\}\}")
_OPTIONAL_PART = regex(r"\$\[\[|\]\]")
_PYTHON = regex(r"python(3(\.\d+)?)?")
_DECLARATION = regex(r"# may import: (.+)")
_NAME = regex(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_LOADING_MODULES = frozenset(
    {"builtins", "code", "imp", "importlib", "pkgutil", "pty", "runpy", "site", "subprocess", "zipimport"}
)
_HARMLESS_MODULES = frozenset({"importlib.metadata"})
_LOADING_BUILTINS = frozenset({"__import__", "eval", "exec"})
_LOADING_ATTRIBUTES = {
    "os": regex(r"exec\w+|popen|posix_spawnp?|spawn\w+|startfile|system"),
    "sys": regex(r"meta_path|modules|path|path_hooks"),
    "asyncio": regex(r"create_subprocess_\w+"),
}


def imported_files(
    command: str, values: Iterable[object], variables: Mapping[str, str], files: Mapping[str, Path | None]
) -> set[str] | None:
    """Return the places of the Python files that a job with this command, values and variables can import.

    `files` are those of its snapshot by place; None in place of a file that is gone, so that who imports it is found.
    Return None where reading cannot tell.
    """
    entry = None if "PYTHONPATH" in variables else _entry_module(command)
    if entry is None:
        return None
    root, module = entry
    code = _Code({place: file for place, file in files.items() if is_python(place)}, root)
    starts = {*code.places(module), *code.places(f"{module}.__main__")}
    named = code.named(str(value) for value in (*values, *variables.values()))
    return code.reached_from({*starts, *named}) if starts else None


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


def is_python(place: str) -> bool:
    """Return whether a file is one that Python imports, by its name."""
    return place.endswith((".py", ".pyi"))


class _Module(NamedTuple):
    """What one file says: its imports as (level, module, names), the names in its strings, and how it may load code."""

    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    names: frozenset[str]
    loads_code: bool
    may_import: tuple[str, ...] | None


_NO_CODE = _Module((), frozenset(), loads_code=False, may_import=None)


class _Code:
    """The Python files of a snapshot by place, of which the folder `root` is on Python's path."""

    def __init__(self, files: Mapping[str, Path | None], root: str) -> None:
        self._files = files
        self._root = root

    def reached_from(self, starts: Iterable[str]) -> set[str] | None:
        """Return the places of all that these modules can import; None where reading cannot tell."""
        reached: set[str] = set()
        pending = list(starts)
        while pending:
            place = pending.pop()
            if place in reached:
                continue
            reached.add(place)
            module = self._module(place)
            if module is None or (module.loads_code and module.may_import is None):
                return None
            for level, name, parts in module.imports:
                pending += self._imported(place, level, name, parts)
            pending += self.named(module.names)
            pending += self._declared(module.may_import or ())
        return reached

    def _imported(self, place: str, level: int, name: str, parts: tuple[str, ...]) -> Iterator[str]:
        base = name
        if level:
            folders = place.removeprefix(self._root).split("/")[:-1]
            base = ".".join([*folders[: len(folders) - level + 1], *filter(None, [name])])
        yield from self.places(base)
        for part in parts:
            if part == "*":
                yield from self._declared((f"{base}.*",))
            else:
                yield from self.places(f"{base}.{part}" if base else part)

    def places(self, name: str) -> Iterator[str]:
        """Yield the files that importing a module runs: those of its packages and its own."""
        path = ""
        for part in name.split("."):
            path += f"/{part}" if path else part
            for place in (f"{self._root}{path}/__init__.py", f"{self._root}{path}.py"):
                if place in self._files:
                    yield place

    def named(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the modules whose name or file appears in a string."""
        for text in texts:
            if text.endswith(".py"):
                yield from (place for place in self._files if f"/{place}".endswith(f"/{text.removeprefix('./')}"))
            for name in _NAME.findall(text):
                if "." in name or name == text.partition(":")[0]:
                    yield from self.places(name)

    def _declared(self, patterns: Iterable[str]) -> Iterator[str]:
        for pattern in patterns:
            if pattern.startswith("not "):
                package = pattern.removeprefix("not ").strip()
                yield from (p for p, name in self._names.items() if not f"{name}.".startswith(f"{package}."))
            elif pattern.endswith(".*"):
                yield from (p for p, name in self._names.items() if name.startswith(pattern.removesuffix("*")))
                yield from self.places(pattern.removesuffix(".*"))
            else:
                yield from self.places(pattern)

    @functools.cached_property
    def _names(self) -> Mapping[str, str]:
        """The names by which modules are imported, by their places."""
        return {
            place: place.removeprefix(self._root).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for place in self._files
        }

    def _module(self, place: str) -> _Module | None:
        file = self._files[place]
        if file is None:
            return _NO_CODE
        status = file.stat()
        return _read_module(file, status.st_mtime_ns, status.st_size)


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
    loads_code = False
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
    declared = _DECLARATION.findall(source.decode("utf-8", errors="replace"))
    may_import = tuple(part.strip() for part in ",".join(declared).split(",")) if declared else None
    return _Module(tuple(imports), frozenset(names), loads_code, may_import)


def _loads(module: str) -> bool:
    """Return whether a module of the standard library can load or run other code."""
    is_harmless = any(module == name or module.startswith(f"{name}.") for name in _HARMLESS_MODULES)
    return module.partition(".")[0] in _LOADING_MODULES and not is_harmless
