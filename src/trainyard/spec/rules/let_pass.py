"""The errors of lint that do not keep Azure ML from running a file: it drops something, or the job itself fails later.

The client (azure-ai-ml 1.35.2) accepts each of these, and nothing is known that the service would refuse. A local run
reports them and does as the service does; `--strict` refuses them.
"""

from __future__ import annotations

from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.rules.keys import BAD_TEXT, UNKNOWN_KEY

# Ids, because most of these rules are declared with their checks in lint, which this package does not know.
LET_PASS = frozenset(
    {
        "AML007",  # duplicate-key: the last one wins
        "AML101",  # unknown-key: ignored, but for those of a job (see `stops_a_run`)
        "AML107",  # ignored-key
        "AML208",  # legacy-binding: not substituted
        "AML301",  # missing-input: whoever runs it may set it; the run refuses what is still missing
        "AML302",  # unknown-input: dropped
        "AML304",  # wrong-literal: sent as text
        "AML305",  # literal-out-of-range: not enforced
        "AML306",  # literal-not-a-choice: not enforced
        "AML311",  # limits-contradict
        "AML319",  # batch-does-not-divide, and all below: the job's own program decides
        "AML320",  # settings-not-json
        "AML323",  # unknown-model-type
        "AML324",  # unknown-model-setting
        "AML325",  # format-without-source
        "AML326",  # data-weights
        "AML340",  # unknown-setting
        "AML341",  # refused-setting
        "AML343",  # invalid-overrides
        "AML344",  # settings-not-found: as missing-input
        "AML345",  # file-without-type
        "AML416",  # pins-conflict: of an environment that is not built here
        "AML406",  # script-not-found
        "AML407",  # script-left-out
        "AML408",  # module-not-found
        "AML501",  # unknown-flag
        "AML502",  # missing-flag
        "AML503",  # wrong-choice
        "AML504",  # unknown-program
        "AML505",  # flag-value
        "AML555",  # ended-early: the shell starts the rest as another command
        "AML556",  # two-programs: pip is asked for the name of a program
        "AML601",  # processes-exceed-gpus
        "AML613",  # launcher-under-distribution
        "AML701",  # deepspeed-config-not-found
        "AML702",  # deepspeed-config-not-json
        "AML703",  # deepspeed-unknown-key
        "AML704",  # deepspeed-batch-arithmetic
        "AML705",  # deepspeed-offload-against-stage
        "AML706",  # deepspeed-two-precisions
        "AML708",  # deepspeed-wrong-value
    }
)


def stops_a_run(diagnostic: Diagnostic) -> bool:
    """Return whether Azure ML refuses a file for this error.

    The client refuses unknown keys of jobs, not those of components: lint's message says which.
    """
    if diagnostic.rule == UNKNOWN_KEY.id:
        return "client refuses the file" in diagnostic.message
    if diagnostic.rule == BAD_TEXT.id and "${{" in diagnostic.message:
        return False  # a bound count, as components of Azure ML's own registry have: a run knows its value
    return diagnostic.rule not in LET_PASS
