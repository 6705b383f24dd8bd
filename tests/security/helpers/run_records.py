"""A run's record with every field that one can have."""

from __future__ import annotations

from typing import Any

RECORD: dict[str, Any] = {
    "format": "trainyard.run/1",
    "name": "good",
    "id": "good-0123456789ab",
    "pipeline": "digits",
    "pipeline_file": "/somewhere/pipelines/ddp.yaml",
    "started": "2026-11-20T10:00:00+00:00",
    "status": "failed",
    "commit": "0" * 40,
    "experiment": "digits",
    "duration_s": 12.5,
    "reason": "train failed",
    "inputs": {"epochs": 3, "data": "data", "nested": {"a": [1, 2]}},
    "outputs": {"model": "jobs/train/outputs/model"},
    "overrides": {"inputs.epochs": "3"},
    "max_processes": 4,
    "notes": ["a note"],
    "jobs": {
        "prepare": {
            "status": "completed",
            "component": "prepare_images",
            "command": "python -m prepare",
            "outputs": {"prepared": "jobs/prepare/outputs/prepared"},
            "logs": ["jobs/prepare/user_logs/std_log.txt"],
            "started": "2026-11-20T10:00:00+00:00",
            "duration_s": 2.0,
            "reused_from": "earlier",
        },
        "train": {
            "status": "failed",
            "component": "train_ddp",
            "depends_on": ["prepare"],
            "nodes": 2,
            "processes_per_node": 2,
            "distribution": "pytorch",
            "inputs": {"label_smoothing": 0.1, "data": "jobs/prepare/outputs/prepared"},
            "outputs": {"model": "jobs/train/outputs/model", "metrics": "jobs/train/outputs/metrics"},
            "logs": ["jobs/train/user_logs/std_log_process_0.txt"],
            "started": "2026-11-20T10:00:02+00:00",
            "duration_s": 10.0,
            "attempts": [
                {
                    "started": "2026-11-20T10:00:02+00:00",
                    "duration_s": 4.0,
                    "exit_codes": {"0": 1},
                    "reason": "killed",
                    "last_step": 3,
                    "lost_s": 1.5,
                }
            ],
            "error_lines": ["it broke"],
            "failed_rank": 0,
            "key_parts": {"code": "0"},
            "trials": [{"number": 0, "inputs": {"learning_rate": 0.1}, "metric": 0.5, "metric_name": "loss",
                        "status": "completed", "is_best": True}],
            "warnings": ["careful"],
        },
    },
}  # fmt: skip
