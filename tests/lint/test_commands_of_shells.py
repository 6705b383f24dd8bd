"""Commands are read as a shell reads them: comments, here-documents, subshells, loops, nested shells and variables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainyard.lint.linter import lint

SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--epochs", type=int)
print(parser.parse_args())
"""
JOB = """\
type: command
code: ./src
environment: azureml:torch:3
compute: azureml:c
inputs:
  data: {type: uri_folder, path: azureml:d:1}
"""
DATA = "--data ${{inputs.data}}"
RIGHT = f"python train.py {DATA} --epochs 3"
WRONG = f"python train.py {DATA} --epocs 3"


def found(folder: Path, command: str, style: str = "|", more: str = "") -> list[tuple[str, str]]:
    """The rules that lint reports for a job with this command, each with what it points at."""
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(SCRIPT)
    file = folder / "job.yml"
    file.write_text(f"{JOB}{more}command: {style}\n" + "".join(f"  {line}\n" for line in command.split("\n")))
    lines = file.read_text().split("\n")
    places = [(each.rule, each.span) for each in lint([file]).diagnostics]
    return [(rule, lines[span.line - 1][span.column - 1 : span.end_column - 1]) for rule, span in places]


@pytest.mark.parametrize(
    ("style", "command", "expected"),
    [
        (">-", f"python train.py\n# the data\n{DATA}", ("AML562", "#")),
        (">-", f"python train.py # the data\n{DATA}", ("AML562", "#")),
        (">-", f"# train\npython train.py {DATA}", ("AML562", "#")),
        (">-", f"python train.py\n# the data\n# of today\n{DATA}", ("AML562", "#")),
        ("|", f"python train.py \\\n# the data\n{DATA}", ("AML562", "#")),
        ("|", f"python train.py\n{DATA} \\\n--epochs 3", ("AML555", "--data")),
        ("|", f"python train.py {DATA} \\\n\n--epochs 3", ("AML555", "--epochs")),
        ("|", f"python train.py \\\n{DATA}\n$[[--epochs 3]]", ("AML555", "--epochs")),
    ],
)
def test_arguments_that_a_comment_or_a_line_end_cuts_off_are_one_finding(
    tmp_path: Path, style: str, command: str, expected: tuple[str, str]
) -> None:
    assert found(tmp_path, command, style) == [expected]


@pytest.mark.parametrize(
    ("style", "command"),
    [
        (">-", f"{RIGHT}\n# done"),
        (">-", f"{RIGHT} # three epochs are enough\nfor this data"),
        ("|", f"# train\n{RIGHT} # three epochs\n# done"),
        ("|", f"python train.py \\\n  {DATA} \\\n  --epochs 3"),
        ("|", f"case $1 in\n--fast)\n{RIGHT} ;;\nesac"),
        ("|", f"cat <<EOF > a.txt\n--epocs 3\nit's {{ (\nEOF\n{RIGHT}"),
        ("|", f"cat <<-'END' > a.txt\npython train.py\n\tEND\n{RIGHT}"),
        ("|", f"python - <<EOF\nprint('python train.py')\nEOF\n{RIGHT}"),
        ("|", f"# don't\n({RIGHT}) && {{ ls; }}"),
        ("|", f"run() {{\n{RIGHT}\n}}\nrun; files=(a b); if ls; then pwd; fi"),
        ("|", f'echo "$(date +"%d)")" && {RIGHT}'),
        ("|", f'X="$(cat f | sed "s/\'//g")" && {RIGHT}'),
        ("|", f'echo "$(echo "don\'t")" && {RIGHT}'),
        ("|", f"python train.py {DATA} --epochs <(echo 3) 2> >(tee log)"),
        ("|", f"CUDA_VISIBLE_DEVICES= {RIGHT}; [ $A = 3 ] && ls; export; export A=3"),
        ("|", f"bash -c '{RIGHT}' && bash -c \"$A\" b && bash run.sh -c a || true"),
        ("|", f"A='{DATA}'; python train.py $A; B=3 && python train.py {DATA} --epochs \"$B\""),
        ("|", f"A=three; if ls; then A=3; fi; python train.py {DATA} --epochs $A"),
        ("|", f"cd src && export A=3 && {RIGHT}"),
    ],
)
def test_right_commands_are_left_alone(tmp_path: Path, style: str, command: str) -> None:
    assert [each for each in found(tmp_path, command, style) if each[0] not in ("AML418", "AML504")] == []


@pytest.mark.parametrize(
    "command",
    [
        f"({WRONG})",
        f"(cd . && {WRONG})",
        f"{{ {WRONG}; }}",
        f"if ls; then {WRONG}; fi",
        f"for i in 1 2; do {WRONG}; done",
        f"bash -c '{WRONG}'",
        f'bash -eo pipefail -c "{WRONG}"',
        f"cat <<EOF > a.txt\nit's\nEOF\n{WRONG}",
        f'MORE="--epocs 3" && python train.py {DATA} $MORE',
        f"python train.py {DATA} > >(tee log) --epocs 3",
        f"export MORE='{DATA} --epocs 3'\npython train.py ${{MORE}}",
    ],
)
def test_flags_are_compared_wherever_the_shell_runs_the_script(tmp_path: Path, command: str) -> None:
    assert found(tmp_path, command) == [("AML501", "--epocs")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"(pwd && {RIGHT}", "("),
        (f"{RIGHT})", ")"),
        (f"{{ {RIGHT}", "{"),
        (f"for i in 1 2; do {RIGHT}", "for"),
        (f"if [ -d a ] then {RIGHT}; fi", "if"),
        (f"while true do {RIGHT}; done", "while"),
        (f"if ls; then {RIGHT} fi", "if"),
        (f"# don't\n{RIGHT} && && ls", "&&"),
        (f'A="$(echo "b)" && {RIGHT}', '"'),
        (f"{RIGHT} && echo 'a", "'"),
    ],
)
def test_what_bash_refuses_is_found(tmp_path: Path, command: str, expected: str) -> None:
    assert subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False).returncode != 0
    assert found(tmp_path, command) == [("AML561", expected)]


@pytest.mark.parametrize("style", [">-", "|"])
def test_a_here_document_without_a_last_line_is_found(tmp_path: Path, style: str) -> None:
    assert found(tmp_path, f"cat <<EOF > a.txt\na\n EOF\n{RIGHT}", style) == [("AML561", "<<EOF")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"cd sub\n{RIGHT}", ("AML556", "python")),
        (f"export SEED=1\n{RIGHT}", ("AML556", "python")),
        (f"bash -c {RIGHT}", ("AML563", "python")),
        (f"pip install torch>=2.1 && {RIGHT}", ("AML564", ">")),
        (f"pip install -q 'torch[x]'<2 && {RIGHT}", ("AML564", "<")),
        (f"conda install -y numpy>1.26.0 && {RIGHT}", ("AML564", ">")),
        (f"SEED = 3 && {RIGHT}", ("AML504", "SEED =")),
        (f"SEED= 3 && {RIGHT}", ("AML504", "SEED= 3")),
        (f"export SEED = 3 && {RIGHT}", ("AML504", "SEED =")),
        (f"EPOCHS=three && python train.py {DATA} --epochs $EPOCHS", ("AML505", "three")),
        (f"SCRIPT=trian.py && python $SCRIPT {DATA}", ("AML406", "trian.py")),
    ],
)
def test_other_slips_of_shells_are_found(tmp_path: Path, command: str, expected: tuple[str, str]) -> None:
    assert found(tmp_path, command, ">-") == [expected]


@pytest.mark.parametrize(
    "install",
    [
        "pip install 'torch>=2.1'",
        'pip install "torch<2" > pip.log',
        "pip install torch>pip.log",
        "pip install torch 2>&1",
        "pip list>=2.1",
    ],
)
def test_redirections_that_are_meant_are_left_alone(tmp_path: Path, install: str) -> None:
    assert found(tmp_path, f"{install} && {RIGHT}") == []


TWO = "resources: {instance_count: 2, instance_type: Standard_ND96asr_v4, shm_size: 64g}\n"


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("torchrun --nproc_per_node 8", [("AML622", "torchrun")]),
        ("python -m torch.distributed.run --nproc_per_node 8", [("AML622", "torch.distributed.run")]),
        ("torchrun --nproc_per_node $GPUS", [("AML622", "torchrun")]),
        ("torchrun --nproc_per_node 8 --nnodes 2 --node_rank $AZUREML_CR_NODE_RANK", []),
        ("torchrun --nproc_per_node 8 --nnode=2", []),
        ("torchrun --nproc_per_node 8 --nnodes 2 --master_addr $MASTER_ADDR", [("AML622", "torchrun")]),
        ("torchrun --nproc_per_node 8 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500", []),
        ("torchrun $FLAGS", []),
        ("torchrun --nproc_per_node 8 --nnodes 2 --master_addr $MASTER_ADDR $EXTRA", []),
        ("export PET_NODE_RANK=$NODE_RANK && torchrun --nproc_per_node 8 --nnodes 2 --master_addr $MASTER_ADDR", []),
        ("PET_NNODES=2 torchrun --nproc_per_node 8", []),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["", "in_bash"])
def test_a_launcher_that_is_not_told_of_the_other_machine_is_found(
    tmp_path: Path, launcher: str, expected: list[tuple[str, str]], nested: bool
) -> None:
    command = f"{launcher} train.py {DATA}"
    assert found(tmp_path, f"bash -c '{command}'" if nested else command, more=TWO) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("pip install tqdm &", [("AML559", "&")]),
        ("pip install tqdm & wait;", []),
        ("pip install tqdm &> pip.log &&", []),
        ("pip install tqdm 2>&1 &&", []),
        ("nvidia-smi -l 60 &", []),
        ("pip install 'https://x.org/y.whl?sv=1&sig=2' &&", []),
        ('pip install "https://x.org/y.whl?sv=1&sig=2" &&', []),
        ('echo "pip install a & b" &&', []),
        ("pip install tqdm & installed=$!; tail --pid=$installed -f /dev/null;", []),
        ("pip install tqdm > pip.log 2>&1 &&", []),
    ],
)
def test_an_installation_that_nothing_waits_for_is_found(
    tmp_path: Path, before: str, expected: list[tuple[str, str]]
) -> None:
    assert found(tmp_path, f"{before} {RIGHT}") == expected
