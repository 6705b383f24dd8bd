"""A `python` whose modules and scripts start in a moment: forked from a process that has imported torch and others.

For tests that run whole pipelines, which otherwise spend most of their time on imports. Trainyard itself is not
imported before: `python` takes it from where the job runs, in a process of its own, with the variables, folder,
output, signals and end of the process that was started. What that starts with `sys.executable` is forked as well.
tests/cli/test_new_project.py starts Python itself too. One server, which tests/conftest.py starts, serves all workers
of a run; it imports once somebody asks, and ends with the process that started it, however that ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

OF_STEPS = (
    "deepspeed",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow",
    "mlflow.pyfunc",
    "mlflow.store.tracking.file_store",
    "peft",
    "safetensors.torch",
    "sklearn.datasets",
    "tokenizers",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.convnext.modeling_convnext",
    "transformers.models.llama.modeling_llama",
)
"""What one step or another imports."""
_PACKAGE = Path(__file__).parents[3] / "src" / "trainyard"
"""A job's snapshot holds a copy of its steps, their settings and the modules beside them."""
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
"""pyarrow, which mlflow imports, and OpenBLAS start threads that are not needed."""
PLACE_FOR_VARIABLES = {"SPACE_FOR_VARIABLES_OF_A_RANK": " " * 200}
"""In the server's environment, where forked_ranks.py writes the variables of a rank."""
_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "DS_ACCELERATOR": "cpu"}
"""On a busy machine a rank may end a moment after rank 0, and torch warns that the store there is gone.

DeepSpeed would say which accelerator it has found.
"""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when its parent dies."""
_SHARED = "FORKED_PYTHON"


def share(server: ForkedPython) -> None:
    """Let this process and those that it starts use a server."""
    os.environ[_SHARED] = str(server.python)


def shared_python() -> Path:
    """The `python` of this test run, once it has imported everything: no test's time limit counts that."""
    python = Path(os.environ[_SHARED])
    _wait_for_imports(python)
    return python


def _wait_for_imports(python: Path) -> None:
    subprocess.run([python, "-m", "site"], stdout=subprocess.DEVNULL, check=True)


class ForkedPython:
    """The server that forks, and the `python` that asks it. A context manager: nothing outlives it.

    `python` may be that of another environment, and `modules` are what has been imported.
    """

    def __init__(self, folder: Path, python: Path = Path(sys.executable), *, modules: Sequence[str] = OF_STEPS) -> None:
        self.python = folder / "python"
        address = folder / "socket"
        client = [
            str(python),
            "-IS",
            str(Path(__file__).with_name("forked_python_client.py")),
            str(address),
            str(python),
        ]
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        self.python.chmod(0o755)
        self._process = subprocess.Popen(
            [python, __file__, str(address), str(self.python), *modules],
            env={**os.environ, **_WITHOUT_THREADS, **_QUIET, **PLACE_FOR_VARIABLES},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests, which end it
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the server has ended"

    def __enter__(self) -> ForkedPython:
        _wait_for_imports(self.python)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and with it what still runs."""
        self._process.kill()
        self._process.wait()


def _serve(address: str, executable: str, *modules: str) -> None:
    """Fork a process for each connection, until the standard input or the process that started this one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.executable = executable
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(address)
        listener.listen()
        selector.register(sys.stdin, selectors.EVENT_READ, sys.exit)
        selector.register(listener, selectors.EVENT_READ, partial(_start, listener, selector))
        print("ready", flush=True)
        selector.select()  # nothing is imported before somebody asks
        gc.disable()
        for name in modules:
            __import__(name)
        if modules == OF_STEPS:
            _prepare()
        gc.freeze()  # no process that is forked looks for garbage in what has been imported, nor copies it for that
        gc.enable()
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"{threads} threads: forking would lose all but one"
        assert "trainyard" not in sys.modules, "a step takes Trainyard from where it runs"
        while True:
            for key, _ in selector.select():
                react: Callable[[], None] = key.data
                react()


def _prepare() -> None:
    """Do once what each job would do again, with the same result.

    Transformers compiles patterns for the names of weights, and mlflow lists the modules of every package. A job takes
    Trainyard from a copy of its own, without compiled files, and so would compile every module.
    """
    from mlflow.utils.requirements_utils import _init_modules_to_packages_map
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("llama")
    _init_modules_to_packages_map()
    compiled = {}
    for pattern in ("*.py", "settings/**/*.py", "steps/**/*.py"):
        for file in _PACKAGE.glob(pattern):
            source = file.read_bytes()
            compiled[source] = compile(source, file, "exec", dont_inherit=True)

    compile_source = SourceFileLoader.source_to_code

    def source_to_code(loader: SourceFileLoader, data: bytes, path: str, **options: Any) -> CodeType:
        if data in compiled:
            return _renamed(compiled[data], path)
        return compile_source(loader, data, path, **options)

    SourceFileLoader.source_to_code = source_to_code


def _renamed(code: CodeType, path: str) -> CodeType:
    """The code of a file as if it were in another."""
    constants = (_renamed(each, path) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(constants))


def _start(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    connection, _ = listener.accept()
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        text = stream.read(int.from_bytes(length, "big"))
    if not length or len(text) < int.from_bytes(length, "big"):  # the client has been killed meanwhile
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        return
    request = json.loads(text)
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_program(server, descriptors, **request)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    selector.register(connection, selectors.EVENT_READ, partial(_pass_on_signal, connection, selector, pid))
    selector.register(ended, selectors.EVENT_READ, partial(_report_end, connection, selector, pid, ended))


def _pass_on_signal(connection: socket.socket, selector: selectors.BaseSelector, pid: int) -> None:
    number = connection.recv(1)
    if not number:  # the client has been killed
        selector.unregister(connection)
    os.kill(pid, number[0] if number else signal.SIGKILL)


def _report_end(connection: socket.socket, selector: selectors.BaseSelector, pid: int, ended: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(KeyError):
        selector.unregister(connection)
    with suppress(BrokenPipeError), connection:
        connection.sendall(status.to_bytes(8, "big"))
    selector.unregister(ended)
    os.close(ended)


def _become_program(
    server: int, descriptors: list[int], arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Do as `python -m MODULE` or `python SCRIPT` does, to the end of the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # the server ended before this process began
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[1:] = arguments
    is_module = arguments[0] == "-m"
    sys.argv[:] = arguments[is_module:]
    first = "" if is_module else os.path.dirname(os.path.abspath(arguments[0]))
    sys.path[:1] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"] = ModuleType("__main__")  # the program's, which exit handlers may clear
    exit_code: object = 1
    try:
        if "TRAINYARD_WITHOUT_GPUS" in environment:
            _stand_in_for_gpus(int(environment["TRAINYARD_WITHOUT_GPUS"]))
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
        exit_code = 0
    except SystemExit as ended:
        exit_code = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # Python would also take down every imported module, which takes seconds.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(exit_code if isinstance(exit_code, int) else 1)


def _stand_in_for_gpus(devices: int) -> None:
    """Do what `trainyard run --without-gpus` does as PyTorch is imported, which it has been."""
    from torch_without_gpus import stand_in_for_cuda, stand_in_for_fsdp

    stand_in_for_cuda(devices)
    stand_in_for_fsdp(sys.modules["torch.distributed.fsdp.fully_sharded_data_parallel"])


if __name__ == "__main__":
    _serve(*sys.argv[1:])
