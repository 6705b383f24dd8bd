"""The kinds of failure that exit codes tell apart, by what CUDA reports."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from trainyard.steps.runtime.errors import (
    BUG_EXIT_CODE,
    DEVICE_EXIT_CODE,
    MEMORY_EXIT_CODE,
    STORAGE_EXIT_CODE,
    exit_code_of,
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # The texts of cudaGetErrorString, CUDA 13.
        ("uncorrectable ECC error encountered", DEVICE_EXIT_CODE),
        ("uncorrectable NVLink error detected during the execution", DEVICE_EXIT_CODE),
        ("hardware stack error", DEVICE_EXIT_CODE),
        ("CUDA-capable device(s) is/are busy or unavailable", DEVICE_EXIT_CODE),
        ("Invalid access of peer GPU memory over nvlink or a hardware error", DEVICE_EXIT_CODE),
        ("system not yet initialized", DEVICE_EXIT_CODE),
        ("out of memory", MEMORY_EXIT_CODE),
        ("device-side assert triggered", BUG_EXIT_CODE),
        ("an illegal memory access was encountered", BUG_EXIT_CODE),
        ("misaligned address", BUG_EXIT_CODE),
    ],
)
def test_only_faults_of_the_device_are_those_of_the_device(message: str, expected: int) -> None:
    assert exit_code_of(RuntimeError(f"CUDA error: {message}\nCUDA kernel errors might be reported later")) == expected
    assert exit_code_of(ValueError(message)) == BUG_EXIT_CODE, "a text in another error says nothing of the device"


def test_what_the_operating_system_reports_of_files_and_memory_has_its_kind() -> None:
    assert exit_code_of(OSError(errno.EIO, "Input/output error")) == STORAGE_EXIT_CODE
    assert exit_code_of(OSError(errno.ETIMEDOUT, "Connection timed out")) == STORAGE_EXIT_CODE
    assert exit_code_of(OSError(errno.ENOMEM, "Cannot allocate memory")) == MEMORY_EXIT_CODE
    # transformers raises one without a number for a model that is not there, which another start does not change.
    assert exit_code_of(OSError("Can't load the configuration of 'x'")) == BUG_EXIT_CODE


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EINVAL, "Invalid argument"),
        OSError(errno.EBADF, "Bad file descriptor"),
        OSError(errno.EPIPE, "Broken pipe"),
        OSError(errno.ECONNREFUSED, "Connection refused"),
        OSError(errno.EADDRINUSE, "Address already in use"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        # Its number is OpenSSL's, the same as that of an input/output error.
        ssl.SSLSyscallError(ssl.SSL_ERROR_SYSCALL, "EOF occurred in violation of protocol"),
    ],
    ids=lambda failure: str(failure.strerror),
)
def test_what_is_not_of_a_disk_or_mount_is_no_failing_storage(failure: OSError) -> None:
    """A mistake in code, which another start would repeat."""
    assert exit_code_of(failure) == BUG_EXIT_CODE
