"""A Spark session: what it needs, this package for its executors, and their errors in one line."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trainyard
from trainyard.settings.files import describe_os_error
from trainyard.steps.data.text.text_source import TextFile
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.imports import from_extra, require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

NumberedFile = tuple[int, TextFile]
"""A file, and its place among all files of the source."""

_STEP_ERROR = re.compile(rf"{re.escape(StepError.__module__)}\.(?:Step|Setup)Error: (.*)")
_FOR_EXECUTORS = ("__init__.py", "unpacking.py", "settings", "steps")


def require_spark() -> None:
    """Raise SetupError where pyspark or Java is missing."""
    require_packages("prepare_text_spark", from_extra("spark"), "pyspark")
    home = os.environ.get("JAVA_HOME")
    if _started_by_java() or (home and shutil.which("java", path=f"{home}/bin")) or shutil.which("java"):
        return
    where = f"JAVA_HOME={home} and the PATH have none" if home else "JAVA_HOME is not set, and the PATH has none"
    raise SetupError(f"prepare_text_spark needs Java 8, 11 or 17, and {where}; install a JRE, or set JAVA_HOME")


@contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """Start a session, or join the one that spark-submit asks for, whose executors can import Trainyard.

    What a task raised as StepError or because of a file is raised here as StepError.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not _started_by_java():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else tasks run with any python3 of the PATH
    builder = SparkSession.builder.appName("prepare_text_spark")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    if session.sparkContext.master.startswith("local"):
        session.sparkContext.setLogLevel("OFF")  # a page of Java's frames for each error, which is raised here too
    try:
        session.sparkContext.addPyFile(str(_archive(scratch / "trainyard.zip")))
        yield session
    except (Py4JJavaError, PySparkException) as failure:
        found = _STEP_ERROR.search(str(failure))
        if found is None:
            raise
        raise StepError(found[1]) from None
    finally:
        session.stop()


def as_task(function: Callable[[Iterable[Item]], Iterator[Result]]) -> Callable[[Iterable[Item]], Iterator[Result]]:
    """Return the function with errors of files and packages as StepError, which `spark_session` finds in Spark's."""

    def task(items: Iterable[Item]) -> Iterator[Result]:
        try:
            yield from function(items)
        except ImportError as failure:
            raise StepError(f"a machine of the cluster lacks the package {failure.name}: {failure}") from None
        except OSError as failure:
            raise StepError(describe_os_error(failure)) from None

    return task


def _started_by_java() -> bool:
    """Whether spark-submit started this process, which then has Java and knows the executors' Python."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _archive(file: Path) -> Path:
    """Return an archive of what executors import of Trainyard: the one that this code is from, else a new one."""
    own_archive = getattr(trainyard.__spec__.loader, "archive", None)
    if own_archive is not None:
        return Path(own_archive)
    package = Path(trainyard.__file__).parent
    with zipfile.ZipFile(file, "w") as archive:
        for part in _FOR_EXECUTORS:
            for source in sorted([package / part, *(package / part).rglob("*.py")]):
                if source.suffix == ".py":
                    archive.write(source, Path("trainyard") / source.relative_to(package))
    return file
