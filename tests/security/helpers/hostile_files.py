"""Files as nobody's tool writes them: valid ones, with bytes, tokens, lines and values changed at random.

Everything comes from a seed and a number, so that `spoilt(seed, number)` is the same again.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

CPU_SECONDS = 5.0
MEMORY_BYTES = 500 * 10**6

_VALUES = (
    *(None, True, False, 0, -1, 2**63, 10**400, 1e308, float("nan"), float("-inf"), 0.5, "", "\0", "\x1b[2J", "\ud800"),
    *("a" * 5000, "../../etc/passwd", "/dev/zero", "~", "$(x)", "{{ 7 * 7 }}", "<script>", "1e999", "0x1F", "auto"),
    *("9" * 5000, "2020-13-45T99:99:99Z", [], {}, [[]], [{}], {"": ""}, {"a": {"a": {"a": 1}}}, [None] * 1000),
)
_TOKENS = (
    *("null", "[]", "{}", "---\n", "&a ", "*a", "!!python/object/apply:os.system ", "<<: *a", "${{", "}}", ": ", "- "),
    *(
        "[" * 500,
        "{" * 500,
        "'",
        '"',
        "\\u0000",
        "\\ud800",
        "\0",
        "\xff",
        "\ufeff",
        "\u202e",
        "\r",
        "\n",
        "\t",
        "1e999",
    ),
    *("Infinity", "NaN", "-", "999999999999999999999", "[[", "]]", "= ", "#", "|\n", "/*", "//", ",", "}", "]"),
)


def spoilt(text: str, number: int, seed: str) -> bytes:
    """Return the `number`-th spoilt text."""
    chance = random.Random(f"{seed}/{number}")
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if document is not None and chance.random() < 0.7:
        for _ in range(chance.choice((1, 1, 2, 3))):
            document = _with_another_value(document, chance)
        return json.dumps(document).encode("utf-8", errors="surrogatepass")
    content = text.encode()
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        content = chance.choice((_by_byte, _by_token, _by_value, _by_line, _by_line, _cut))(content, chance)
    return content


def _with_another_value(document: Any, chance: random.Random) -> Any:
    """Replace, remove, add or repeat one value anywhere in what JSON can hold."""
    places = [((), document), *_places(document, ())]
    path, _ = chance.choice(places)
    if not path:
        return copy.deepcopy(chance.choice(_VALUES)) if chance.random() < 0.1 else document
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    action = chance.random()
    if action < 0.7:
        holder[path[-1]] = copy.deepcopy(chance.choice(_VALUES))
    elif action < 0.85:
        del holder[path[-1]]
    elif isinstance(holder, dict):
        holder[chance.choice(("", "a", "format", "__class__", "\0"))] = copy.deepcopy(holder[path[-1]])
    else:
        holder.extend(copy.deepcopy(holder[path[-1]]) for _ in range(chance.choice((1, 100))))
    return document


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        yield (*path, key), each
        yield from _places(each, (*path, key))


def _by_byte(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + bytes([chance.randrange(256)]) + content[place + chance.randrange(3) :]


def _by_token(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(_TOKENS).encode("utf-8", errors="surrogatepass") + content[place:]


def _by_value(content: bytes, chance: random.Random) -> bytes:
    """Replace what stands behind a colon or an equals sign."""
    lines = content.split(b"\n")
    place = chance.randrange(len(lines))
    for mark in (b": ", b" = "):
        key, found, _ = lines[place].partition(mark)
        if found:
            value = json.dumps(chance.choice(_VALUES)).encode()
            lines[place] = key + mark + value + (b"," if lines[place].endswith(b",") else b"")
    return b"\n".join(lines)


def _by_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    line, place = chance.choice(lines), chance.randrange(len(lines) + 1)
    if chance.random() < 0.3:
        return b"\n".join(lines[: max(0, place - 1)] + lines[place:])
    return b"\n".join(
        [*lines[:place], *[b"  " * chance.randrange(3) + line] * chance.choice((1, 1, 200)), *lines[place:]]
    )


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def failures(
    reads: Callable[[bytes], object],
    texts: Mapping[str, str],
    seed: str,
    numbers: range,
    refusals: tuple[type[Exception], ...],
) -> list[str]:
    """Give every spoilt text to a reader, and return what went wrong: other errors than refusals, time and memory."""
    found: list[str] = []
    names = sorted(texts)
    for number in numbers:
        name = names[number % len(names)]
        content = spoilt(texts[name], number, seed)
        try:
            with _limited():
                reads(content)
        except refusals:
            pass
        except Exception as error:
            found.append(f"{seed} {number} ({name}): {type(error).__name__}: {str(error)[:200]}")
            if len(found) == 20:
                break
    return found


class TooMuch(Exception):
    """More time or memory than a hostile file may cost."""


@contextmanager
def _limited() -> Iterator[None]:
    seconds, kilobytes = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    seconds = time.process_time() - seconds
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kilobytes) * 1024
    if seconds > CPU_SECONDS or grown_bytes > MEMORY_BYTES:
        raise TooMuch(f"{seconds:.1f} s of processor time, {grown_bytes:,} bytes more")
