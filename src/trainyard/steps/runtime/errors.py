"""How a step ends without success: with an error that its user can fix, or because it was asked to stop."""

from __future__ import annotations

import errno
import re

STOPPED_EXIT_CODE = 75
"""The exit code of a training that was asked to stop and committed a checkpoint: start the same command again.

The number is EX_TEMPFAIL of sysexits.h, a temporary failure.
"""

LOST_EXIT_CODE = 69
"""The exit code of a watched worker whose connection to another rank was lost: EX_UNAVAILABLE of sysexits.h."""
BUG_EXIT_CODE, DEVICE_EXIT_CODE, STORAGE_EXIT_CODE, MEMORY_EXIT_CODE = 70, 71, 74, 79
"""Those of one that an unexpected exception ended, with a fault of its device, files that could not be read or written,
or too little memory as special cases.

The first three are EX_SOFTWARE, EX_OSERR and EX_IOERR of sysexits.h, whose numbers end at 78. Without a watcher all are
1.
"""
USER_OS_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors of the file system that a user can fix: a full disk, a read-only output, an impossible path."""
_STORAGE_ERRORS = ("EIO", "ESTALE", "EREMOTEIO", "ENOTCONN", "EHOSTDOWN", "ETIMEDOUT", "ENODEV", "ENXIO", "EUCLEAN")
"""Those of a disk or mount that fails. Not every platform has all."""
_DEVICE_FAULTS = (
    "uncorrectable",
    "hardware stack error",
    "busy or unavailable",
    "Invalid access of peer GPU memory",
    "system not yet initialized",
)
"""In messages of CUDA's errors for which another start may help: cudaError_t in the documentation of its runtime. Not
among them are failed assertions and illegal addresses, which are mistakes in code that happen again."""
_OUT_OF_MEMORY = re.compile(
    "|".join(
        (
            # Main memory, c10/core/impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory: you tried to …"
            "can't allocate memory",
            # A call of CUDA's runtime or driver (cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY), HIP's likewise:
            # c10/cuda/CUDAException.cpp, "CUDA error: out of memory"; ROCm builds say HIP.
            "(?:CUDA|HIP|CUDA driver) error: out of memory",
            # Handles and workspaces of the libraries, at::cuda::blas::_cublasGetErrorEnum and its like:
            # "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            r"\b(?:CUBLAS|HIPBLAS|CUSPARSE|CUSOLVER|CUDNN)_STATUS_(?:INTERNAL_ERROR_DEVICE_)?ALLOC(?:ATION)?_FAILED\b",
            # NCCL's buffers: "ncclUnhandledCudaError: … Last error: Cuda failure 2 'out of memory'", its checks.h;
            # before NCCL 2.20 without the number.
            r"Cuda failure (?:\d+ )?'out of memory'",
        )
    )
)
"""What torch raises as RuntimeError where memory is exhausted, though not in its own allocator of GPU memory."""


class StepError(ValueError):
    """A mistake in what the step was given, or in the machine beneath it. A step reports it in one line, which says
    how to fix it, without a traceback."""

    exit_code = 1
    watched_exit_code: int | None = None
    """Of a watched worker, if it is another one."""


class LostConnection(StepError):
    """Another rank is gone, or does not answer: this one is not to blame."""

    watched_exit_code = LOST_EXIT_CODE


class StorageError(StepError):
    """A file could not be read or written because a disk or mount fails, perhaps only for now."""

    watched_exit_code = STORAGE_EXIT_CODE


class SetupError(StepError):
    """What a step runs in is not what it needs: a package is missing, or launchers contradict each other."""

    exit_code = 2


def exit_code_of(failure: BaseException) -> int:
    """Return the exit code of a watched worker that an unexpected exception ends."""
    if is_out_of_memory(failure):
        return MEMORY_EXIT_CODE
    if isinstance(failure, OSError) and is_of_storage(failure):
        return STORAGE_EXIT_CODE
    is_fault = isinstance(failure, RuntimeError) and any(words in str(failure) for words in _DEVICE_FAULTS)
    return DEVICE_EXIT_CODE if is_fault else BUG_EXIT_CODE


def is_of_storage(failure: OSError) -> bool:
    """Return whether a disk or mount fails, for which another start may help."""
    # The numbers of subclasses such as gaierror and SSLError are not the system's.
    return type(failure) in (OSError, TimeoutError) and errno.errorcode.get(failure.errno or 0) in _STORAGE_ERRORS


def is_out_of_memory(failure: BaseException) -> bool:
    """Return whether an error says that a GPU's or the machine's memory is exhausted; torch may not be imported."""
    if isinstance(failure, OSError) and failure.errno == errno.ENOMEM:
        return True
    if isinstance(failure, MemoryError) or "OutOfMemoryError" in (base.__name__ for base in type(failure).__mro__):
        return True
    return isinstance(failure, RuntimeError) and _OUT_OF_MEMORY.search(str(failure)) is not None


def first_line(failure: BaseException) -> str:
    """Return the first line of an error's message that is not empty; its type where there is none."""
    return next((line for line in str(failure).splitlines() if line.strip()), type(failure).__name__)
