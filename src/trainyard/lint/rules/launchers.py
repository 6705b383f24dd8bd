"""The flags of torchrun, accelerate and deepspeed: slips in their names, and machines other than the job has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.lint.placements import Placement
from trainyard.settings.suggestions import only_close
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import LAUNCHER_MODULES, Word, simple_commands

# torch/distributed/run.py
_TORCHRUN = (
    *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone", "tee"),
    *("max_restarts", "monitor_interval", "start_method", "event_log_handler", "role", "module", "no_python"),
    *("run_path", "log_dir", "redirects", "local_ranks_filter", "node_rank", "master_addr", "master_port"),
    *("local_addr", "logs_specs", "numa_binding", "use_env", "signals_to_handle", "virtual_local_rank"),
)
# https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch
_ACCELERATE = (
    *("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "mixed_precision"),
    *("multi_gpu", "config_file", "use_deepspeed", "deepspeed_config_file", "use_fsdp", "dynamo_backend", "gpu_ids"),
    *("same_network", "num_cpu_threads_per_process", "zero_stage", "gradient_accumulation_steps", "module", "tpu"),
    *("gradient_clipping", "rdzv_backend", "rdzv_conf", "max_restarts", "no_python", "debug", "quiet", "cpu"),
    *("offload_optimizer_device", "offload_param_device", "deepspeed_multinode_launcher", "deepspeed_hostfile"),
    *("zero3_init_flag", "zero3_save_16bit_model", "use_xpu", "num_processes_per_node", "enable_cpu_affinity"),
)
# https://www.deepspeed.ai/getting-started/#launching-deepspeed-training
_DEEPSPEED = (
    *("num_gpus", "num_nodes", "include", "exclude", "hostfile", "master_addr", "master_port", "launcher", "module"),
    *(
        "no_python",
        "no_local_rank",
        "no_ssh",
        "node_rank",
        "launcher_args",
        "force_multi",
        "save_pid",
        "elastic_training",
    ),
    *(
        "min_elastic_nodes",
        "max_elastic_nodes",
        "enable_each_rank_log",
        "autotuning",
        "bind_cores_to_rank",
        "user_args",
    ),
)
_FLAGS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    **dict.fromkeys(("accelerate", "accelerate.commands.launch"), _ACCELERATE),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED),
}
_MACHINES = ("nnodes", "num_machines", "num_nodes")


LAUNCHER_FLAG = Rule("AML622", "launcher-flag", "error").explained(
    summary="A flag of torchrun, accelerate or deepspeed is misspelt, or asks for machines that the job does not have.",
    why="The launcher ends at once with an unknown flag. With more machines than there are, the processes wait for "
    "the others until the job times out; with `--standalone`, each machine trains by itself.",
    example="""\
type: command
command: torchrun ‸--‹nprocs_per_node⇒nproc_per_node› 8 train.py
environment: azureml:torch:3
resources: {instance_type: Standard_ND96asr_v4, shm_size: 64g}
""",
)


@check("placement")
def _launcher_flag(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    command = context.command_of(placement.component)
    if command is None:
        return
    for words in simple_commands(command.text):
        known, flags = _flags_of(words)
        for word, value in flags:
            name = word.text.partition("=")[0].lstrip("-").replace("-", "_")
            span = command.span(word.start, word.end)
            is_known = any(each == name or (each.startswith(name) and known is not _ACCELERATE) for each in known)
            meant = only_close(name, known) if not is_known else None
            if meant is not None:
                hint = f"Did you mean '--{meant}'?"
                yield LAUNCHER_FLAG.at(span, f"the launcher has no flag {word.text.partition('=')[0]}", hint)
            elif name in _MACHINES and value.isdecimal() and placement.nodes not in (None, int(value)):
                message = f"the launcher waits for {value} machines, and the job has {placement.nodes}"
                yield LAUNCHER_FLAG.at(span, message, f"Write {placement.nodes}.")
            elif name == "standalone" and placement.nodes is not None and placement.nodes > 1:
                message = f"with --standalone each of the {placement.nodes} machines trains by itself"
                yield LAUNCHER_FLAG.at(span, message, "Use --nnodes, --node_rank and --master_addr.")


def _flags_of(words: Sequence[Word]) -> tuple[tuple[str, ...], list[tuple[Word, str]]]:
    """The flags that a launcher has, and those given to it before its script, each with what follows it."""
    start = next(
        (at for at, word in enumerate(words) if word.text in LAUNCHER_MODULES or (at == 0 and word.text in _FLAGS)),
        None,
    )
    if start is None or words[start].text not in _FLAGS:
        return (), []
    given: list[tuple[Word, str]] = []
    for at in range(start + 1, len(words)):
        word = words[at]
        if word.text.endswith(".py") or word.text in ("-m", "--module"):
            return _FLAGS[words[start].text], given
        if word.text.startswith("--") and "$" not in word.text:
            _, equals, value = word.text.partition("=")
            follower = words[at + 1].text if at + 1 < len(words) else ""
            given.append((word, value if equals else follower))
    return (), []
