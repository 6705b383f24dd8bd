"""Trainyard: distributed training on Azure Machine Learning, declared, checked, rehearsed, and then paid for."""

__version__ = "0.1.0"

# In a job the steps' code is one archive on PYTHONPATH; elsewhere it is files.
_archive = getattr(__spec__.loader, "archive", None)
if _archive is not None:
    from trainyard.unpacking import run_from_archive

    run_from_archive(__path__, _archive)
