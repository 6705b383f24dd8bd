"""Rules about linting itself: comments and baselines that silence nothing, and a check that failed."""

from trainyard.spec.rule import Rule

CHECK_FAILED = Rule("AML013", "check-failed", "error").explained(
    summary="The linter itself failed on a file.",
    why="This is a bug in Trainyard: other problems in this file may not be reported. Other files are still checked.",
)
UNUSED_IGNORE = Rule("AML801", "unused-ignore", "warning").explained(
    summary="A comment ignores a rule that has no finding there.",
    why="The finding was fixed or moved. If the comment stays, it hides the next such mistake.",
)
BAD_IGNORE = Rule("AML802", "bad-ignore", "warning").explained(
    summary="A comment for Trainyard is malformed, and has no effect.",
    why="`# trainyard: ignore[AML206] reason` goes at the end of a line or on the line above, `ignore-file[AML206]` "
    "anywhere in the file. Several rules are written `ignore[AML206, AML304]`.",
)
STALE_BASELINE = Rule("AML803", "stale-baseline", "warning").explained(
    summary="The baseline lists a finding that no longer exists.",
    why="It was fixed: `trainyard lint --write-baseline` removes it, so that it cannot return unnoticed.",
)
ABOUT_IGNORING = (UNUSED_IGNORE, BAD_IGNORE, STALE_BASELINE)
