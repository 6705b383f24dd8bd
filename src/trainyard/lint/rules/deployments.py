"""Endpoints and deployments: traffic that does not add up, settings that contradict each other, scoring scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator

from trainyard.lint.checks import LintContext, LintedFile, check, exceeds, known_words
from trainyard.lint.rules.parallel_steps import without_results, wrong_entry_script
from trainyard.settings.suggestions import only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Node, shorten
from trainyard.spec.literals import whole_number
from trainyard.spec.other_files import scoring_code
from trainyard.spec.rule import Rule
from trainyard.spec.rules import MISSING_KEY, OUT_OF_BOUNDS, UNKNOWN_KEY

_DEPLOYMENTS = ("online_deployment", "batch_deployment")
# https://learn.microsoft.com/azure/machine-learning/how-to-manage-quotas
_LONGEST_REQUEST_MS = 180_000
_SHORTEST_REQUEST_MS = 100
_PIPELINE_SETTINGS = ("default_compute", "default_datastore", "continue_on_step_failure", "force_rerun")


ENDPOINT_TRAFFIC = Rule("AML329", "endpoint-traffic", "error").explained(
    summary="The traffic of an endpoint does not add up.",
    why="The percentages of `traffic` sum to 0 or 100; Azure ML's client refuses more. `mirror_traffic` has one "
    "deployment. A name that differs by a typo from a deployment of the repository is a warning.",
)


@check("file")
def _endpoint_traffic(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root = file.root
    if file.kind in ("online_endpoint", "batch_endpoint"):
        yield from _unknown_deployments(root, context)
    if file.kind != "online_endpoint":
        return
    traffic, mirrored = root.entries_of("traffic"), root.entries_of("mirror_traffic")
    shares = [whole_number(entry.value.data) for entry in traffic.values()]
    if shares and None not in shares and (total := sum(share or 0 for share in shares)) not in (0, 100):
        message = f"the traffic of all deployments sums to {total} percent; it is 100, or 0"
        severity: Severity = "error" if total > 100 else "warning"
        yield ENDPOINT_TRAFFIC.at(root.key_span("traffic"), message, severity=severity)
    if len(mirrored) > 1:
        message = f"traffic is mirrored to one deployment, not to {len(mirrored)}"
        yield ENDPOINT_TRAFFIC.at(root.key_span("mirror_traffic"), message, severity="warning")
    for name, entry in mirrored.items():
        share = whole_number(entry.value.data)
        own = traffic.get(name)
        if own is not None and whole_number(own.value.data) not in (0, None) and share:
            message = f"'{shorten(name)}' gets traffic of its own, and cannot be mirrored to as well"
            yield ENDPOINT_TRAFFIC.at(entry.key.span, message, severity="warning")


def _unknown_deployments(endpoint: Node, context: LintContext) -> Iterator[Diagnostic]:
    """Names of deployments that differ by a typo from one that a file defines for the endpoint."""
    name = endpoint.get("name")
    known: dict[str, Node] = {}
    for root in context.computes.store.roots():
        owner, own = root.get("endpoint_name"), root.get("name")
        if name is not None and owner is not None and own is not None and owner.text == name.text:
            known[own.text] = own
    for key in ("traffic", "mirror_traffic", "defaults"):
        for deployment, entry in endpoint.entries_of(key).items():
            used = entry.value.text if key == "defaults" else deployment
            node = entry.value if key == "defaults" else entry.key
            meant = only_close(used, known) if used not in known else None
            if meant is not None:
                related = [Related(known[meant].span, f"'{meant}' is defined here")]
                message = f"the repository has no deployment '{shorten(used)}' of this endpoint"
                yield ENDPOINT_TRAFFIC.at(node.span, message, f"Did you mean '{meant}'?", related, severity="warning")


DEPLOYMENT_CONTRADICTION = Rule("AML330", "deployment-contradiction", "error").explained(
    summary="The settings of a deployment contradict each other.",
    why="The minimum of a scale is below its maximum. `code` comes with a `scoring_script`; machines are "
    "counted once, in `resources` or in `settings`; a pipeline has a `component`, and a model a `model`.",
)


@check("file")
def _deployment_contradiction(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root = file.root
    if file.kind not in _DEPLOYMENTS:
        return
    least, most = root.find("scale_settings", "min_instances"), root.find("scale_settings", "max_instances")
    if least is not None and most is not None and exceeds(least, most):
        message = f"min_instances is {least.text}, above max_instances of {most.text}"
        yield DEPLOYMENT_CONTRADICTION.at(least.span, message, "Swap them, or fix the wrong one.")
    code, script = root.find("code_configuration", "code"), root.find("code_configuration", "scoring_script")
    # Another key would stand for the missing one, and is reported.
    is_alone = len(root.entries_of("code_configuration")) == 1
    if code is not None and script is None and is_alone:
        message = "there is code, and no 'scoring_script' in it"
        yield DEPLOYMENT_CONTRADICTION.at(code.span, message, "Write `scoring_script: score.py`.")
    elif script is not None and code is None and is_alone:
        message = "there is a scoring script, and no 'code' that contains it"
        yield DEPLOYMENT_CONTRADICTION.at(script.span, message, "Write `code: ./src`.", severity="warning")
    if file.kind == "batch_deployment":
        yield from _batch(root)


def _has_typo_of(key: str, holder: Node | None) -> bool:
    return holder is not None and any(only_close(name, [key]) for name in holder.entries if name != key)


def _batch(root: Node) -> Iterator[Diagnostic]:
    kind = root.get("type")
    word = root.word("type") or "model"
    needed, others = ("component", ("job_definition",)) if word == "pipeline" else ("model", ("component",))
    if not root.entries.keys() & {needed, *others} and not _has_typo_of(needed, root):
        message = f"a deployment of a {word} has a '{needed}', and this has none"
        yield MISSING_KEY.at(root.key_span("type" if kind is not None else next(iter(root.entries))), message)
    count = root.find("settings", "instance_count")
    if word == "model" and count is not None and root.get("resources") is not None:
        message = "the machines are counted here and in 'resources'; Azure ML's client refuses both"
        yield DEPLOYMENT_CONTRADICTION.at(count.span, message, "Keep `resources: {instance_count: …}`.")
    for settings in filter(None, (root, root.get("settings"))):
        if settings.word("output_action") == "summary_only" and settings.get("output_file_name") is not None:
            message = "with `output_action: summary_only` no rows are written, and there is an 'output_file_name'"
            yield DEPLOYMENT_CONTRADICTION.at(settings.key_span("output_file_name"), message, "Remove one of the two.")
    if word == "pipeline":
        for key, entry in root.entries_of("settings").items():
            message = f"unknown key '{shorten(key)}' in 'settings'; Azure ML ignores it"
            yield from UNKNOWN_KEY.misspelt(entry.key.span, key, _PIPELINE_SETTINGS, message, "warning")


_GIVEN_OUTSIDE: dict[str, tuple[str, str]] = known_words("given_outside")


@check("file")
def _names(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """An endpoint, data or a model without a name, and a deployment without an endpoint."""
    key, option = _GIVEN_OUTSIDE.get(file.kind, ("", ""))
    root = file.root
    if key and key not in root.entries and not _has_typo_of(key, root) and "endpoint" not in root.entries:
        first = next(iter(root.entries.values())).key.span
        message = f"there is no '{key}', and `az ml` needs {option}"
        yield MISSING_KEY.at(first, message, f"Write `{key}: …`.", severity="warning")


@check("file")
def _request_time(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A time limit of requests that is meant in seconds, or longer than any."""
    limit = file.root.find("request_settings", "request_timeout_ms")
    milliseconds = whole_number(limit.data) if limit is not None else None
    if file.kind != "online_deployment" or limit is None or milliseconds is None:
        return
    if 0 < milliseconds < _SHORTEST_REQUEST_MS:
        message = f"a request is given up after {milliseconds} milliseconds"
        hint = f"Write {milliseconds * 1000}, if these are seconds."
        yield OUT_OF_BOUNDS.at(limit.span, message, hint, severity="warning")
    elif milliseconds > _LONGEST_REQUEST_MS and file.root.word("type") != "kubernetes":
        message = f"a request takes at most {_LONGEST_REQUEST_MS} milliseconds on managed machines, not {milliseconds}"
        yield OUT_OF_BOUNDS.at(limit.span, message, f"Write {_LONGEST_REQUEST_MS} or less.", severity="warning")


SCORING_SCRIPT = Rule("AML516", "scoring-script", "error", is_let_pass=True).explained(
    summary="The scoring script of a deployment lacks `init()` or `run(data)`.",
    why="The model server imports the script, calls `init()` once, and `run(data)` for each request or "
    "mini-batch. Azure ML's client does not look into it.",
)


@check("file")
def _scoring_script(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root = file.root
    folder = scoring_code(root) if file.kind in _DEPLOYMENTS else None
    named = root.find_text("code_configuration", "scoring_script")
    if folder is None or named is None or not os.path.isfile(folder / named.text):
        return
    if named.text.endswith(".py"):
        yield from wrong_entry_script(SCORING_SCRIPT, named.span, folder / named.text, "data", "request")
        if file.kind == "batch_deployment":
            yield from without_results(SCORING_SCRIPT, named.span, folder / named.text)
