"""`trainyard explain`: one rule in full, those that find something in a file, or all; what a run would reuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.lint.explanation import as_list, as_text, find_rule
from trainyard.lint.rules import RULES
from trainyard.render import rules as author_rules
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.findings import DocumentStore
from trainyard.spec.loading import is_job, is_only_on_azure, load_job
from trainyard.terminal import short

if TYPE_CHECKING:
    from trainyard.rehearse.runner import EnvironmentChoice

_ALL = {**RULES, **author_rules.RULES}


def explanation_of(
    subject: str | None,
    *,
    profile: str | None = None,
    settings: Mapping[str, str] | None = None,
    environments: EnvironmentChoice = "current",
) -> str:
    """Return what to print for a rule's id or name, for a file, or for None (the list). Raise UsageError otherwise.

    For a pipeline or job that can run, that is also what a run with this profile, these settings and environments
    would reuse.
    """
    if subject is None:
        return as_list(_ALL.values())
    if Path(subject).is_file():
        return _explanation_of_file(Path(subject), profile, settings or {}, environments)
    return as_text(find_rule(subject, _ALL))


def _explanation_of_file(
    file: Path, profile: str | None, settings: Mapping[str, str], environments: EnvironmentChoice
) -> str:
    from trainyard.commands.lint import rules_that_find_something

    explained = [as_text(_ALL[id]) for id in rules_that_find_something(file)]
    if is_job(file):
        explained += _forecast_of(file, profile, settings, environments)
    return f"\n\n{'-' * 80}\n\n".join(explained) or f"no findings in {file}"


def _forecast_of(
    file: Path, profile: str | None, settings: Mapping[str, str], environments: EnvironmentChoice
) -> list[str]:
    """Return what a run would do with each job; nothing for a file that Azure ML refuses, whose rules are explained.

    Of a pipeline that only Azure ML can run, it is that, with the place and the reason of each job.
    """
    from trainyard.commands import working_folder
    from trainyard.commands.lint import errors_before_a_run
    from trainyard.commands.profile_run import render_aside
    from trainyard.rehearse.forecast import forecast
    from trainyard.rehearse.runner import RunOptions

    options = RunOptions(working_folder.runs_folder(), overrides=dict(settings), environments=environments)
    path, store = render_aside(file, profile) if profile is not None else file, DocumentStore()
    refused, _ = errors_before_a_run(path, store)
    if refused:
        return []
    try:
        pipeline = load_job(path, store)
    except SpecError as error:
        if not all(map(is_only_on_azure, error.diagnostics)):
            raise
        reasons = [f"  {short(each.span.file)}:{each.span.line}: {each.message}" for each in error.diagnostics]
        return ["\n".join([f"{short(path)} runs on Azure ML only, not here:", *reasons])]
    jobs = forecast(pipeline, options)
    width = max(len(job.name) for job in jobs)
    lines = []
    for job in jobs:
        state = f"reused from run {job.reused_from}" if job.reused_from else f"runs: {job.why}"
        lines.append(f"{click.style(job.name.ljust(width), bold=True)}  {state}")
        lines += [f"{'':{width}}    {change}" for change in job.changes]
    return ["\n".join(lines)]
