"""Schedules: times that never come, time zones that nobody has, and inputs that the scheduled job does not have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainyard.lint.checks import LintContext, LintedFile, check, known_words, number_of
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Document, Node, shorten
from trainyard.spec.file_kinds import KIND_NAMES, kind_of
from trainyard.spec.model import Port
from trainyard.spec.parsed import is_remote
from trainyard.spec.ports import literal_type
from trainyard.spec.rule import Rule

# The fields of `expression`, with their bounds and the names that some take: NCrontab, as the service reads it.
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_CRON_FIELDS: list[tuple[str, int, int, list[str]]] = known_words("cron_fields")
# The most days of each month.
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CRON_PART = regex(r"(?:\*|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]+))?", re.IGNORECASE)
# What PyYAML reads as a date, which Azure ML's client then refuses.
_PLAIN_TIME = regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")


SCHEDULE_TRIGGER = Rule("AML318", "schedule-trigger", "warning").explained(
    summary="A schedule's trigger never fires, or not when it seems to.",
    why="The fields of `expression` are minute (0-59), hour (0-23), day (1-31), month (1-12) and weekday (0-6, Sunday "
    "is 0). Azure ML refuses any other number, and its client a day that no calendar has. A time zone has the name "
    "that Windows gives it. A schedule that ends before it starts does nothing.",
)


@check("file")
def _schedule_trigger(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The triggers of a schedule, and those that start and stop a compute instance."""
    holders = [file.root] if file.kind == "schedule" else []
    if file.kind == "compute":
        holders = file.root.items_of("schedules", "compute_start_stop")
    for trigger in filter(None, (holder.get("trigger") for holder in holders)):
        yield from _trigger(trigger, file)


def _trigger(trigger: Node, file: LintedFile) -> Iterator[Diagnostic]:
    expression, zone = trigger.find_text("expression"), trigger.find_text("time_zone")
    if expression is not None:
        yield from _expression(expression, file.document)
    if zone is not None and "/" not in zone.text and zone.text.lower() not in _ZONES_IN_LOWER_CASE:
        hint = close_match(zone.text, _WINDOWS_TIME_ZONES) or "Such names are 'UTC' and 'W. Europe Standard Time'."
        yield SCHEDULE_TRIGGER.at(zone.span, f"unknown time zone '{shorten(zone.text)}'", hint)
    yield from _lists(trigger)
    yield from _times(trigger)


def _lists(trigger: Node) -> Iterator[Diagnostic]:
    """Hours, minutes and days of a recurrence: of another frequency, none at all, or one of them twice."""
    frequency = trigger.word("frequency")
    for key, fitting in (("hours", ""), ("minutes", ""), ("week_days", "week"), ("month_days", "month")):
        listed, seen = trigger.find("schedule", key), set[str]()
        if listed is None:
            continue
        if fitting and frequency in _FREQUENCIES - {fitting}:
            message = f"'{key}' has no effect with `frequency: {frequency}`"
            hint = f"Write `frequency: {fitting}`, or remove the days."
            yield SCHEDULE_TRIGGER.at(listed.span, message, hint)
        if listed.data == []:
            yield SCHEDULE_TRIGGER.at(listed.span, f"'{key}' is empty, so that the schedule has no time to start at")
        for item in listed.items:
            if item.text.lower() in seen:
                yield SCHEDULE_TRIGGER.at(item.span, f"{item.text} is in '{key}' twice", "Remove one of them.")
            seen.add(item.text.lower())


_FREQUENCIES = frozenset({"minute", "hour", "day", "week", "month"})
_WINDOWS_TIME_ZONES: tuple[str, ...] = known_words("time_zones")
_ZONES_IN_LOWER_CASE = frozenset(map(str.lower, _WINDOWS_TIME_ZONES))


def _expression(expression: Node, document: Document) -> Iterator[Diagnostic]:
    fields = [(match[0], match.start(), match.end()) for match in re.finditer(r"\S+", expression.text)]
    if len(fields) != len(_CRON_FIELDS):
        return  # reported by the schema
    minute, hour = fields[0], fields[1]
    if minute[0] == "*" and hour[0].isdecimal():
        span = document.span_within(expression, minute[1], minute[2])
        message = f"this starts a job in every minute of the hour from {hour[0]}:00"
        yield SCHEDULE_TRIGGER.at(span, message, "Write 0, for once at the full hour.")
    for (text, start, end), (name, least, most, names) in zip(fields, _CRON_FIELDS, strict=True):
        problem = next((found for part in text.split(",") if (found := _wrong(part, least, most, names))), "")
        if problem:
            span = document.span_within(expression, start, end)
            message = f"the {name} '{shorten(text)}' {problem}"
            # 7 is Sunday in many other programs, and nothing is known of Azure ML's.
            is_certain = problem == _out_of(least, most) and (name, text) != ("weekday", "7")
            severity: Severity = "error" if is_certain else "warning"
            yield SCHEDULE_TRIGGER.at(span, message, f"Write {least} to {most}, or *.", severity=severity)
    missing = _missing_day(fields)
    if missing:
        text, start, end = fields[2]
        span = document.span_within(expression, start, end)
        yield SCHEDULE_TRIGGER.at(span, f"the day '{shorten(text)}' {missing}", "Write an earlier day.")


def _missing_day(fields: Sequence[tuple[str, int, int]]) -> str:
    """Why none of the days comes in any of the months, in words; empty if one does, or if a field cannot be read."""
    (days, *_), (months, *_), (weekday, *_) = fields[2:]
    numbers = [int(day) for day in days.split(",") if day.isdecimal()]
    chosen = [_MONTHS.index(month[:3]) + 1 if month[:3] in _MONTHS else month for month in months.lower().split(",")]
    if weekday != "*" or len(numbers) != days.count(",") + 1 or not all(str(month).isdecimal() for month in chosen):
        return ""
    longest = max((_LENGTHS[int(month) - 1] for month in chosen if 1 <= int(month) <= 12), default=31)
    return f"never comes: the longest of these months has {longest} days" if longest < min(numbers) <= 31 else ""


def _out_of(least: int, most: int) -> str:
    return f"is not between {least} and {most}"


def _wrong(part: str, least: int, most: int, names: list[str]) -> str:
    """What is wrong with a part of a field, such as `1-5` or `*/15`, in words; empty if nothing is."""
    match = _CRON_PART.fullmatch(part)
    if match is None:
        return "cannot be read"
    numbers = []
    for written in match.group(1, 2):
        if written is None:
            continue
        if not written.isdecimal() and written.lower()[:3] not in names:
            return "cannot be read"
        numbers.append(int(written) if written.isdecimal() else names.index(written.lower()[:3]) + least)
    if any(not least <= number <= most for number in numbers):
        return _out_of(least, most)
    if match[3] is not None and not 0 < int(match[3]) <= most:
        return f"steps by {match[3]}, and there are only {most}" if int(match[3]) else "never steps"
    return "ends before it begins" if len(numbers) == 2 and numbers[0] > numbers[1] else ""


def _times(trigger: Node) -> Iterator[Diagnostic]:
    start, end = trigger.get("start_time"), trigger.get("end_time")
    for node in (start, end):
        if node is not None and _PLAIN_TIME.fullmatch(node.text.strip()) and _time(node) is None:
            message = f"there is no time '{shorten(node.text)}'"
            yield SCHEDULE_TRIGGER.at(node.span, message, "Correct day or hour.", severity="error")
    first, last = _time(start), _time(end)
    if start is not None and end is not None and first is not None and last is not None and last <= first:
        related = [Related(start.span, "it starts here")]
        yield SCHEDULE_TRIGGER.at(end.span, "the schedule ends before it starts", "Write a later time.", related)


def _time(node: Node | None) -> datetime | None:
    """A time of a schedule, in its own zone unless it has an offset; None if it does not exist, as February 30."""
    try:
        found = datetime.fromisoformat(node.text.strip().replace("Z", "+00:00")) if node is not None else None
    except ValueError:
        return None
    return found.replace(tzinfo=timezone.utc) if found is not None and found.tzinfo is None else found


SCHEDULE_JOB = Rule("AML321", "schedule-job", "warning").explained(
    summary="A schedule sets an input that its job does not have.",
    why="What `create_job` sets replaces the job's own inputs, by name; nothing reads the value of any other.",
)


@check("file")
def _schedule_job(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    create = file.root.get("create_job") if file.kind == "schedule" else None
    job = create.get("job") if create is not None and create.is_mapping else create
    if create is None or job is None or not job.is_text or is_remote(job.text):
        return
    named = Path(os.path.normpath(file.document.file.parent / job.text))
    yield from _not_a_job(job, named, context)
    yield from _inputs(create, named, context)
    is_pipeline = any(pipeline.reading.file == named for pipeline in context.parsed.pipelines)
    if is_pipeline and create.word("type") == "command":
        message = f"'{job.text}' is a pipeline, and the schedule says it is a command"
        yield SCHEDULE_JOB.at(create.entries["type"].value.span, message, "Write `type: pipeline`.")


def _inputs(create: Node, named: Path, context: LintContext) -> Iterator[Diagnostic]:
    """Inputs that the scheduled job does not have, or has with another type."""
    declared, given = _inputs_of(named, context), create.entries_of("inputs")
    if declared is None:
        return
    for name, entry in given.items():
        if name in declared:
            yield from _other_type(entry.value, declared[name])
        else:
            message = f"the scheduled job has no input '{shorten(name)}'"
            free = [other for other in declared if other not in given]
            yield SCHEDULE_JOB.at(entry.key.span, message, did_you_mean(name, free, "It has no other inputs."))


def _other_type(given: Node, port: Port) -> Iterator[Diagnostic]:
    """A string for an input that is a number in the job."""
    has_number = port.default is not None and port.default.data is not None and port.type in ("integer", "number")
    is_other_text = given.is_text and "${{" not in given.text and literal_type(given.data) == "string"
    if has_number and is_other_text and number_of(given) is None:
        message = f"'{port.name}' of the scheduled job is {port.type}, not '{shorten(given.text)}'"
        yield SCHEDULE_JOB.at(given.span, message, "Write a number.", [port.declared])


def _inputs_of(file: Path, context: LintContext) -> Mapping[str, Port] | None:
    """The inputs of the job in a file; None if it was not read."""
    for pipeline in context.parsed.pipelines:
        if pipeline.model.file == file and pipeline.reading.file == file:
            return pipeline.model.inputs
    for command in context.parsed.commands:
        if command.reading.file == file and command.is_root:
            return command.component.inputs
    return None


def _not_a_job(started: Node, named: Path, context: LintContext) -> Iterator[Diagnostic]:
    """A file that a schedule is to start, and that is something else."""
    document = context.computes.store.find(named)
    kind = kind_of(document) if document is not None else None
    if kind in ("component", "pipeline_component", "environment", "compute", "asset", "schedule"):
        message = f"'{started.text}' is {KIND_NAMES[kind]}, not a job"
        yield SCHEDULE_JOB.at(started.span, message, "Name a pipeline or another job.", severity="error")
    elif kind == "sweep_job":
        message = f"'{started.text}' is a sweep, which Azure ML's client does not schedule"
        yield SCHEDULE_JOB.at(started.span, message, "Put it into a pipeline, and name that.", severity="error")
