"""What the shell makes of a command: unquoted texts, downloaded scripts, line ends, and what no shell can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from trainyard.lint.checks import LintContext, check
from trainyard.lint.script_calls import calls_with_flags, limited_values
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related, Severity
from trainyard.spec.documents import Value
from trainyard.spec.expressions import Binding, ExpressionError, bindings_in, bindings_of_value, name_bound
from trainyard.spec.model import Port
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import ShellText, Word, quoted_parts, read_shell, simple_commands, text_of_shell

_FETCHED = regex(
    r"\b(?:curl|wget)\b[^|;&\n]{0,300}\|\s*(?:sudo\s+)?(?:ba|z|da|k)?sh\b|"
    r"\b(?:ba|z)?sh\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)\b|"
    r"\b(?:curl|wget)\b[^|;&\n]{0,300}\|\s*python[0-9.]*\b"
)
# A backslash right before the end of a line continues it, as in a block `|`; a folded one has made a space of that.
_CONTINUATION = regex(r"(?<!\\)\\(?=[ \t]+(?:-{1,2}\w|\$\[\[|\n|\Z)|\Z)")
# A binding of a form that jobs do not have: it may name data as well as a string, and is an error anyway.
_WRONG_SCOPE = regex(r"\s*\$\{\{\s*(?!parent\.)[\w.-]+\s*\}\}\s*")
# The most spaces that are looked at before the first word of a line.
_INDENT = 200
_FLAG = regex(r"--?[A-Za-z][\w-]*")
# Not behind a backslash with a space, which is reported by itself.
_FLAG_IN_NEXT_LINE = regex(r"[ \t]+\n[ \t]*-")
_LINE_BEGINS = regex(r"(?<!\\)(?<!\\[ \t])\n[ \t]*(?:\$\[\[[ \t]*)?\Z")
_INSTALLERS = frozenset({"pip", "pip3", "conda", "mamba", "uv"})
_INTERPRETER = regex(r"python[0-9.]*|bash|sh|torchrun|accelerate|deepspeed")
_ONE_WORD = regex(r"[\w.,:/@%+=-]*")
# What ends a quoted text of a POSIX shell, or is run in it. `$NAME` within double quotes may be meant.
_QUOTE_OR_ESCAPE = regex(r"[\\'\"]")
_BREAKS = {"'": regex("'"), '"': re.compile(r'"|`|\$\(')}


UNQUOTED_TEXT = Rule("AML551", "unquoted-text", "info").explained(
    summary="A string input is used without quotes in the command.",
    why="Azure ML substitutes the string as it is: a space in it splits it into two words, and the shell runs a `;` or "
    "`$(…)` in it. This is a warning if a default or a job sets the input to such a string.",
)


def _passed_as_numbers(command: ParsedCommand, context: LintContext) -> set[str | None]:
    """The inputs that a script takes as a number."""
    passed = (each for call in calls_with_flags(command, context) for each in limited_values(*call))
    return {name_bound(word.text, "inputs") for flag, word in passed if flag.number is not None}


@check("command")
def _unquoted_text(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    bindings = list(bindings_of_value(command.text))
    quoted = _quoted(command.text, bindings)
    for binding in bindings:
        port = command.component.inputs.get(binding.name_in("inputs") or "")
        if port is None or binding in quoted or port.type != "string" or port.choices is not None:
            continue
        if port.default is not None and port.default.text.startswith("${{jobs."):
            continue  # the old form of a binding to data
        if not command.is_component and port.default is None and not _may_be_several_words(command, port.name):
            continue
        if port.name in _passed_as_numbers(command, context):
            continue  # it has no spaces
        message = f"'{port.name}' is a string and not quoted: a space in it splits it into two words"
        related = [port.declared]
        keeps_blanks = _is_printed(command.text, binding.start)
        split = next(
            (value for value in _known_values(command, port, context) if not _is_kept(value.text, keeps_blanks)), None
        )
        if split is not None and split is not port.default:
            related.append(Related(split.span, "it is set to such a string here"))
        span, hint = command.span(binding.start, binding.end), f"Write '{binding.text}'."
        yield UNQUOTED_TEXT.at(span, message, hint, related, severity="warning" if split is not None else None)


TEXT_BREAKS_QUOTES = Rule("AML557", "text-breaks-quotes", "warning").explained(
    summary="A string ends the quotes around it in the command, or is run within them.",
    why="Azure ML substitutes the string as it is. A quote in it ends the quoted text, so that the shell reads the "
    "rest as commands; within double quotes it also runs `$(…)`. `trainyard run --strict` refuses it.",
)


@check("command")
def _text_breaks_quotes(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for binding, quote in _quoted(command.text, bindings_of_value(command.text)).items():
        port = command.component.inputs.get(binding.name_in("inputs") or "")
        if port is None or port.type != "string":
            continue
        for value in _known_values(command, port, context):
            broken = _BREAKS[quote].search(value.text) if "${{" not in value.text else None
            if broken is None:
                continue
            message = f"'{port.name}' is within {quote} in the command, and this text contains {broken[0]}"
            used = Related(command.span(binding.start, binding.end), "it is used here")
            yield TEXT_BREAKS_QUOTES.at(value.span, message, "Set it to a string without it.", [used])


def _known_values(command: ParsedCommand, port: Port, context: LintContext) -> Iterator[Value]:
    """The literals that an input is known to be set to: its default, and what jobs set it to."""
    if port.default is not None:
        yield port.default
    own = command.node.find_text("inputs", port.name)
    if not command.is_component and own is not None:
        bound = name_bound(own.text, "parent.inputs")
        literal = own if bound is None else command.reading.document.root.find_text("inputs", bound)
        if literal is not None:
            yield literal.value
    for pipeline, job in context.jobs_using(command.component):
        if port.name in job.inputs:
            value = job.inputs[port.name]
            given = pipeline.inputs.get(name_bound(value.text_or_path or "", "parent.inputs") or "")
            yield given.default if given is not None and given.default is not None else value


def _is_printed(text: str, position: int) -> bool:
    """Whether a place of a command is in an argument of echo, which prints any letter, and two words as one."""
    return any(words[0].text == "echo" and words[0].end < position < words[-1].end for words in simple_commands(text))


def _is_kept(text: str, keeps_blanks: bool) -> bool:
    """Whether the shell leaves a string as it is; bindings are not known."""
    return "${{" in text or _ONE_WORD.fullmatch("".join(text.split()) if keeps_blanks else text) is not None


def _may_be_several_words(command: ParsedCommand, name: str) -> bool:
    """Whether what a job sets an input of its own command to may contain a space."""
    node = command.node.find_text("inputs", name)
    if node is None or _WRONG_SCOPE.fullmatch(node.text):
        return False
    bound = name_bound(node.text, "parent.inputs")
    if bound is not None:
        literal = command.reading.document.root.find_text("inputs", bound)
        return literal is None or not _ONE_WORD.fullmatch(literal.text)
    # Jobs produce data.
    return name_bound(node.text, "parent.jobs") is None and not _ONE_WORD.fullmatch(node.text)


def _quoted(command: str, bindings: Iterable[Binding]) -> dict[Binding, str]:
    """The bindings inside quotes, each with its quote."""
    found: dict[Binding, str] = {}
    if "'" not in command and '"' not in command:
        return found
    quote, position = "", 0
    for binding in bindings:
        quote, position = _quote_at(binding.start, command, quote, position)
        if quote and position == binding.start:
            found[binding] = quote
        position = max(position, binding.end)
    return found


def _quote_at(end: int, command: str, quote: str, position: int) -> tuple[str, int]:
    """The quote that is open at a place of a command, and the place itself, or the one behind what is escaped there."""
    while (sign := _QUOTE_OR_ESCAPE.search(command, position, end)) is not None:
        position = sign.end()
        if sign[0] == "\\":
            position += quote != "'"
        elif sign[0] == quote:
            quote = ""
        elif not quote:
            quote = sign[0]
    return quote, max(position, end)


FETCHED_SCRIPT = Rule("AML553", "fetched-script", "warning").explained(
    summary="A script is downloaded and run without review.",
    why="It runs whatever is at that address on the day. Put the script into the image or the code.",
)


@check("command")
def _fetched_script(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    is_fetching = "curl" in command.text or "wget" in command.text
    for match in _FETCHED.finditer(command.text) if is_fetching else ():
        message = "this runs whatever is at that address"
        yield FETCHED_SCRIPT.at(command.span(*match.span()), message, "Put the script into the image or the code.")


LINE_CONTINUATION = Rule("AML554", "line-continuation", "warning", is_let_pass=True).explained(
    summary="A line of the command ends with a backslash.",
    why="A folded block (`>`) joins the lines: the backslash then precedes a space, which becomes part of the "
    "next word. Azure ML's documentation advises against backslashes. In a block `|` one at the very end of a line "
    "is right.",
)


@check("command")
def _line_continuation(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    match = _CONTINUATION.search(command.text)
    if match is not None:
        message, hint = "this makes the space after it part of the next word", "Remove it."
        severity: Severity | None = None
        if _FLAG_IN_NEXT_LINE.match(command.text, match.end()):
            message, hint = "the command ends with this line, since a space follows the backslash", "Remove the space."
            severity = "error"
        yield LINE_CONTINUATION.at(command.span(*match.span()), message, hint, severity=severity)


ENDED_EARLY = Rule("AML555", "ended-early", "error", is_let_pass=True).explained(
    summary="The command ends before its last arguments, at a line end.",
    why="The shell runs what is before a line end, and takes the flags after it for another command. In a block `|` "
    "every line ends like that, unless a backslash is its last character. A folded block (`>`) joins its lines with "
    "spaces, except at a blank line and before one that is indented more.",
)


@check("command")
def _ended_early(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    previous_line = -1
    for word in _flags_run_alone(command.text):
        assert command.command is not None
        is_folded = command.reading.document.text.startswith(">", command.command.offsets[0])
        span = command.span(word.start, word.end)
        if span.line != previous_line + 1:  # the lines after the first are the same mistake
            message = f"the command ended before this line: {word.text} is run as a command of its own"
            hint = "Remove the blank line above, or indent all lines alike." if is_folded else "Use a block `>-`."
            yield ENDED_EARLY.at(span, message, hint)
        previous_line = span.line


_TEST = regex(r"(?<!\$)\[\[")
"""A condition may go on with `-f` in its next line."""


def _flags_run_alone(text: str) -> list[Word]:
    """The flags that begin a line of a command and belong to no program; not the patterns of a `case`."""
    if "\n" not in text.strip() or "esac" in text or _TEST.search(text):
        return []
    # What a comment cuts off is reported with the comment.
    cut_off = {end for start, end in read_shell(text).comments if _is_continued(text, start)}
    found: list[Word] = []
    for words in simple_commands(text):
        first, from_ = words[0], max(words[0].start - _INDENT, 0)
        begins = _LINE_BEGINS.search(text, from_, first.start) if _FLAG.match(first.text) else None
        if begins is not None and begins.start() not in cut_off and not first.is_quoted:
            found.append(first)
    return found


def _is_continued(text: str, place: int) -> bool:
    """Whether the line before one that begins at a place, apart from spaces, goes on there."""
    return _CONTINUED.search(text[max(0, place - _INDENT) : place]) is not None


COMMENTED_OUT = Rule("AML562", "commented-out", "error").explained(
    summary="A comment within the command cuts off the arguments after it.",
    why="A folded block (`>`) becomes one line, and for the shell a `#` makes a comment of the rest of that line. In a "
    "block `|`, a comment between lines that end with a backslash ends the command: the flags below it are run as a "
    "command of their own. Comments of YAML are above `command:`.",
)
_CONTINUED = regex(r"\\\n[ \t]*\Z")
_FLAG_BELOW = regex(r"\n(?:[ \t]*#[^\n]*\n)*[ \t]*(?:\$\[\[[ \t]*)?(--?[A-Za-z][\w-]*)")
# What begins a line that is not prose.
_CODE = regex(r"--?[A-Za-z]\S*|\$\S+|&&|\|\||[|;]|(?:python3?|torchrun|accelerate|deepspeed|pip|bash|sh|cd)(?=\s)")


@check("command")
def _commented_out(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for start, word in _cut_off_by_comments(command):
        message = f"this comment cuts off '{word}', which is in a line below it"
        hint = "Remove it, or move it above `command:`."
        yield COMMENTED_OUT.at(command.span(start, start + 1), message, hint)


def _cut_off_by_comments(command: ParsedCommand) -> Iterator[tuple[int, str]]:
    """Where comments begin that cut off lines below them, with the first word that is lost by each."""
    for start, end in read_shell(command.text).comments if command.command is not None else ():
        below = _FLAG_BELOW.match(command.text, end) if _is_continued(command.text, start) else None
        if below is not None:
            yield start, below[1]
            continue
        first, last = command.span(start, start + 1).line, command.span(end - 1, end).line
        lines = command.reading.document.text.split("\n")[first:last] if last > first else []
        found = next((code for line in lines if (code := _CODE.match(line.strip()))), None)
        if found is not None:
            yield start, found[0]


def is_cut_short(command: ParsedCommand) -> bool:
    """Whether a line end or a comment cuts off some of a command's arguments."""
    return bool(_flags_run_alone(command.text)) or any(_cut_off_by_comments(command))


TWO_PROGRAMS = Rule("AML556", "two-programs", "error", is_let_pass=True).explained(
    summary="Two programs are in one shell command: `pip install … python train.py`.",
    why="The lines of a folded block (`>`) are joined with spaces. Without `&&` between them, the second program and "
    "its arguments are packages to pip, or arguments of `cd`, `export` or `mkdir`, and nothing is run.",
)
# None of these runs a program that is among its arguments.
_RUN_NOTHING = frozenset({"cd", "export", "mkdir", "ls", "unzip", "nvidia-smi", "conda activate", "source activate"})


@check("command")
def _two_programs(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for words in simple_commands(command.text):
        texts = [word.text for word in words]
        first = next((text for text in (texts[0], " ".join(texts[:2])) if text in _RUN_NOTHING), None)
        installs = next((at for at, text in enumerate(texts[:4]) if text in _INSTALLERS), None)
        if first is None and (installs is None or "install" not in texts[installs + 1 : installs + 3]):
            continue
        begin = 1 if first is not None or installs is None else installs + 2
        for word, following in pairwise(words[begin:]):
            is_script = following.text.endswith((".py", ".sh")) or following.text == "-m"
            if _INTERPRETER.fullmatch(word.text) and is_script:
                what = "an argument of" if first is not None else "a package to"
                message = f"'{word.text}' is {what} {first or texts[installs or 0]}, not the next program"
                yield TWO_PROGRAMS.at(command.span(word.start, word.end), message, "Write && before it.")
                break


REDIRECTED_VERSION = Rule("AML564", "redirected-version", "warning").explained(
    summary="The shell takes the version of a package for a redirection: `pip install torch>=2.1` without quotes.",
    why="pip installs any version, and what it prints goes into a file named `=2.1`; with `<`, the shell looks for a "
    "file of that name and ends with an error.",
)
_VERSION = regex(r"=?[0-9]+(?:\.[0-9]+)*")


@check("command")
def _redirected_version(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for word, message, hint in redirected_versions(command.text):
        yield REDIRECTED_VERSION.at(command.span(word.end, word.end + 1), message, hint)


def redirected_versions(text: str) -> Iterator[tuple[Word, str, str]]:
    """The packages to install whose comparison the shell takes for a redirection, each with a message and a hint."""
    for words in simple_commands(text):
        names = [word.text for word in words]
        for word, version in pairwise(words) if "install" in names and not _INSTALLERS.isdisjoint(names) else ():
            if text[word.end : version.start] in (">", "<") and _VERSION.fullmatch(version.text):
                written = text[word.start : version.end]
                what = "writes what is printed to" if text[word.end] == ">" else "reads"
                yield word, f"for the shell, {written} {what} a file named '{version.text}'", f"Write '{written}'."


ONE_WORD_RUN = Rule("AML563", "one-word-run", "error").explained(
    summary="`bash -c` runs its first word alone: the text is not in quotes.",
    why="The shell takes the words after the first for its own `$0`, `$1` and so on. `bash -c python train.py` starts "
    "a Python that reads its program from the empty input, and the job counts as completed.",
)


@check("command")
def _one_word_run(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for words in simple_commands(command.text):
        run = text_of_shell(words)
        if run is None or run.is_quoted or "$" in run.text:
            continue
        after = (command.text[max(0, word.start - _INDENT) : word.start] for word in words[words.index(run) + 1 :])
        if all(before.rstrip().endswith((">", "<")) for before in after):
            continue
        message = f"the shell runs '{run.text}' alone: it takes the words after it for variables"
        yield ONE_WORD_RUN.at(command.span(run.start, run.end), message, "Put the whole text into quotes.")


_LEADING = regex(r"\A\s*(&&|\|\||\||;)")
_DOUBLED = regex(r"(?:&&|\|\|)\s*(&&|\|\||;|\|)|(?<!;);[ \t]+(;)(?!;)")
_TRAILING = regex(r"(&&|\|\||(?<!>)\|)\s*\Z")
_WORD_PROCESSOR = regex("[\u201c\u201d\u2018\u2019\u201e\u00a0]")
_NAMES = {"\u00a0": "a no-break space"}
# These have rules of their own for quotes, operators and parentheses.
_OTHER_SYNTAX = regex(r"\(\(|\$'|\besac\b|\bfunction\b|\$\{\w{1,64}[/#%]")
_CLOSED_BY = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}", "(": ")"}
_MIDDLE_OF = {"fi": "then", "done": "do"}


SHELL_SYNTAX = Rule("AML561", "shell-syntax", "error").explained(
    summary="The shell cannot read the command: an open quote, `if` or parenthesis, an operator without a command.",
    why="The job ends at once, after its machine has started. A folded block (`>`) joins lines with spaces: `then`, "
    "`do` and `done` then need a `;` before them, and a here-document has no last line. Word processors and chats "
    "replace straight quotes and spaces with others, which the shell takes for letters.",
)


@check("command")
def _shell_syntax(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    try:
        bindings = bindings_in(command.text)
    except ExpressionError:
        return  # reported as that
    if command.command is None or _OTHER_SYNTAX.search(command.text) or _may_have_text_in_group(command.text):
        return
    shell = read_shell(command.text)
    commented = _blanked(command.text, sorted((*shell.comments, *shell.documents)), " ")
    bare, opened = _without_quoted(_blanked(commented, [(each.start, each.end) for each in bindings], "x"))
    if opened is not None:
        message = f"the quote {command.text[opened]} that begins here is not closed"
        yield SHELL_SYNTAX.at(command.span(opened, opened + 1), message, "Close it, or remove it.")
        return
    yield from _unclosed_parts(command, shell)
    operator = _LEADING.search(bare) or _DOUBLED.search(bare) or _TRAILING.search(bare)
    if operator is not None:
        at = next(group for group in (1, *range(2, len(operator.groups()) + 1)) if operator[group] is not None)
        message = f"there is no command on one side of this {operator[at]}"
        yield SHELL_SYNTAX.at(command.span(*operator.span(at)), message, "Remove it.")
    strange = None if bare.isascii() else _WORD_PROCESSOR.search(bare)
    if strange is not None and not _is_printed(command.text, strange.start()):
        what = _NAMES.get(strange[0], f"the typographic quote {strange[0]}")
        message = f"{what} is a letter to the shell, and becomes part of the word"
        hint = "Write a space." if strange[0] in _NAMES else "Write a straight quote."
        yield SHELL_SYNTAX.at(command.span(*strange.span()), message, hint)


def _unclosed_parts(command: ParsedCommand, shell: ShellText) -> Iterator[Diagnostic]:
    """What is wrong with parentheses, reserved words and here-documents, of each the first."""
    wrong = _unbalanced(shell.reserved)
    if wrong is not None:
        word, message = wrong
        hint = "Close it, or remove it." if word.text in "(){}" else "Write the command as a block `|`, part by part."
        yield SHELL_SYNTAX.at(command.span(word.start, word.end), message, hint)
    for opened in shell.endless[:1]:
        delimiter = opened.text.strip("\\'\"")
        message = f"no line consists of '{delimiter}' alone: all below is a part of this text"
        is_named_again = re.search(rf"(?<!\S){re.escape(delimiter)}\s+\S", command.text[opened.end :]) is not None
        hint = "Write the command as a block `|`, with it at the beginning of a line."
        severity: Severity = "error" if is_named_again else "warning"
        yield SHELL_SYNTAX.at(command.span(opened.start, opened.end), message, hint, severity=severity)


def _unbalanced(reserved: Sequence[Word]) -> tuple[Word, str] | None:
    """The first reserved word or parenthesis that has no counterpart, with what is wrong."""
    open_words: list[Word] = []
    middles: list[str] = []
    for word in reserved:
        if word.text in _CLOSED_BY:
            open_words.append(word)
            middles.append("")
        elif open_words and word.text == _MIDDLE_OF.get(_CLOSED_BY[open_words[-1].text]):
            middles[-1] = word.text
        elif word.text in _CLOSED_BY.values():
            opener = open_words.pop() if open_words else None
            if opener is None or _CLOSED_BY[opener.text] != word.text:
                return word, f"nothing is open here that {word.text} could end"
            if middles.pop() != _MIDDLE_OF.get(word.text, ""):
                middle = _MIDDLE_OF[word.text]
                return opener, f"no {middle} begins a command between this {opener.text} and its {word.text}"
    if open_words:
        return open_words[-1], f"no {_CLOSED_BY[open_words[-1].text]} ends this {open_words[-1].text}"
    return None


def _may_have_text_in_group(text: str) -> bool:
    """Whether an array or a substitution may hold a comment or a here-document, whose quotes are none."""
    return any(sign in text for sign in ("=(", "$(", "<(", ">(")) and ("#" in text or "<<" in text)


def _without_quoted(text: str) -> tuple[str, int | None]:
    """A command with `x` for what is quoted or escaped, and where a quote begins that is never closed."""
    quoted, opened = quoted_parts(text)
    if opened is None:
        return _blanked(text, quoted, "x"), None
    pairs = ((start, end) for start, end in quoted if text[start] == text[opened])
    return text, next((start for start, end in pairs if _is_mispaired(text, start, end)), opened)


def _is_mispaired(text: str, start: int, end: int) -> bool:
    """Whether a quoted text begins where one should end, or ends where one should begin."""
    before, after = text[start - 1 : start], text[start + 1 : start + 2]
    begins_behind_word = before not in ("", "=", "(") and not before.isspace() and after.isspace()
    ends_before_word = text[end - 2].isspace() and text[end : end + 1].isalnum()
    return begins_behind_word or ends_before_word


def _blanked(text: str, places: Sequence[tuple[int, int]], letter: str) -> str:
    """A string with a letter for each one at some places, which are in their order."""
    parts, position = [], 0
    for start, end in places:
        parts += [text[position:start], letter * (end - start)]
        position = end
    return "".join([*parts, text[position:]])
