"""What the client sends for the pipelines of a profile, in a form that every submission of the same files shares.

After a deliberate change of templates, of steps' settings or of the client's version, write the golden files again:

    python tests/azure_client/helpers/golden_bodies.py && git diff tests/azure_client/golden
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lean_project import ROOT, lean_project
from loopback_azure import GROUP, SUBSCRIPTION, WORKSPACE, WORKSPACE_PATH, LoopbackAzure, Request

from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write

PROFILES = ("t4", "nd96")


def golden_file(profile: str) -> Path:
    """Return the file that holds what is sent for a profile."""
    return ROOT / "tests" / "azure_client" / "golden" / f"{profile}.json"


@dataclass(frozen=True)
class SentPipeline:
    """The job that was sent for a pipeline, its components by the paths they were sent to, and its environments."""

    job: dict[str, Any]
    components: dict[str, Request]
    environments: list[Request]


def send_pipeline(loaded: Any, azure: LoopbackAzure, client: Any) -> SentPipeline:
    """Submit a pipeline that the client has loaded."""
    before = len(azure.requests)
    client.jobs.create_or_update(loaded)
    sent = [request for request in azure.requests[before:] if request.method == "PUT"]
    (job,) = (request.json for request in sent if "/jobs/" in request.path)
    return SentPipeline(
        job,
        {request.path: request for request in sent if "/components/" in request.path},
        [request for request in sent if "/environments/" in request.path],
    )


def bodies_of(pipelines: Mapping[str, SentPipeline]) -> dict[str, Any]:
    """Return the bodies of jobs, components and environments that were sent for pipelines, without what differs.

    Ids that the client draws or derives from digests are replaced; descriptions and the commit are left out.
    """
    jobs: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for name, sent in pipelines.items():
        jobs[name] = {**sent.job, "properties": {**sent.job["properties"], "properties": {}}}
        ids = {job: component_id(node) for job, node in sent.job["properties"]["jobs"].items()}
        components |= {job: sent.components[path].json for job, path in ids.items()}
    environments = [request.json for sent in pipelines.values() for request in sent.environments]
    unique = {json.dumps(each): each for each in environments}
    found = {"jobs": jobs, "components": components, "environments": list(unique.values())}
    return dict(json.loads(_without_drawn_ids(json.dumps(_without_descriptions(found)))))


def component_id(node: dict[str, Any]) -> str:
    """The id of the component that a job of a sent pipeline runs; a sweep runs that of its trials."""
    found: str = node.get("trial", node)["componentId"]
    return found


def _without_descriptions(value: Any) -> Any:
    """Return a body without its texts for people, which say nothing of the client."""
    if isinstance(value, dict):
        return {
            key: _without_descriptions(each)
            for key, each in value.items()
            if not (key == "description" and isinstance(each, str))
        }
    return [_without_descriptions(each) for each in value] if isinstance(value, list) else value


def _without_drawn_ids(text: str) -> str:
    text = text.replace(WORKSPACE_PATH, "WORKSPACE")
    text = re.sub(r"codes/[0-9a-f-]{36}/versions/1", "codes/SNAPSHOT", text)
    text = re.sub(r"(azureml_anonymous/versions)/[0-9a-f-]{36}", r"\1/DIGEST", text)
    text = re.sub(r"(CliV2AnonymousEnvironment/versions)/[0-9a-f]{32,64}", r"\1/DIGEST", text)
    return re.sub(r"LocalUpload/[0-9a-f]{32,64}", "LocalUpload/DIGEST", text)


def main() -> None:
    """Write the golden files again."""
    from azure.ai.ml import MLClient, load_job
    from azure.identity import DefaultAzureCredential

    for profile in PROFILES:
        with tempfile.TemporaryDirectory() as folder, LoopbackAzure(Path(folder)) as azure:
            os.environ.update(azure.variables)
            project = Project(lean_project(Path(folder) / "project"))
            rendered = Path(folder) / "rendered"
            write(project, render(project, profile, {}, rendered))
            client = MLClient(
                DefaultAzureCredential(), SUBSCRIPTION, GROUP, WORKSPACE, enable_telemetry=False, show_progress=False
            )
            files = sorted((rendered / "pipelines").glob("*.yaml"))
            sent = {file.stem: send_pipeline(load_job(file), azure, client) for file in files}
            text = json.dumps(bodies_of(sent), indent=1, sort_keys=True)
        golden_file(profile).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
