"""Schedules: times that never come, time zones that nobody has, and inputs that the scheduled job does not have."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.settings.suggestions import close_match, did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related, SpecError
from trainyard.spec.documents import Document, Node, shorten
from trainyard.spec.file_kinds import KIND_NAMES, kind_of
from trainyard.spec.model import Port
from trainyard.spec.parsed import is_remote
from trainyard.spec.ports import literal_type
from trainyard.spec.rule import Rule
from trainyard.spec.rules.documents import YAML_TRAP

# The fields of `expression`, with their bounds and the names that some take: NCrontab, as the service reads it.
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_CRON_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 6, _DAYS),
)
# The most days of each month.
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CRON_PART = re.compile(r"(?:\*|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]+))?", re.IGNORECASE)
# What PyYAML reads as a date, which Azure ML's client then refuses.
_PLAIN_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ]+[0-9]{1,2}:[0-9]{2}:[0-9]{2}.*)?")


SCHEDULE_TRIGGER = Rule("AML318", "schedule-trigger", "warning").explained(
    summary="A schedule's trigger never fires, or not when it seems to.",
    why="The fields of `expression` are minute (0-59), hour (0-23), day (1-31), month (1-12) and weekday (0-6, Sunday "
    "is 0). A time zone has the name that Windows gives it. A schedule that ends before it starts does nothing.",
    example="""\
name: nightly
trigger:
  type: cron
  expression: "‸15 ‹24⇒0› * * *"
create_job: {type: pipeline, job: azureml:forecast}
""".replace("‸15 ", "15 ‸"),
)


@check("file")
def _schedule_trigger(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for trigger in _triggers(file):
        yield from _trigger(trigger, file)


def _triggers(file: LintedFile) -> Iterator[Node]:
    """The triggers of a schedule, and those that start and stop a compute instance."""
    root = file.document.root
    listed = root.find("schedules", "compute_start_stop") if file.kind == "compute" else None
    holders = listed.items if listed is not None else [root] if file.kind == "schedule" else []
    for holder in holders:
        trigger = holder.get("trigger") if holder.is_mapping else None
        if trigger is not None and trigger.is_mapping:
            yield trigger


def _trigger(trigger: Node, file: LintedFile) -> Iterator[Diagnostic]:
    expression, zone = trigger.get("expression"), trigger.get("time_zone")
    if expression is not None and expression.is_text:
        yield from _expression(expression, file.document)
    if zone is not None and zone.is_text and "/" not in zone.text and zone.text not in _ZONES_IN_LOWER_CASE.values():
        written = _ZONES_IN_LOWER_CASE.get(zone.text.lower())
        if written is None:
            hint = close_match(zone.text, _WINDOWS_TIME_ZONES) or "Such names are 'UTC' and 'W. Europe Standard Time'."
            yield SCHEDULE_TRIGGER.at(zone.span, f"unknown time zone '{shorten(zone.text)}'", hint)
    yield from _days_of_another_frequency(trigger)
    yield from _lists(trigger)
    yield from _times(trigger, file.document)


def _days_of_another_frequency(trigger: Node) -> Iterator[Diagnostic]:
    """Days of the week or month for a recurrence of days or hours, which no one looks at."""
    frequency = trigger.get("frequency")
    for key, fitting in (("week_days", "week"), ("month_days", "month")):
        days = trigger.find("schedule", key)
        if frequency is not None and days is not None and frequency.text.lower() in _FREQUENCIES - {fitting}:
            message = f"'{key}' has no effect with `frequency: {frequency.text}`"
            hint = f"Write `frequency: {fitting}`, or remove the days."
            yield SCHEDULE_TRIGGER.at(days.span, message, hint)


def _lists(trigger: Node) -> Iterator[Diagnostic]:
    """Hours, minutes and days of a recurrence: none at all, or one of them twice."""
    for key in ("hours", "minutes", "week_days", "month_days"):
        listed, seen = trigger.find("schedule", key), set[str]()
        if listed is None or listed.is_mapping:
            continue
        if listed.data == []:
            yield SCHEDULE_TRIGGER.at(listed.span, f"'{key}' is empty, so that the schedule has no time to start at")
        for item in listed.items:
            if item.text.lower() in seen:
                yield SCHEDULE_TRIGGER.at(item.span, f"{item.text} is in '{key}' twice", "Remove one of them.")
            seen.add(item.text.lower())


# As `azure.ai.ml.constants.TimeZone` of azure-ai-ml 1.35 has them.
# fmt: off
_WINDOWS_TIME_ZONES = frozenset({
    "AUS Central Standard Time", "AUS Eastern Standard Time", "Afghanistan Standard Time", "Alaskan Standard Time",
    "Aleutian Standard Time", "Altai Standard Time", "Arab Standard Time", "Arabian Standard Time",
    "Arabic Standard Time", "Argentina Standard Time", "Astrakhan Standard Time", "Atlantic Standard Time",
    "Aus Central W. Standard Time", "Azerbaijan Standard Time", "Azores Standard Time", "Bahia Standard Time",
    "Bangladesh Standard Time", "Belarus Standard Time", "Bougainville Standard Time",
    "Canada Central Standard Time", "Cape Verde Standard Time", "Caucasus Standard Time",
    "Cen. Australia Standard Time", "Central America Standard Time", "Central Asia Standard Time",
    "Central Brazilian Standard Time", "Central Europe Standard Time", "Central European Standard Time",
    "Central Pacific Standard Time", "Central Standard Time", "Central Standard Time (Mexico)",
    "Chatham Islands Standard Time", "China Standard Time", "Cuba Standard Time", "Dateline Standard Time",
    "E. Africa Standard Time", "E. Australia Standard Time", "E. Europe Standard Time",
    "E. South America Standard Time", "Easter Island Standard Time", "Eastern Standard Time",
    "Eastern Standard Time (Mexico)", "Egypt Standard Time", "Ekaterinburg Standard Time", "FLE Standard Time",
    "Fiji Standard Time", "GMT Standard Time", "GTB Standard Time", "Georgian Standard Time",
    "Greenland Standard Time", "Greenwich Standard Time", "Haiti Standard Time", "Hawaiian Standard Time",
    "India Standard Time", "Iran Standard Time", "Israel Standard Time", "Jordan Standard Time",
    "Kaliningrad Standard Time", "Kamchatka Standard Time", "Korea Standard Time", "Libya Standard Time",
    "Line Islands Standard Time", "Lord Howe Standard Time", "Magadan Standard Time", "Marquesas Standard Time",
    "Mauritius Standard Time", "Mid-Atlantic Standard Time", "Middle East Standard Time", "Montevideo Standard Time",
    "Morocco Standard Time", "Mountain Standard Time", "Mountain Standard Time (Mexico)", "Myanmar Standard Time",
    "N. Central Asia Standard Time", "Namibia Standard Time", "Nepal Standard Time", "New Zealand Standard Time",
    "Newfoundland Standard Time", "Norfolk Standard Time", "North Asia East Standard Time",
    "North Asia Standard Time", "North Korea Standard Time", "Pacific SA Standard Time", "Pacific Standard Time",
    "Pacific Standard Time (Mexico)", "Pakistan Standard Time", "Paraguay Standard Time", "Romance Standard Time",
    "Russia Time Zone 10", "Russia Time Zone 11", "Russia Time Zone 3", "Russian Standard Time",
    "SA Eastern Standard Time", "SA Pacific Standard Time", "SA Western Standard Time", "SE Asia Standard Time",
    "Saint Pierre Standard Time", "Sakhalin Standard Time", "Samoa Standard Time", "Singapore Standard Time",
    "South Africa Standard Time", "Sri Lanka Standard Time", "Syria Standard Time", "Taipei Standard Time",
    "Tasmania Standard Time", "Tocantins Standard Time", "Tokyo Standard Time", "Tomsk Standard Time",
    "Tonga Standard Time", "Transbaikal Standard Time", "Turkey Standard Time", "Turks And Caicos Standard Time",
    "US Eastern Standard Time", "US Mountain Standard Time", "UTC", "UTC+12", "UTC-02", "UTC-08", "UTC-09", "UTC-11",
    "Ulaanbaatar Standard Time", "Venezuela Standard Time", "Vladivostok Standard Time",
    "W. Australia Standard Time", "W. Central Africa Standard Time", "W. Europe Standard Time",
    "W. Mongolia Standard Time", "West Asia Standard Time", "West Bank Standard Time", "West Pacific Standard Time",
    "Yakutsk Standard Time",
})
# fmt: on
_FREQUENCIES = frozenset({"minute", "hour", "day", "week", "month"})
_ZONES_IN_LOWER_CASE = {name.lower(): name for name in _WINDOWS_TIME_ZONES}


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
            yield SCHEDULE_TRIGGER.at(
                span, f"the {name} '{shorten(text)}' {problem}", f"Write {least} to {most}, or *."
            )
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
        return f"is not between {least} and {most}"
    if match[3] is not None and not 0 < int(match[3]) <= most:
        return f"steps by {match[3]}, and there are only {most}" if int(match[3]) else "never steps"
    return "ends before it begins" if len(numbers) == 2 and numbers[0] > numbers[1] else ""


def _times(trigger: Node, document: Document) -> Iterator[Diagnostic]:
    start, end = trigger.get("start_time"), trigger.get("end_time")
    for node in (start, end):
        if node is not None and _is_unquoted_date(node, document):
            quoted = f'"{node.text}"'
            message = f"YAML reads {node.text} as a date, and Azure ML's client takes only a text"
            yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted, severity="error")
        elif node is not None and _is_impossible(node.text.strip()):
            yield SCHEDULE_TRIGGER.at(node.span, f"there is no time '{shorten(node.text)}'", "Correct day or hour.")
    first, last = _time(start), _time(end)
    if start is not None and end is not None and first is not None and last is not None and last <= first:
        related = [Related(start.span, "it starts here")]
        yield SCHEDULE_TRIGGER.at(end.span, "the schedule ends before it starts", "Write a later time.", related)


def _is_unquoted_date(node: Node, document: Document) -> bool:
    return _TIMESTAMP.fullmatch(node.text) is not None and document.text[node.offsets[0]] == node.text[0]


def _is_impossible(text: str) -> bool:
    """Whether a time is written as one, and does not exist: the 30th of February."""
    if _PLAIN_TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return True
    return False


def _time(node: Node | None) -> datetime | None:
    """A time of a schedule; all are in the schedule's own zone, unless they have an offset."""
    try:
        found = datetime.fromisoformat(node.text.strip().replace("Z", "+00:00")) if node is not None else None
    except ValueError:
        return None
    return found.replace(tzinfo=timezone.utc) if found is not None and found.tzinfo is None else found


SCHEDULE_JOB = Rule("AML321", "schedule-job", "warning").explained(
    summary="A schedule sets an input that its job does not have.",
    why="What `create_job` sets replaces the job's own inputs, by name; nothing reads the value of any other.",
    example="""\
name: nightly
trigger: {type: recurrence, frequency: day, interval: 1}
create_job:
  type: pipeline
  job: ./forecast.yaml
  inputs: {‹horizn⇒horizon›: 14}
=== forecast.yaml
type: pipeline
settings: {default_compute: azureml:cpus}
inputs: {horizon: 28}
jobs:
  forecast:
    component: azureml:forecast:1
    inputs: {horizon: "${{parent.inputs.horizon}}"}
""",
)


@check("file")
def _schedule_job(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    job = file.document.root.find("create_job", "job") if file.kind == "schedule" else None
    if job is None or not job.is_text or job.text.startswith("azureml:"):
        return
    declared = _inputs_of(Path(os.path.normpath(file.document.file.parent / job.text)), context)
    given = file.document.root.find("create_job", "inputs")
    for name, entry in (given.entries if given is not None and declared is not None else {}).items():
        port = declared.get(name) if declared is not None else None
        if port is not None:
            yield from _other_type(entry.value, port)
        elif declared is not None:
            message = f"the scheduled job has no input '{shorten(name)}'"
            free = [other for other in declared if given is not None and other not in given.entries]
            yield SCHEDULE_JOB.at(entry.key.span, message, did_you_mean(name, free, "It has no other inputs."))


def _other_type(given: Node, port: Port) -> Iterator[Diagnostic]:
    """A text for an input that is a number in the job."""
    is_number = port.type in ("integer", "number") and port.default is not None and port.default.data is not None
    if is_number and given.is_text and "${{" not in given.text and literal_type(given.data) == "string":
        try:
            float(given.text)
        except ValueError:
            message = f"'{port.name}' of the scheduled job is {port.type}, not '{shorten(given.text)}'"
            related = [Related(port.key_span, f"'{port.name}' is declared here")]
            yield SCHEDULE_JOB.at(given.span, message, "Write a number.", related)


def _inputs_of(file: Path, context: LintContext) -> Mapping[str, Port] | None:
    """The inputs of the job in a file; None if it was not read."""
    for pipeline in context.parsed.pipelines:
        if pipeline.model.file == file and pipeline.reading.file == file:
            return pipeline.model.inputs
    for command in context.parsed.commands:
        if command.reading.file == file and command.is_root:
            return command.component.inputs
    return None


@check("file")
def _only_some_jobs(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A scheduled job whose type is not the one that the schedule states."""
    root = file.document.root
    yield from _not_a_job(file, context)
    job, kind = root.find("create_job", "job"), root.find("create_job", "type")
    if file.kind != "schedule" or job is None or kind is None or not job.is_text or job.text.startswith("azureml:"):
        return
    named = Path(os.path.normpath(file.document.file.parent / job.text))
    is_pipeline = any(pipeline.reading.file == named for pipeline in context.parsed.pipelines)
    if is_pipeline and kind.text.lower() == "command":
        message = f"'{job.text}' is a pipeline, and the schedule says it is a command"
        yield SCHEDULE_JOB.at(kind.span, message, "Write `type: pipeline`.")


def _not_a_job(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """A file that a schedule is to start, and that is something else."""
    started = file.document.root.get("create_job") if file.kind == "schedule" else None
    if started is not None and started.is_mapping:
        started = started.get("job")
    if started is None or not started.is_text or is_remote(started.text):
        return
    with contextlib.suppress(SpecError):  # reported where it is named
        named = context.computes.store.peek(Path(os.path.normpath(file.document.file.parent / started.text)))
        kind = kind_of(named)
        if kind in ("component", "pipeline_component", "environment", "compute", "asset", "schedule"):
            message = f"'{started.text}' is {KIND_NAMES[kind]}, not a job"
            yield SCHEDULE_JOB.at(started.span, message, "Name a pipeline or another job.", severity="error")
        elif kind == "sweep_job":
            message = f"'{started.text}' is a sweep, which Azure ML's client does not schedule"
            yield SCHEDULE_JOB.at(started.span, message, "Put it into a pipeline, and name that.", severity="error")
