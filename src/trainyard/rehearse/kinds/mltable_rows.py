"""The rows of a table that a parallel job divides: its files, read and transformed as an MLTable says.

Loaded by its path, in the Python of the job's environment: it imports the standard library alone, and pandas when it
reads. https://learn.microsoft.com/azure/machine-learning/reference-yaml-mltable
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

READERS = ("read_delimited", "read_parquet", "read_json_lines")
# Python knows the other encodings by the names that an MLTable has for them.
_ENCODINGS = {"utf8bom": "utf-8-sig", "iso88591": "iso-8859-1", "windows1252": "cp1252"}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Not: operator.invert,
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def read_table(files: list[Path], source: Path, transformations: list[dict[str, Any]]) -> Any:
    """Return all rows as a pandas table, after the transformations of the MLTable, in their order."""
    import pandas

    reader = next((each["name"] for each in transformations if each["name"] in READERS), "")
    options: dict[str, Any] = next((each["options"] for each in transformations if each["name"] == reader), {})
    frames: list[Any] = []
    for file in files:
        first_columns = list(frames[0].columns) if frames else None
        frame = _read_file(file, reader, options, first_columns)
        if options.get("include_path_column"):
            frame["Path"] = "/" + file.relative_to(source).as_posix() if source.is_dir() else str(file)
        for each in transformations:
            if each["name"] == "extract_columns_from_partition_format":
                for name, value in columns_in_path(file, each["options"].get("partition_format")).items():
                    frame[name] = value
        frames.append(frame)
    table = pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
    for each in transformations:
        change = _CHANGES.get(each["name"])
        if change is not None:
            table = change(table, each["options"])
        elif each["name"] not in (*READERS, "extract_columns_from_partition_format"):
            raise SystemExit(f"error: unknown transformation in the MLTable: {each['name']}")
    return table


def _read_file(file: Path, reader: str, options: dict[str, Any], first_columns: list[str] | None) -> Any:
    import pandas

    if reader == "read_parquet" or (not reader and file.suffix == ".parquet"):
        return pandas.read_parquet(file)
    encoding = _ENCODINGS.get(str(options.get("encoding") or "utf8"), options.get("encoding"))
    if reader == "read_json_lines" or (not reader and file.suffix == ".jsonl"):
        return pandas.read_json(file, lines=True, encoding=encoding)
    header = options.get("header", "all_files_same_headers")
    is_named_before = header == "from_first_file" and first_columns is not None
    is_nameless = header in ("no_header", False)
    frame = pandas.read_csv(
        file,
        sep=options.get("delimiter", ","),
        encoding=encoding,
        header=None if is_nameless or is_named_before else 0,
        names=first_columns if is_named_before else None,
        dtype=str if options.get("infer_column_types") is False else None,
        keep_default_na=not options.get("empty_as_string", False),
    )
    if is_nameless:
        frame.columns = [f"Column{number}" for number in range(1, frame.shape[1] + 1)]
    return frame


def columns_in_path(file: Path, partition_format: str | None) -> dict[str, str]:
    """Return the columns that a file's path holds, by a format such as `/{Store}/{Brand}.parquet`."""
    if not partition_format:
        return {}
    parts = re.split(r"\{(\w+)(?::[^}]*)?\}", partition_format.lstrip("/"))
    pattern = "".join(f"(?P<{part}>[^/]+)" if at % 2 else re.escape(part) for at, part in enumerate(parts))
    match = re.search(rf"/{pattern}$", file.as_posix())
    return match.groupdict() if match else {}


def _kept_rows(table: Any, condition: Any) -> Any:
    """Return the rows for which a condition such as `col("age") > 40 and col("sex") == "F"` holds."""
    try:
        return table[_value(ast.parse(str(condition).strip(), mode="eval").body, table)].reset_index(drop=True)
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"error: the filter {condition!r} of the MLTable cannot be applied: {error!r}") from error


def _value(node: ast.AST, table: Any) -> Any:
    """The value of an expression over the columns of a table; nothing else can be named or called in it."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BoolOp):
        value = _value(node.values[0], table)
        for operand in node.values[1:]:
            value = _OPERATORS[type(node.op)](value, _value(operand, table))
        return value
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, table))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, table), _value(node.right, table))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS[type(node.ops[0])](_value(node.left, table), _value(node.comparators[0], table))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col":
        return table[_value(node.args[0], table)]
    raise ValueError(f"{ast.unparse(node)} is not known here")


def _sample(table: Any, options: dict[str, Any]) -> Any:
    share = float(options["probability"])
    return table.sample(frac=share, random_state=options.get("seed")).sort_index().reset_index(drop=True)


def _converted(table: Any, changes: Any) -> Any:
    """Return the table with columns of other types; a type is a name, or a mapping with the formats of a date."""
    import pandas

    table = table.copy()
    for change in changes if isinstance(changes, list) else [changes]:
        kind = change["column_type"]
        name, options = next(iter(kind.items())) if isinstance(kind, dict) else (kind, {})
        for column in _as_list(change["columns"]):
            if name == "datetime":
                formats = _as_list((options or {}).get("formats") or [])
                one = formats[0] if len(formats) == 1 else None
                table[column] = pandas.to_datetime(table[column], format=one, errors="coerce")
            elif name in ("int", "float"):
                numbers = pandas.to_numeric(table[column], errors="coerce")
                whole = "Int64" if numbers.isna().any() else "int64"
                table[column] = numbers.astype(whole if name == "int" else "float64")
            elif name == "boolean":
                table[column] = table[column].astype(str).str.lower().isin(["true", "yes", "1", "1.0"])
            else:
                table[column] = table[column].astype(str)
    return table


def _as_list(names: Any) -> list[Any]:
    return list(names) if isinstance(names, list) else [names]


_CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "filter": _kept_rows,
    "keep_columns": lambda table, names: table[_as_list(names)],
    "drop_columns": lambda table, names: table.drop(columns=_as_list(names)),
    "skip": lambda table, count: table.iloc[int(count) :].reset_index(drop=True),
    "take": lambda table, count: table.head(int(count)),
    "take_random_sample": _sample,
    "convert_column_types": _converted,
}
