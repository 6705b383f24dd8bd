"""The script that builds Horovod, where what it needs is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "environments" / "trainyard-horovod" / "build_horovod.sh"


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (("g++", "cmake"), "mpicxx"),
        (("mpicxx",), "g++ cmake"),
        ((), "g++ cmake mpicxx"),
        (("g++", "cmake", "mpicxx"), "mpi.h"),
    ],
)
def test_without_mpi_or_a_compiler_it_is_one_line_before_anything_is_downloaded(
    tmp_path: Path, present: tuple[str, ...], missing: str
) -> None:
    for program in present:
        (tmp_path / program).symlink_to("/bin/false")  # it finds no header
    python = shutil.which("false")  # a Python without Horovod
    ended = subprocess.run(
        ["/bin/bash", SCRIPT, str(python)], capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)}
    )

    assert ended.returncode == 2
    assert ended.stderr == (
        f"error: building Horovod needs {missing}; on Debian and Ubuntu: apt install g++ cmake libopenmpi-dev "
        "openmpi-bin\n"
    )
