"""Commands cut as a shell would, and the Python scripts they call."""

from __future__ import annotations

import pytest

from trainyard.spec.shell_lexer import read_shell, simple_commands
from trainyard.spec.shell_words import python_calls


def texts(command: str) -> list[list[str]]:
    return [[word.text for word in words] for words in simple_commands(command)]


def test_words_keep_bindings_whole_and_lose_their_quotes() -> None:
    command = "run '${{ inputs.a }}' --b=\"x y\" c\\ d # why\nnext"
    assert texts(command) == [["run", "${{ inputs.a }}", "--b=x y", "c d"], ["next"]]


def test_optional_parts_are_marked() -> None:
    (words,) = simple_commands("run $[[ --x ${{inputs.x}} ]] --y")
    assert [(word.text, word.is_optional) for word in words] == [
        ("run", False), ("--x", True), ("${{inputs.x}}", True), ("--y", False),
    ]  # fmt: skip


def test_operators_and_lines_end_a_command() -> None:
    assert texts("a && b || c; d | e > out.txt 2>&1 & f \\\n g") == [
        ["a"], ["b"], ["c"], ["d"], ["e", "out.txt"], ["f", "g"],
    ]  # fmt: skip


def test_a_process_substitution_is_a_word() -> None:
    command = "python a.py --config <(echo 'x)' | sort) --all=<(ls) --epochs 3 2>&1 > >(tee log) < in"
    assert texts(command) == [
        ["python", "a.py", "--config", "<(echo 'x)' | sort)", "--all=<(ls)", "--epochs", "3", ">(tee log)", "in"],
    ]  # fmt: skip
    (words,) = simple_commands(command)
    assert [word.text[:2] for word in words if not word.is_plain] == ["<(", "--", ">("]


def test_comments_and_here_documents_have_no_words() -> None:
    command = "cat <<EOF > a; b # c\n$(d) it's\nEOF\n(e; f=(1 2)) | bash -c 'if g; then h; fi'"
    assert texts(command) == [
        ["cat", "a"], ["b"], ["e"], ["f=(1 2)"], ["bash", "-c", "if g; then h; fi"], ["g"], ["h"], ["fi"],
    ]  # fmt: skip
    shell = read_shell(command)
    assert [command[start:end] for start, end in (*shell.comments, *shell.documents)] == ["# c", "$(d) it's\nEOF"]


def test_offsets_are_those_of_the_command() -> None:
    command = "run  'a b' c"
    assert [command[word.start : word.end] for word in simple_commands(command)[0]] == ["run", "'a b'", "c"]


@pytest.mark.parametrize(
    "command", ["'", '"\\', "${{", "$[[ ]", "\\", "]]", "a'b\"c", "$(", "a=(", "`", "<<", "<<E", "(", "\"$('"]
)
def test_what_is_not_closed_ends_with_the_command(command: str) -> None:
    simple_commands(command)


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("python train.py --a", [("train.py", False)]),
        ("CUDA_VISIBLE_DEVICES=0 python3 -u -W ignore train.py", [("train.py", False)]),
        ("python -m package.train --a", [("package.train", True)]),
        ("torchrun --nproc_per_node 8 train.py", [("train.py", False)]),
        ("python -m torch.distributed.run --nnodes 2 train.py", [("train.py", False)]),
        ("mpirun -np 8 python train.py && python evaluate.py", [("train.py", False), ("evaluate.py", False)]),
        ("./train.py --a", [("./train.py", False)]),
        ("python -c 'import x'", []),
        ("python -", []),
        ("python data.txt", []),
        ("echo python train.py", []),
        ("torchrun --help", []),
    ],
)
def test_scripts_that_are_called(command: str, calls: list[tuple[str, bool]]) -> None:
    assert [(call.script.text, call.is_module) for call in python_calls(command)] == calls


def test_what_stands_before_a_call_may_have_changed_the_folder() -> None:
    assert [call.follows_others for call in python_calls("pip install x && python a.py; cd b && python c.py")] == [
        False,
        True,
    ]
