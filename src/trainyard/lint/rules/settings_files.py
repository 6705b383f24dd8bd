"""Settings files: each by itself, and against what pipelines give the same step."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintContext, LintedFile, check
from trainyard.lint.placements import Placement
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related, SpecError
from trainyard.spec.documents import require_mapping
from trainyard.spec.file_kinds import step_of_settings
from trainyard.spec.model import Sweep
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.resolution import JobUse
from trainyard.spec.resolved import Known
from trainyard.spec.rule import Rule
from trainyard.spec.rules import UNKNOWN_KIND
from trainyard.spec.shell_words import settings_port
from trainyard.spec.step_settings import StepSettings, WrittenSettings
from trainyard.spec.training_settings import refused_in_file, refused_settings, use_of_file


@check("file")
def _settings_file(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """What a step would refuse of a settings file; where a job uses it, that is checked with the job."""
    if file.kind != "settings" or file.document.data is None:
        return
    try:
        require_mapping(file.document)
    except SpecError as error:
        yield from error.diagnostics
        return
    step = step_of_settings(file.document)
    if step is None or file.document.file in context.parsed.settings_files:
        return
    use = use_of_file(file.document, step, context.computes.store)
    if use is not None:
        yield from refused_in_file(use)
        return
    from trainyard.settings.task_fields import steps_with_settings_file

    message = f"the schema is for the settings of '{step}'; nothing in this file was checked"
    hint = did_you_mean(step, steps_with_settings_file())
    yield UNKNOWN_KIND.at(file.root.span, message, hint, severity="warning")


SHADOWED_SETTING = Rule("AML342", "shadowed-setting", "warning").explained(
    summary="A key of a settings file has no effect, since the job gives the step another value.",
    why="What a pipeline binds, and a component's default, beat the settings file; a sweep draws its values. Remove "
    "the key, or what replaces it. For one run, `overrides` beat both.",
)


@check("pipeline")
def _settings_of_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """Keys of settings files that have no effect, and what the step of a sweep's trials would refuse."""
    if context.is_used(pipeline.model):
        return
    for use in context.resolution_of(pipeline.model).jobs.values():
        settings = use.step_settings if settings_port(use.job.component) is not None else None
        if settings is not None and isinstance(settings.file, WrittenSettings):
            yield from _shadowed(use, settings, settings.file)
        if isinstance(use.component.task, Sweep):
            yield from refused_settings(use)


def _shadowed(use: JobUse, settings: StepSettings, file: WrittenSettings) -> Iterator[Diagnostic]:
    for name, entry in file.entries.items():
        known = settings.fields.get(name)
        given = settings.given_by_command(known) if known is not None and known.kind == "parameter" else None
        if given is None:
            continue
        if isinstance(given, Known):
            message = f"'{name}' has no effect: the job gives the step {given.written.text}"
            place = given.written.span
        elif isinstance(use.component.task, Sweep) and name in use.component.task.search_space:
            message = f"'{name}' has no effect: the sweep draws it"
            place = use.component.task.search_space[name].span
        else:
            message = f"'{name}' has no effect: the job gives the step another value"
            place = use.job.key_span
        related = [Related(place, f"what the job '{use.name}' takes is here")]
        yield SHADOWED_SETTING.at(file.span(entry.key), message, "Remove it here, or there.", related)


@check("placement")
def _training_settings(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    """What the step of a job would refuse."""
    yield from refused_settings(placement.use, is_complete=not placement.is_component)
