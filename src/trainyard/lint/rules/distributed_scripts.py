"""What the script of a distributed training must do with its data and GPUs, which each tutorial teaches.

Only what holds wherever the script goes is reported: nothing of a script that leaves the work to a framework.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.placements import Placement
from trainyard.lint.rules.process_groups import OF_RANK, PROCESS_GROUP, conditional
from trainyard.lint.rules.script_imports import all_imports, module_in
from trainyard.lint.scripts.data_reads import argument_holders
from trainyard.lint.scripts.syntax import Syntax, constant, dotted, keyword, line_of, parse, walk
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import only_close
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.distributions import Mpi, PyTorch
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript

_FRAMEWORKS: frozenset[str] = frozenset(known_words("frameworks"))
_SAMPLERS = frozenset({"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"})
_LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
_DDP = frozenset({"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"})
_DATA_PARALLEL = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})
_SUBJECTS = _SAMPLERS | _LOADERS | _DDP | _DATA_PARALLEL
"""What a script must call for any of these rules: of others nothing that they import is read."""
_NOT_TRAINING = regex(r"val|test|eval|dev|pred|infer", re.IGNORECASE)
_MOVES = ("cuda", "to")
_CHOOSE_DEVICES = frozenset({"set_device", "set_default_device", "device_ids"})
_OF_MPI = "OMPI_COMM_WORLD_"


class _Script(NamedTuple):
    """A script that several processes run, without a framework for it. `names`: all names and strings in its code."""

    command: str
    called: CalledScript
    syntax: Syntax
    names: frozenset[str]
    processes: int = 0

    def found(self, rule: Rule, place: ast.AST, message: str, hint: str, said: str) -> Diagnostic:
        """Return a finding at the script's name, with its line."""
        assert self.called.file is not None
        return rule.at(self.called.place, message, hint, [line_of(self.called.file, place, said)])

    def calls(self, paths: frozenset[str]) -> Iterator[ast.Call]:
        """Every call of what has one of these paths."""
        return (call for call in self.syntax.calls if dotted(call.func, self.syntax.imported) in paths)

    def values(self, expression: ast.expr) -> Sequence[ast.expr]:
        """What an expression may be: the values of a variable that is not a parameter as well, or itself."""
        is_parameter = any(argument.arg == ast.unparse(expression) for argument in self.syntax.of(ast.arg))
        return [expression] if is_parameter else self.syntax.assigned.get(ast.unparse(expression), [expression])

    @property
    def trains_with_ddp(self) -> bool:
        """Whether it trains a model in a loop of its own, with DistributedDataParallel."""
        return any(self.calls(_DDP)) and "backward" in self.names


@check("placement")
def _distributed_scripts(placement: Placement, context: LintContext) -> Iterator[Diagnostic]:
    for script in _scripts(placement, context):
        yield from _sampler_without_epoch(script)
        yield from _shuffle_beside_sampler(script)
        yield from _one_gpu_for_all(script, placement)
        yield from _processes_apart(script)
        yield from _saved_by_every_process(script)
        yield from _no_sampler(script)
        yield from _batch_means_averaged(script)
        yield from _variables_not_set(script, placement)
        yield from _what_may_be_better(script)


def _scripts(placement: Placement, context: LintContext) -> Iterator[_Script]:
    nodes, processes = placement.nodes, placement.processes_per_node
    command = context.command_of(placement.component)
    if command is None or nodes is None or processes is None or nodes * processes < 2:
        return
    if not isinstance(placement.distribution, (PyTorch, Mpi)):
        return
    for called, file, syntax in context.scripts_of(command):
        script = context.cached(("distributed script", file), partial(_read, called, file, syntax))
        if script is not None:
            yield script._replace(command=command.text, called=called, processes=nodes * processes)


def _read(called: CalledScript, file: Path, syntax: Syntax) -> _Script | None:
    # Before anything it imports is read: most scripts, such as Trainyard's steps, call nothing that a rule is about.
    if not any(dotted(call.func, syntax.imported) in _SUBJECTS for call in syntax.calls):
        return None
    paths, files = paths_and_files(file, called, syntax)
    if not _FRAMEWORKS.isdisjoint(path.partition(".")[0] for path in paths):
        return None
    trees = [tree for each in files if (tree := parse(each)) is not None]
    return _Script("", called, syntax, frozenset(name for tree in trees for name in _names(tree)))


def paths_and_files(file: Path, called: CalledScript, syntax: Syntax) -> tuple[set[str], set[Path]]:
    """Return the paths that a script and modules of its code import, and the files of both."""
    folders = (called.root, file.parent)
    imports = all_imports(file, folders)
    paths = {each.path for each in imports} | set(syntax.imported.values())
    return paths, {file, *(each.file for each in imports), *_modules(paths, folders)}


def _modules(paths: Iterable[str], folders: Sequence[Path]) -> Iterator[Path]:
    """The files in these folders that have the names of modules, or of what holds what is imported from them."""
    for path in paths:
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            found = (module_in(folder, "/".join(parts[:end])) for folder in folders)
            yield from (file for file in found if file is not None)


def _names(syntax: Syntax) -> Iterator[str]:
    yield from (node.id for node in syntax.of(ast.Name))
    yield from (node.attr for node in syntax.of(ast.Attribute))
    yield from (node.name for node in syntax.of(ast.alias))
    yield from (value for node in syntax.of(ast.Constant) if isinstance(value := node.value, str))


SAMPLER_WITHOUT_EPOCH = Rule("AML631", "sampler-without-epoch", "warning").explained(
    summary="A DistributedSampler is never told the epoch.",
    why="Without `set_epoch` it shuffles by the same seed each time: every epoch has the same order, and each process "
    "the same samples (https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler).",
)


def _sampler_without_epoch(script: _Script) -> Iterator[Diagnostic]:
    has_epochs = any("epoch" in ast.unparse(loop.target).lower() for loop in script.syntax.of(ast.For))
    if not has_epochs or "set_epoch" in script.names:
        return
    for node in script.syntax.of(ast.Assign):
        call, target = node.value, ast.unparse(node.targets[0])
        is_sampler = isinstance(call, ast.Call) and dotted(call.func, script.syntax.imported) in _SAMPLERS
        if not is_sampler or _NOT_TRAINING.search(target):
            continue
        assert isinstance(call, ast.Call)
        given = [argument.arg for argument in call.keywords]
        is_shuffled = constant(keyword(call, "shuffle")) is True or (
            "shuffle" not in given and None not in given and len(call.args) < 4
        )
        if is_shuffled and "seed" not in given and not _NOT_TRAINING.search(ast.unparse(call)):
            message = f"{script.called.name} shuffles each epoch alike: nothing calls set_epoch of its sampler"
            hint = f"Call {target}.set_epoch(epoch) at the start of each epoch."
            yield script.found(SAMPLER_WITHOUT_EPOCH, call, message, hint, "the sampler is made here")
            break


SHUFFLE_BESIDE_SAMPLER = Rule("AML632", "shuffle-beside-sampler", "error").explained(
    summary="A DataLoader has both a sampler and `shuffle=True`.",
    why="PyTorch refuses it with a ValueError: the sampler decides the order, and a DistributedSampler shuffles unless "
    "told otherwise.",
)


def _shuffle_beside_sampler(script: _Script) -> Iterator[Diagnostic]:
    for call in script.calls(_LOADERS):
        sampler = keyword(call, "sampler")
        if constant(keyword(call, "shuffle")) is not True or sampler is None:
            continue
        values = script.values(sampler)
        called = [dotted(value.func, script.syntax.imported) if isinstance(value, ast.Call) else "" for value in values]
        if all(name.endswith("Sampler") for name in called):
            message = f"{script.called.name} gives a DataLoader both a sampler and shuffle=True: PyTorch refuses"
            hint = "Leave out shuffle: a DistributedSampler shuffles."
            yield script.found(SHUFFLE_BESIDE_SAMPLER, call, message, hint, "the DataLoader is made here")


ONE_GPU_FOR_ALL = Rule("AML633", "one-gpu-for-all", "error").explained(
    summary="Every process of a machine takes the same GPU, or one that its machine does not have.",
    why="Its memory is soon full, and NCCL refuses two processes on one GPU. Each process uses the GPU of its "
    "LOCAL_RANK. Not reported if the script or the command chooses the visible devices itself.",
)


def _one_gpu_for_all(script: _Script, placement: Placement) -> Iterator[Diagnostic]:
    if (placement.processes_per_node or 1) < 2 or (placement.sku is not None and not placement.sku.gpu_count):
        return
    if any("CUDA_VISIBLE_DEVICES" in text for text in (script.command, *script.names)):
        return
    yield from _same_device(script, placement)


def _same_device(script: _Script, placement: Placement) -> Iterator[Diagnostic]:
    """A device of a fixed number in a script that creates a process group and never chooses a GPU by rank."""
    if "init_process_group" not in script.names or not _CHOOSE_DEVICES.isdisjoint(script.names):
        return
    if any(name.startswith("cuda:") and name != "cuda:0" for name in script.names):
        return  # perhaps the beginning of f"cuda:{rank}"
    devices = list(script.calls(frozenset({"torch.device", "torch.cuda.device"})))
    if not all(_is_constant(argument) for call in devices for argument in call.args):
        return
    moves = [call for call in script.syntax.calls if isinstance(call.func, ast.Attribute) and call.func.attr in _MOVES]
    made = {name for name, values in script.syntax.assigned.items() if all(value in devices for value in values)}
    if any(call.args and constant(call.args[0]) is None and ast.unparse(call.args[0]) not in made for call in moves):
        moves = []  # perhaps to the GPU of the rank
    on_condition: set[int] | None = None
    for call in (*script.calls(frozenset({"torch.device"})), *moves):
        named = call.args[0] if call.args else None
        named = named.body if isinstance(named, ast.IfExp) else named
        on_condition = conditional(script.syntax) if on_condition is None else on_condition
        is_default = named is None and ast.unparse(call.func).endswith(".cuda") and "device" not in ast.unparse(call)
        if (is_default or constant(named) in ("cuda", "cuda:0")) and id(call) not in on_condition:
            message = f"each of the {placement.processes_per_node} processes of a machine computes on GPU 0"
            hint = 'Write torch.device("cuda", int(os.environ["LOCAL_RANK"])).'
            yield script.found(ONE_GPU_FOR_ALL, call, message, hint, "the GPU is chosen here")
            return


def _is_constant(value: ast.expr) -> bool:
    """Whether a value is a literal, or one of two."""
    if isinstance(value, ast.IfExp):
        return _is_constant(value.body) and _is_constant(value.orelse)
    return isinstance(value, ast.Constant)


PROCESSES_APART = Rule("AML634", "processes-apart", "warning").explained(
    summary="The processes of a job are never connected: each trains the whole model by itself.",
    why="DataParallel is for one process with all GPUs of a machine: use DistributedDataParallel "
    "(docs/coming-from/data_parallel.md), or one process without a `distribution`. Horovod needs `type: mpi`, "
    "TensorFlow's MultiWorkerMirroredStrategy `type: tensorflow`, and Lightning's Trainer `num_nodes`.",
)
_JOINS: list[str] = known_words("joins_processes")


def _processes_apart(script: _Script) -> Iterator[Diagnostic]:
    if "backward" not in script.names or any(join in name for name in script.names for join in _JOINS):
        return
    for call in script.calls(_DATA_PARALLEL):
        message = (
            f"each of the {script.processes} processes trains the whole model by itself: {script.called.name} uses"
        )
        hint = "Use DistributedDataParallel, or remove the distribution for one process with all GPUs."
        said = "DataParallel is for one process"
        yield script.found(PROCESSES_APART, call, f"{message} DataParallel and creates no process group", hint, said)
        break


SAVED_BY_EVERY_PROCESS = Rule("AML635", "saved-by-every-process", "warning").explained(
    summary="Every process writes the same file.",
    why="torch.save of a model that all processes have the same of, to one path, without asking for the rank: they "
    "write over each other, and on a mounted output the file may be cut or mixed. Save on rank 0 only "
    "(https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html).",
)
_LEAVES = (ast.Return, ast.Continue, ast.Raise)


def _saved_by_every_process(script: _Script) -> Iterator[Diagnostic]:
    saves = list(script.calls(frozenset({"torch.save"})))
    if not saves or not any(script.calls(_DDP)) or _some_processes_leave(script.syntax):
        return
    on_condition = conditional(script.syntax)
    for call in saves:
        path = call.args[1] if len(call.args) > 1 else keyword(call, "f")
        is_text = isinstance(path, ast.JoinedStr) or isinstance(constant(path), str)
        if isinstance(path, ast.Call) and dotted(path.func, script.syntax.imported) == "os.path.join":
            holders = argument_holders(script.syntax)  # the same arguments for each process
            is_text = all(constant(part) or ast.unparse(part).split(".")[0] in holders for part in path.args)
            is_text = is_text and all(isinstance(node.ctx, ast.Load) for node in script.syntax.of(ast.Attribute))
        if path is not None and is_text and id(call) not in on_condition and not OF_RANK.search(ast.unparse(path)):
            message = f"each process of {script.called.name} writes {ast.unparse(path)}"
            hint = "Save on rank 0 only: if torch.distributed.get_rank() == 0."
            yield script.found(SAVED_BY_EVERY_PROCESS, call, message, hint, "it is saved here")
            break


def _some_processes_leave(syntax: Syntax) -> bool:
    """Whether processes of some ranks end, or go on elsewhere, before what follows."""
    of_rank = (each for each in syntax.of(ast.If) if OF_RANK.search(ast.unparse(each.test)))
    return any(isinstance(node, _LEAVES) or "exit" in ast.unparse(node) for each in of_rank for node in each.body)


NO_SAMPLER = Rule("AML636", "no-sampler", "warning").explained(
    summary="Every process, or every machine, trains on all of the data.",
    why="Without a DistributedSampler each process takes all samples, in an order of its own: an epoch is as many "
    "times as long as there are processes, and no faster than on one. Not reported if anything in the script or its "
    "modules divides data, such as a sampler of another kind, an IterableDataset or a slice by rank, or if it asks for "
    "the number of processes.",
)
_PRINTS = ("print", ".debug", ".info", ".warning", ".error", ".log")
_DIVIDES = regex(
    r"(?i:sampler|shard|iterable|split_(dataset_)?by|webdataset|num_replicas|partition)|get_world_size|WORLD_SIZE"
)


def _no_sampler(script: _Script) -> Iterator[Diagnostic]:
    if not script.trains_with_ddp:
        return
    given = {argument.arg or "**" for call in script.calls(_LOADERS) for argument in call.keywords}
    words = {name for name in script.names if name.isidentifier()}
    divides = any(_DIVIDES.search(word) for word in words | given)
    if divides or "**" in given or _takes_its_part(script.syntax):
        return
    for call in script.calls(_LOADERS):
        if constant(keyword(call, "shuffle")) is True and not _NOT_TRAINING.search(ast.unparse(call)):
            message = f"each process of {script.called.name} trains on all of the data: no sampler divides it"
            hint = "Give it sampler=DistributedSampler(data), and call sampler.set_epoch(epoch)."
            yield script.found(NO_SAMPLER, call, message, hint, "the DataLoader is made here")
            break


def _takes_its_part(syntax: Syntax) -> bool:
    """Whether an index, a range, a remainder or a file's name depends on the process."""
    called = [(dotted(call.func, syntax.imported), call.args) for call in syntax.calls]
    printed = {id(each) for name, given in called if name.endswith(_PRINTS) for each in given}
    parts: list[ast.expr] = [node.slice for node in syntax.of(ast.Subscript)]
    parts += [each for name, given in called if name in ("range", "itertools.islice") for each in given]
    for text in syntax.of(ast.JoinedStr):
        is_device = str(constant(text.values[0])).startswith("cuda") if text.values else False
        if id(text) not in printed and not is_device:
            parts += [each for each in text.values if isinstance(each, ast.FormattedValue)]
    for compared in syntax.of(ast.Compare):
        parts += [compared for each in (compared.left, *compared.comparators) if _is_remainder(each)]
    parts += [each for each in syntax.of(ast.BinOp) if _is_remainder(each) and id(each) not in printed]
    return any(re.search("rank|world", ast.unparse(part)) for part in parts)


def _is_remainder(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


EXCHANGED_EACH_TIME = Rule("AML637", "exchanged-each-time", "info").explained(
    summary="Gradients that are accumulated are exchanged with each micro-batch.",
    why="DistributedDataParallel sums gradients over the processes in each backward pass. Where several are "
    "accumulated before a step, all but the last can be under `no_sync`, which saves their traffic "
    "(https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html).",
)
BATCH_NORM_APART = Rule("AML638", "batch-norm-apart", "info").explained(
    summary="Batch normalization takes its statistics from each process's own samples.",
    why="With few samples on each GPU they are noisy, and differ from those of a training on one. "
    "`torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` before DistributedDataParallel takes them over all "
    "processes, for some time at each layer.",
)
_BATCH_NORM = frozenset(f"torch.nn.BatchNorm{dimensions}d" for dimensions in (1, 2, 3))
_SYNCHRONIZED = ("no_sync", "require_backward_grad_sync")


BATCH_MEANS_AVERAGED = Rule("AML639", "batch-means-averaged", "info").explained(
    summary="A loss is averaged over batches, of which the last may be smaller.",
    why="The sum of the batches' means by `len(loader)` gives each sample of a small last batch more weight than the "
    "others, on each process by itself. Sum `loss.item() * len(batch)` and the number of samples over the processes, "
    "and divide once (docs/metrics.md). Only reported for losses of PyTorch that are means, and if no DataLoader "
    "drops its last batch.",
)
_MEAN_LOSSES = regex(r"torch\.nn\.(?:\w+Loss|functional\.(?:\w+_loss|(?:binary_)?cross_entropy(?:_with_logits)?))")


def _batch_means_averaged(script: _Script) -> Iterator[Diagnostic]:
    syntax, loaders = script.syntax, list(script.calls(_LOADERS))
    losses = [call for call in syntax.calls if _MEAN_LOSSES.fullmatch(dotted(call.func, syntax.imported))]
    if not losses or not loaders or any(keyword(loss, "reduction") is not None for loss in losses):
        return
    given = [{each.arg: constant(each.value) for each in loader.keywords} for loader in loaders]
    if any(None in each or "batch_sampler" in each or "drop_last" in each for each in given):
        return
    sums = set(_sums_of_losses(syntax))
    divided = [node for node in syntax.of(ast.BinOp) if isinstance(node.op, ast.Div)]
    mean = next((node for node in divided if (ast.unparse(node.left), ast.unparse(node.right)) in sums), None)
    if mean is not None:
        message = f"{script.called.name} divides a sum of batch means by the number of batches"
        hint = "Add loss.item() * len(batch), and divide by the number of samples of all processes."
        yield script.found(BATCH_MEANS_AVERAGED, mean, message, hint, "it is divided here")


def _sums_of_losses(syntax: Syntax) -> Iterator[tuple[str, str]]:
    """What a loop over batches adds the loss of each to, and the number of these batches, as both are written."""
    for loop in syntax.of(ast.For):
        over = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else loop.iter
        for added in (node for statement in loop.body for node in walk(statement) if isinstance(node, ast.AugAssign)):
            is_loss = re.fullmatch(r"(?:\w+_)?loss(?:\.detach\(\))?(?:\.item\(\))?", ast.unparse(added.value))
            if isinstance(added.op, ast.Add) and is_loss:
                yield ast.unparse(added.target), f"len({ast.unparse(over)})"


def _variables_not_set(script: _Script, placement: Placement) -> Iterator[Diagnostic]:
    """PyTorch's variables under MPI, unless something mentions those of MPI; MPI's and Slurm's under PyTorch; and names
    that are close to PyTorch's.
    """
    known, is_mpi = PyTorch.rank_variables, isinstance(placement.distribution, Mpi)
    is_pytorch = isinstance(placement.distribution, PyTorch) and "mpi" not in script.command
    has_other_source = any("OMPI_" in name or name in ("mpi4py", "init_distributed") for name in script.names)
    imported, on_condition = script.syntax.imported, conditional(script.syntax)
    reads = [node for node in script.syntax.of(ast.Subscript) if dotted(node.value, imported) == "os.environ"]
    given = {constant(node.slice) for node in reads if not isinstance(node.ctx, ast.Load)}
    given |= placement.node.entries_of("environment_variables").keys()
    for node in reads:
        name = constant(node.slice)
        if not isinstance(name, str) or name in given or name in script.command or id(node) in on_condition:
            continue
        meant = only_close(name, known) if name not in known else None
        is_foreign = is_pytorch and name.startswith(("SLURM_", _OF_MPI))
        if meant is not None or is_foreign or (name in known and is_mpi and not has_other_source):
            kind = f" with `type: {'mpi' if is_mpi else 'pytorch'}`" if meant is None else ""
            message = f"{script.called.name} reads {name}, which Azure ML does not set{kind}"
            own = f"Write `type: pytorch`, or read {_OF_MPI}*." if is_mpi else "Read RANK, LOCAL_RANK or WORLD_SIZE."
            hint = f"Did you mean '{meant}'?" if meant is not None else own
            yield script.found(PROCESS_GROUP, node, message, hint, "it is read here")._replace(severity="warning")
            return


def _what_may_be_better(script: _Script) -> Iterator[Diagnostic]:
    if not script.trains_with_ddp:
        return
    step = _only_step(script.syntax)
    if step is not None and script.names.isdisjoint(_SYNCHRONIZED):
        message = f"{script.called.name} accumulates gradients, and exchanges them in each backward pass"
        hint = "Run all but the last backward pass of a step within `with model.no_sync():`."
        yield script.found(EXCHANGED_EACH_TIME, step, message, hint, "only then the optimizer steps")
    norm = next(script.calls(_BATCH_NORM), None)
    if norm is not None and not any("SyncBatchNorm" in name or "sync_batchnorm" in name for name in script.names):
        message = f"batch normalization in {script.called.name} takes its statistics from each process's own samples"
        hint = "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), before DistributedDataParallel."
        yield script.found(BATCH_NORM_APART, norm, message, hint, "the layer is made here")


def _only_step(syntax: Syntax) -> ast.If | None:
    """The first `if (i + 1) % steps == 0:` in which an optimizer steps, if none steps elsewhere."""
    steps = {id(call) for call in syntax.calls if _is_step(call)}
    found: ast.If | None = None
    for each in syntax.of(ast.If):
        within = {id(node) for statement in each.body for node in walk(statement)} & steps
        if within and any(map(_is_remainder, walk(each.test))):
            found = found or each
            steps -= within
    return found if not steps else None


def _is_step(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "step"
    return is_method and "optim" in ast.unparse(call.func).lower()
