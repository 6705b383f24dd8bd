"""Packages that a step asks for before it does anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.steps.runtime.errors import SetupError
from trainyard.steps.runtime.imports import from_extra, require_packages


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import a_package_that_nobody_has", "train needs the package a_package_that_nobody_has; pip install"),
        ("from json import something_newer", "train cannot import framework 1.2, which does not fit the packages"),
        (
            "import json; json.something_older",
            "has no attribute 'something_older'); pip install \"trainyard-azureml[extra]\"",
        ),
        ("raise ValueError('numpy.dtype size changed')", "which does not fit the packages installed beside it (numpy"),
        ("import ctypes; ctypes.CDLL('libmpi.so.0')", "(libmpi.so.0: cannot open shared object file"),
    ],
)
def test_a_package_that_is_missing_or_does_not_fit_the_others_is_one_line(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "framework.py").write_text(code)
    (tmp_path / "framework-1.2.dist-info").mkdir()
    (tmp_path / "framework-1.2.dist-info" / "METADATA").write_text("Name: framework\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SetupError) as caught:
        require_packages("train", from_extra("extra"), "framework")

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
