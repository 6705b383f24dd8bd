"""Where data is: misspelt schemes, wildcards, files where folders are expected, and the other way."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintContext, LintedFile, check
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import one_slip_from
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Node, shorten
from trainyard.spec.parsed import is_address
from trainyard.spec.rule import Rule

_SCHEME = regex(r"([A-Za-z][A-Za-z0-9+.-]{2,}):(?!\\)")
# The addresses that Azure ML reads data from, and what is close to one of them is meant to be it.
_SCHEMES = ("azureml", "https", "http", "wasbs", "wasb", "abfss", "abfs", "adl", "file", "hdfs", "dbfs", "s3")
_MISSPELT_SCHEMES = frozenset(("azureml", "https", "wasbs", "abfss"))
# A local folder may be called `azureml`, but nobody writes two slashes after it.
_SCHEME_WITHOUT_COLON = regex(r"(azureml|https?|wasbs?|abfss?)(//)(?=[^/])", re.IGNORECASE)
# Blob Storage's addresses begin with the container, those of Data Lake Storage with the file system.
_NO_CONTAINER = regex(r"(wasbs?|abfss?)://([^/@]+\.(?:blob|dfs)\.core\.[^/@]+)(?:/|$)", re.IGNORECASE)
# Azure ML's data runtime reads Azure's storage and the web. A drive or a home folder is one machine's.
_OTHER_CLOUD = regex(r"(?:s3a?|gs|gcs)://", re.IGNORECASE)
_OWN_MACHINE = regex(r"[A-Za-z]:[\\/]|~[\\/]|(?:file://)?/(?:home|Users)/[^/]+/")
_SINGLE_SLASH = regex(r"(azureml|https?|wasbs?|abfss?):/(?![/]|subscriptions/)", re.IGNORECASE)
_WILDCARD = regex(r"[*?]|\[[^\[\]]+\]")
# A name's ending that is a file's, not a version's or a folder's.
_FILE_ENDING = regex(
    r"\.(?:csv|tsv|parquet|json|jsonl|txt|zip|gz|npy|npz|pkl|h5|jpg|jpeg|png|xlsx?|onnx|pt|pth)$", re.I
)
_DATASTORE = regex(r"azureml:/+(?:subscriptions/.*/)?datastores/[^/]+/paths/.*", re.IGNORECASE)


class Data(NamedTuple):
    """An input or output with a path."""

    path: Node
    type: str
    is_input: bool


DATA_PATH = Rule("AML415", "data-path", "warning").explained(
    summary="A path of data is misspelt, has a wildcard, or is not what its type says.",
    why="A uri_file is one file, a uri_folder a folder, and neither takes a wildcard: that is for an MLTable. The "
    "client takes a misspelt `azurml:` for a folder of that name. Addresses of storage are "
    "`wasbs://CONTAINER@ACCOUNT.blob.core.windows.net/PATH` and `abfss://FILE_SYSTEM@ACCOUNT.dfs.core.windows.net/PATH`.",
)


@check("file")
def _data_path(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for data in data_in(file):
        if data.path.text and "{{" not in data.path.text:
            problem = _wrong_address(data.path.text)
            if problem is not None:
                yield DATA_PATH.at(data.path.span, *problem, severity="error")
            elif (doubt := _doubtful_path(data, file)) is not None:
                yield DATA_PATH.at(data.path.span, *doubt)


def _wrong_address(text: str) -> tuple[str, str] | None:
    """What is wrong with an address, and what to write; None if nothing is."""
    if text.startswith("azureml://"):
        return None
    scheme = _SCHEME.match(text)
    meant = _meant_scheme(scheme[1]) if scheme is not None else None
    if meant is not None and scheme is not None:
        return f"'{scheme[1]}:' is not a scheme of data", f"Write {shorten(meant + text[len(scheme[1]) :])}."
    if (without_colon := _SCHEME_WITHOUT_COLON.match(text)) is not None:
        right = f"{without_colon[1]}:{text[without_colon.start(2) :]}"
        return f"'{without_colon[1]}//' has no colon, so that this is a local path", f"Write {shorten(right)}."
    if (address := _NO_CONTAINER.match(text)) is not None:
        what = "container" if address[1].lower().startswith("w") else "file system"
        hint = f"Write {address[1]}://{what.upper().replace(' ', '_')}@{address[2]}/…"
        return f"this address names a storage account, but no {what}", hint
    if (single := _SINGLE_SLASH.match(text)) is not None:
        right = f"{single[1]}://{text[single.end() :]}"
        return f"two slashes follow '{single[1]}:' in an address", f"Write {shorten(right)}."
    return None


def _doubtful_path(data: Data, file: LintedFile) -> tuple[str, str] | None:
    """Why a path hardly leads to the data, and what to do; None if it may."""
    text = data.path.text
    is_local, is_own_machine = not is_address(text), _OWN_MACHINE.match(text) is not None
    if file.kind != "asset" and _OTHER_CLOUD.match(text) is not None:
        message = f"Azure ML does not read {text.partition(':')[0]}: addresses"
        return message, "Copy the data to a datastore, or import it through a connection."
    if is_own_machine:
        message = f"'{shorten(text)}' exists on one machine only"
        return message, "Name it relative to this file, or upload it to a datastore."
    if "\\" in text and is_local:
        right = text.replace("\\", "/")
        return "a backslash separates folders on Windows only", f"Write {shorten(right)}."
    if not data.is_input and is_local:
        message = f"an output is in a datastore, and '{shorten(text)}' is a path of this machine"
        return message, "Remove it, or write azureml://datastores/NAME/paths/…"
    # A question mark in an address begins its query, and all that is beneath a folder is the folder.
    path = text.removesuffix("/**").split("?")[0] if "://" in text else text
    if _WILDCARD.search(path) is not None and data.type in ("uri_file", "uri_folder"):
        message = f"a {data.type} takes no wildcard, and this is read as it is"
        return message, "Name the folder, or use an MLTable with a pattern."
    return _other_type(data, file) if data.is_input else None


def data_in(file: LintedFile) -> Iterator[Data]:
    """The data that a file names: the inputs and outputs of jobs and pipelines, and what an asset consists of."""
    if file.kind not in ("pipeline", "command_job", "sweep_job", "other_job", "asset"):
        return
    if file.kind == "asset":
        path = file.root.find_text("path")
        if path is not None:
            yield Data(path, file.root.word("type"), True)
        return
    for holder in file.jobs:
        for key in ("inputs", "outputs"):
            for entry in holder.entries_of(key).values():
                path = entry.value.find_text("path")
                if path is not None:
                    yield Data(path, entry.value.word("type"), key == "inputs")


def _meant_scheme(scheme: str) -> str | None:
    """The scheme that a misspelt one is; None for a known one, and for what is nothing like one."""
    lowered = scheme.lower()
    if lowered in _SCHEMES:
        return None
    return one_slip_from(lowered, _MISSPELT_SCHEMES)


def _other_type(data: Data, file: LintedFile) -> tuple[str, str] | None:
    """A local path that exists and is of the other type, or a datastore's whose ending says so."""
    text, local = data.path.text, None
    if not is_address(text):
        local = Path(os.path.normpath(file.document.file.parent / text.removeprefix("file:")))
    is_file, is_folder = local is not None and os.path.isfile(local), local is not None and os.path.isdir(local)
    if data.type == "uri_file" and (text.endswith("/") or is_folder):
        return "a uri_file is one file, and this is a folder", "Write type: uri_folder."
    names_a_file = _DATASTORE.fullmatch(text) is not None and _FILE_ENDING.search(text) is not None
    if data.type == "uri_folder" and (names_a_file or is_file):
        return "a uri_folder is a folder, and this is a file", "Write type: uri_file."
    if data.type in ("mltable", "mlflow_model") and is_file:
        holds = "a file 'MLTable'" if data.type == "mltable" else "a file 'MLmodel'"
        return f"an {data.type} is a folder with {holds}, and this is a file", "Name the folder."
    if data.type == "mltable" and is_folder and local is not None and not os.path.isfile(local / "MLTable"):
        return "an mltable is a folder with a file 'MLTable', and this has none", ""
    return None
