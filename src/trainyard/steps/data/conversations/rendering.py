"""From a conversation to tokens, and which of them are answers: as the model's own tokenizer and chat template say."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.text.text_formats import JsonLine
from trainyard.steps.data.tokenizing.vocabulary import CHAT_TEMPLATE_FILE, TOKENIZER_FILE
from trainyard.steps.runtime.errors import StepError

_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\b")
"""What a chat template has that says itself which text is the assistant's."""
_EXPECTED = "expected messages, prompt and completion, conversations (ShareGPT), or instruction and output (Alpaca)"
_EXPECTED_PAIR = "expected prompt, chosen and rejected, all texts or all lists of messages"

# The forms in which conversations are published: ShareGPT's are lists of `from` and `value`
# (https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered); Alpaca's are an instruction, an input
# that may be empty, and an output (https://github.com/tatsu-lab/stanford_alpaca).
_ROLES_OF_SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")

Messages = Sequence[dict[str, Any]]
Span = tuple[int, int]
"""Start and stop in a text, in characters."""


class TokenizedConversation(NamedTuple):
    """One conversation in tokens. Picklable."""

    name: str
    tokens: npt.NDArray[Any]
    is_answer: npt.NDArray[np.bool_]
    answer_bytes: int
    """The UTF-8 bytes of the answers."""


Documents = tuple[TokenizedConversation, ...]
"""Those of one example: a conversation, or a prompt with its chosen answer and the prompt with the rejected one."""


@dataclass(frozen=True)
class Renderer:
    """Turns examples into documents. Picklable: each process reads the tokenizer once."""

    folder: Path
    """The model's."""
    end_of_text: int
    dtype: str
    pairs: bool

    def __call__(self, examples: Iterable[JsonLine]) -> list[Documents]:
        """Return each example's documents. StepError names the file and line of one that is not as expected."""
        return [self._pair(example) if self.pairs else (self._document(example),) for example in examples]

    def _pair(self, example: JsonLine) -> Documents:
        """Two whole conversations without a prompt have their common beginning as prompt."""
        prompt, chosen, rejected = (example.fields.get(name) for name in ("prompt", "chosen", "rejected"))
        if prompt is None and isinstance(chosen, list) and isinstance(rejected, list):
            both = zip(chosen, rejected, strict=False)
            prompt = [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        if not any(all(isinstance(each, kind) for each in (prompt, chosen, rejected)) for kind in (str, list)):
            found = ", ".join(example.fields) or "no fields"
            raise StepError(f"{example.place}: {_EXPECTED_PAIR}; found {found}")
        shared = {"prompt": prompt, "tools": example.fields.get("tools")}
        chosen_document, rejected_document = (
            self._document(example._replace(fields={**shared, "completion": answer})) for answer in (chosen, rejected)
        )
        return chosen_document, rejected_document

    def _document(self, example: JsonLine) -> TokenizedConversation:
        place = example.place
        fields = _from_sharegpt(example.fields, place)
        prompt, completion = fields.get("prompt"), fields.get("completion")
        question = _question_of_alpaca(fields)
        if question is not None and _transformers_tokenizer(self.folder).chat_template is None:
            return self._completion(example.name, f"{question}\n\n", fields["output"])
        if question is not None:
            asked = {"role": "user", "content": question}
            return self._chat(example, [asked, {"role": "assistant", "content": fields["output"]}], first_answer=1)
        if isinstance(fields.get("messages"), list):
            return self._chat(example, fields["messages"])
        if isinstance(prompt, str) and isinstance(completion, str):
            return self._completion(example.name, prompt, completion)
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._chat(example, [*prompt, *completion], first_answer=len(prompt))
        pairs = " (--preferences true reads pairs)" if "chosen" in fields and "rejected" in fields else ""
        raise StepError(f"{place}: {_EXPECTED}; found {', '.join(fields) or 'no fields'}{pairs}")

    def _completion(self, name: str, prompt: str, completion: str) -> TokenizedConversation:
        """The model's own first tokens, both texts, and the end-of-text token, which is a part of the answer."""
        tokenizer = _tokenizer(self.folder)
        first = [token for token in tokenizer.encode("").ids if token != self.end_of_text]
        text = prompt + completion
        tokens, is_answer = _mark(tokenizer.encode(text, add_special_tokens=False), text, [(len(prompt), len(text))])
        return TokenizedConversation(
            name,
            np.array([*first, *tokens, self.end_of_text], dtype=self.dtype),
            np.array([*(False for _ in first), *is_answer, True]),
            len(completion.encode("utf-8", errors="surrogatepass")),
        )

    def _chat(self, example: JsonLine, messages: Messages, first_answer: int = 0) -> TokenizedConversation:
        place = example.place
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise StepError(f"{place}: message {number + 1} is not an object with role and content")
        _require_known_roles(messages, place)
        render = functools.partial(_render, self.folder, place, example.fields.get("tools"))
        template = _chat_tokenizer(self.folder).chat_template
        if isinstance(template, str) and _MARKS_ANSWERS.search(template):
            text, spans = _marked_by_template(self.folder, place, example.fields.get("tools"), messages)
            prompt = render(messages[:first_answer])
            spans = [span for span in spans if span[0] >= len(prompt)]
        else:
            text = render(messages)
            spans = []
            for number, message in enumerate(messages):
                if message["role"] == "assistant" and number >= first_answer:
                    spans.append(self._answer(render, messages, number, text, place))
        tokens, is_answer = _mark(_tokenizer(self.folder).encode(text, add_special_tokens=False), text, spans)
        answer_bytes = sum(len(text[start:stop].encode("utf-8", errors="surrogatepass")) for start, stop in spans)
        return TokenizedConversation(
            example.name, np.array(tokens, dtype=self.dtype), np.array(is_answer, dtype=bool), answer_bytes
        )

    def _answer(self, render: Any, messages: Messages, number: int, text: str, place: str) -> Span:
        """Return where an answer is: what the template adds to the messages before it and the request to answer."""
        before: str = render(messages[:number], add_generation_prompt=True) if number else _header(render)
        after: str = render(messages[: number + 1])
        if not (after.startswith(before) and text.startswith(after)):
            raise StepError(
                f"{place}: the chat template in {self.folder} renders the beginning of this conversation differently "
                "from the whole, so its answers cannot be found; mark them in the template by {% generation %}"
            )
        return len(before), len(after)


def _header(render: Any) -> str:
    """Return what a chat template writes before an answer that begins a conversation: a system prompt, for example.

    Many templates refuse to write a conversation without messages: it is what two answers have in common.
    """
    written = [render([{"role": "assistant", "content": content}]) for content in "ab"]
    header: str = os.path.commonprefix(written)  # noqa: RUF071 – of characters
    return header


def _mark(encoding: Any, text: str, spans: Iterable[Span]) -> tuple[list[int], list[bool]]:
    """Return tokens, and whether each begins within one of the spans."""
    inside = np.zeros(len(text) + 1, dtype=bool)
    for start, stop in spans:
        inside[start:stop] = True
    return encoding.ids, [bool(inside[start]) for start, _ in encoding.offsets]


def _render(folder: Path, place: str, tools: Any, messages: Messages, *, add_generation_prompt: bool = False) -> str:
    """Return a conversation as the chat template writes it. Messages of no one are an empty text."""
    if not messages:
        return ""
    tokenizer = _chat_tokenizer(folder)
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except Exception as failure:  # a template may raise anything
        raise StepError(f"{place}: the chat template in {folder} refuses it: {failure}") from None
    return text


def _marked_by_template(folder: Path, place: str, tools: Any, messages: Messages) -> tuple[str, list[Span]]:
    from transformers.utils import chat_template_utils

    tokenizer = _chat_tokenizer(folder)
    render: Any = chat_template_utils.render_jinja_template
    try:
        texts, spans = render(
            [list(messages)],
            tools=tools,
            chat_template=tokenizer.chat_template,
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
    except Exception as failure:
        raise StepError(f"{place}: the chat template in {folder} refuses it: {failure}") from None
    return texts[0], [(start, stop) for start, stop in spans[0]]


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Any:
    from trainyard.steps.data.tokenizing.vocabulary import read_tokenizer

    tokenizer = read_tokenizer(folder / TOKENIZER_FILE)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _chat_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model with a chat template. StepError if it has none."""
    tokenizer = _transformers_tokenizer(folder)
    if tokenizer.chat_template is None:
        raise StepError(
            f"--base-model {folder} has no chat template, which conversations need: add {CHAT_TEMPLATE_FILE} to it, or "
            "give prompts and completions as texts"
        )
    return tokenizer


@functools.lru_cache(maxsize=1)
def _transformers_tokenizer(folder: Path) -> Any:
    """The same for transformers, which knows where a model keeps its chat template."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as failure:  # whatever a file of the user's makes transformers raise
        raise StepError(f"--base-model {folder}: its tokenizer cannot be used: {failure}") from None
    return tokenizer


def _from_sharegpt(fields: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return ShareGPT's conversations as messages, other fields as they are. StepError names a turn that is neither."""
    turns = fields.get("conversations")
    if not isinstance(turns, list) or "messages" in fields:
        return fields
    return {**fields, "messages": [_message(turn, f"{place}: turn {n}") for n, turn in enumerate(turns, start=1)]}


def _question_of_alpaca(fields: Mapping[str, Any]) -> str | None:
    """Return the instruction and, after an empty line, its input; None for fields of another form."""
    if not isinstance(fields.get("instruction"), str) or not isinstance(fields.get("output"), str):
        return None
    return "\n\n".join(text for text in (fields["instruction"], fields.get("input")) if text)


def _message(turn: Any, place: str) -> dict[str, Any]:
    if not isinstance(turn, dict) or not {"from", "value"} <= set(turn):
        raise StepError(f"{place} is not an object with from and value")
    role = _ROLES_OF_SHAREGPT.get(str(turn["from"]))
    if role is None:
        raise StepError(f"{place} is from {turn['from']!r}; expected one of {', '.join(_ROLES_OF_SHAREGPT)}")
    return {"role": role, "content": turn["value"]}


def _require_known_roles(messages: Sequence[Mapping[str, Any]], place: str) -> None:
    """Raise StepError, with the roles, for a conversation in which no one has the assistant's, and some an unknown one.

    Another role beside the assistant's is left to the chat template.
    """
    roles = list(dict.fromkeys(str(message["role"]) for message in messages))
    unknown = [role for role in roles if role not in _ROLES]
    if unknown and "assistant" not in roles:
        named = " and ".join(map(repr, unknown))
        raise StepError(
            f"{place}: no message has the role 'assistant', whose answers are learned; found {named}: name the roles "
            "system, user, assistant and tool"
        )
