"""What the client sends for the pipelines of a profile, in a form that every submission of the same files shares.

After a deliberate change of templates, of steps' settings or of the client's version, write the golden files again:

    python tests/azure_client/helpers/golden_bodies.py && git diff tests/azure_client/golden
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from loopback_azure import GROUP, SUBSCRIPTION, WORKSPACE, WORKSPACE_PATH, LoopbackAzure

from trainyard.author.project import Project
from trainyard.author.rendering import render
from trainyard.author.writing import write

ROOT = Path(__file__).resolve().parents[3]
PROFILES = ("t4", "nd96")


def golden_file(profile: str) -> Path:
    """Return the file that holds what is sent for a profile."""
    return ROOT / "tests" / "azure_client" / "golden" / f"{profile}.json"


def bodies_of(rendered: Path, azure: LoopbackAzure, client: Any) -> dict[str, Any]:
    """Submit every rendered pipeline; return the bodies of jobs, components and environments, without what differs.

    Ids that the client draws or derives from digests are replaced; descriptions and the commit are left out.
    """
    from azure.ai.ml import load_job

    jobs: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for file in sorted((rendered / "pipelines").glob("*.yaml")):
        client.jobs.create_or_update(load_job(file))
        job = azure.sent("PUT", "/jobs/")[-1].json
        job["properties"]["properties"] = {}
        jobs[file.stem] = job
        sent = {request.path: request.json for request in azure.sent("PUT", "/components/")}
        components |= {name: sent[component_id(each)] for name, each in job["properties"]["jobs"].items()}
    environments = [request.json for request in azure.sent("PUT", "/environments/")]
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
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential

    project = Project(ROOT)
    for profile in PROFILES:
        with tempfile.TemporaryDirectory() as folder, LoopbackAzure(Path(folder)) as azure:
            os.environ.update(azure.variables)
            rendered = Path(folder) / "rendered"
            write(project, render(project, profile, {}, rendered))
            client = MLClient(
                DefaultAzureCredential(), SUBSCRIPTION, GROUP, WORKSPACE, enable_telemetry=False, show_progress=False
            )
            text = json.dumps(bodies_of(rendered, azure, client), indent=1, sort_keys=True)
        golden_file(profile).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
