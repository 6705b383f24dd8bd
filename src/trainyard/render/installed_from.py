"""Where this Trainyard was installed from, as a requirement that pip can fulfil on another machine.

PEP 610: pip notes the address of what was not installed from an index in `direct_url.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

from trainyard import __version__
from trainyard.git import NoGit, ask_git
from trainyard.resources import DISTRIBUTION

WHEELS = "wheels"
"""The folder of a project with a wheel of Trainyard, where it was installed from one."""

_TO_FILL_IN = "git+https://FILL-IN.invalid/trainyard@COMMIT"
_SCP_LIKE = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+):(?!//)(?P<path>[^\s]+)")
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class InstalledFrom:
    """Where Trainyard is from: a version of an index, an address, or a wheel. `problem` says why none is known."""

    address: str = ""
    wheel: Path | None = None
    problem: str = ""

    def requirement(self, extra: str = "") -> str:
        """Return the line for pip, with an extra."""
        extras = f"[{extra}]" if extra else ""
        if self.wheel is not None:
            return f"./{WHEELS}/{self.wheel.name}{extras}"
        if self.problem:
            return f"{DISTRIBUTION}{extras} @ {_TO_FILL_IN}"
        return f"{DISTRIBUTION}{extras} @ {self.address}" if self.address else f"{DISTRIBUTION}{extras}=={__version__}"


def installed_from() -> InstalledFrom:
    """Return where this Trainyard was installed from."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return InstalledFrom(problem="it is not installed")
    return InstalledFrom() if text is None else from_direct_url(json.loads(text))


def from_direct_url(noted: Mapping[str, Any]) -> InstalledFrom:
    """Return what `direct_url.json` says: a repository and its commit, an archive, or a folder."""
    url = without_password(str(noted["url"]))
    folder = f"#subdirectory={noted['subdirectory']}" if "subdirectory" in noted else ""
    is_local = url.startswith("file:")
    if "vcs_info" in noted and not is_local:
        return InstalledFrom(f"{noted['vcs_info']['vcs']}+{url}@{noted['vcs_info']['commit_id']}{folder}")
    path = Path(url2pathname(urlsplit(url).path))
    if "dir_info" in noted:
        return _from_checkout(path)
    if "archive_info" in noted and not is_local:
        return InstalledFrom(url)
    if path.suffix == ".whl" and path.is_file():
        return InstalledFrom(wheel=path)
    return InstalledFrom(problem=f"it was installed from {path}, which other machines do not have")


def _from_checkout(folder: Path) -> InstalledFrom:
    """Return the remote and the commit of a checkout, if its remote has that commit and nothing was changed since."""
    where = f"it was installed from {folder}"
    try:
        commit = ask_git(folder, "rev-parse", "HEAD")
        top = ask_git(folder, "rev-parse", "--show-prefix")
        remote = ask_git(folder, "config", "--get", "remote.origin.url")
        changes = ask_git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
        known_to = ask_git(folder, "for-each-ref", "--contains", "HEAD", "--count=1", "refs/remotes/origin/")
    except NoGit:
        return InstalledFrom(problem=f"{where}, and git is not on the PATH")
    shown = commit.text[:_SHOWN_DIGITS]
    if not commit.succeeded:
        return InstalledFrom(problem=f"{where}, which is not a git repository")
    address = _pip_address(remote.text)
    if address is None:
        return InstalledFrom(problem=f"{where}, whose remote 'origin' is not an address that other machines reach")
    if changes.text:
        return InstalledFrom(problem=f"{where}, which has changes that are in no commit")
    if not known_to.text:
        return InstalledFrom(problem=f"{where}, whose commit {shown} was not pushed to 'origin'")
    subfolder = f"#subdirectory={top.text.rstrip('/')}" if top.text else ""
    return InstalledFrom(f"git+{address}@{commit.text}{subfolder}")


def _pip_address(remote: str) -> str | None:
    """Return a remote as pip takes it; None for one on this machine, or none at all."""
    if (match := _SCP_LIKE.fullmatch(remote)) is not None:
        user = f"{match['user']}@" if match["user"] else ""
        return f"ssh://{user}{match['host']}/{match['path']}"
    is_remote = urlsplit(remote).scheme in ("https", "http", "ssh", "git")
    return without_password(remote) if is_remote else None


def without_password(url: str) -> str:
    """Return an address without a password or token: this one is committed."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user, _, host = parts.netloc.rpartition("@")
    kept = f"{user.partition(':')[0]}@" if parts.scheme in ("ssh", "git+ssh") else ""
    return urlunsplit(parts._replace(netloc=kept + host))
