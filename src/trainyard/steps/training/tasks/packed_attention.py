"""Attention within the documents of packed rows: by flash attention of variable length on GPUs, by masks elsewhere.

A mask of a row's tokens by its tokens rules out the fast kernels, and they compute what it then hides. Flash attention
of variable length takes all rows end to end and where each document begins, and computes nothing between documents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn import functional

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.imports import replaced
from trainyard.steps.training.tasks.token_rows import TokenRows, begins_document

_ATTENTION = "within_documents"
"""The name under which transformers knows this module's attention and masks."""

PLAIN_MODEL_TYPES = frozenset(
    {"gemma", "gpt2", "gpt_neox", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}
)
"""Models whose layers attend to everything before a token, and hand the mask on as it is; a test compares each."""

_LEAST_STARTS = 64
_TOLERANCE = 0.02
"""Of bf16, in which numbers near 1 are 0.008 apart."""
_PROBED_LENGTHS = (5, 1, 26)

Kernel = Callable[..., torch.Tensor]
"""Called as torch.nn.attention.varlen.varlen_attn."""
_Heads = tuple[int, int, int]
"""How many there are of queries, keys and values."""


def document_starts(documents: torch.Tensor) -> torch.Tensor:
    """Return where documents begin in rows laid end to end, and where the last one ends: int32 [n, documents + 1].

    All n rows are the same: no document is longer than 2^n tokens, which layers are to know on the host. The end is
    repeated up to one of few sizes, as empty documents: compiled layers meet few shapes. `documents` has the number of
    each token's document, [rows, length]; on a GPU, the host waits for it.
    """
    starts = begins_document(documents).flatten().nonzero().flatten()
    longest = int(starts.diff(append=starts.new_tensor([documents.numel()])).max())
    # A power of two, or three quarters of one: the backward pass has 128 rows of fp32 for each document, the empty ones
    # too (torch's mha_varlen_bwd), which at thousands of documents would be more than for all tokens.
    power = max(_LEAST_STARTS, 1 << len(starts).bit_length())
    size = power * 3 // 4 if _LEAST_STARTS <= len(starts) < power * 3 // 4 else power
    padded = torch.full((size,), documents.numel(), dtype=torch.int32, device=documents.device)
    padded[: len(starts)] = starts
    return padded.expand(max(1, (longest - 1).bit_length()), -1)


class PackedAttention:
    """Lets a model of transformers attend within documents, without masks where its device and precision allow it."""

    def __init__(self, model: Any, row_length: int) -> None:
        self._config = model.config
        self.problem = _problem_of_model(self._config, row_length)
        """Why this model needs masks, if it does."""
        if self.problem is None:
            _register()
            model.set_attn_implementation(_ATTENTION)

    def description(self, device: torch.device, dtype: torch.dtype) -> str:
        """Return how rows are kept apart on a device, and why by masks if so."""
        problem = self.problem or _problem_of_device(self._config, device, dtype)
        if problem is None:
            return "conversations in a row are kept apart by flash attention of variable length"
        return f"conversations in a row are kept apart by masks: {problem}"


@contextmanager
def attention_within(rows: TokenRows) -> Iterator[None]:
    """Let a forward pass attend within the rows' documents only, or, without any, from end to end.

    transformers would look for documents in the positions, for which the host waits for the device. StepError for a
    model whose code does not ask for them: it would attend to other conversations in silence.
    """
    from transformers import masking_utils

    is_asked = False

    def found(position_ids: torch.Tensor) -> torch.Tensor | None:
        nonlocal is_asked
        is_asked = True
        return rows.documents

    _rows_of_pass.append(rows)
    try:
        with replaced(masking_utils, "find_packed_sequence_indices", found):
            yield
    finally:
        _rows_of_pass.pop()
    if rows.documents is not None and not is_asked:
        raise StepError(
            "this model cannot keep the conversations in a row apart in this version of transformers; prepare them "
            "with --packing false"
        )


_rows_of_pass: list[TokenRows] = []
"""Of the forward pass that is under way. Layers get what follows from it as their mask, also when they are recomputed
in the backward pass, where nothing is under way."""


def kernel_on(device: torch.device, dtype: torch.dtype) -> Kernel:
    """Return torch's kernel. StepError says why there is none."""
    if device.type != "cuda":
        raise StepError("flash attention needs a GPU")
    if dtype not in (torch.bfloat16, torch.float16):
        raise StepError("flash attention needs --precision bf16 or fp16")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise StepError(f"torch {torch.__version__} has no flash attention of variable length") from None
    return cast("Kernel", varlen_attn)


def _problem_of_model(config: Any, row_length: int) -> str | None:
    if config.model_type not in PLAIN_MODEL_TYPES:
        return f"flash attention of variable length was not compared for models of type {config.model_type}"
    window = getattr(config, "sliding_window", None)
    if window is not None and window < row_length:
        return f"the model's layers see {window} tokens back, less than a row"
    dropout = max(float(getattr(config, name, 0.0) or 0.0) for name in ("attention_dropout", "attn_pdrop"))
    return "flash attention of variable length has no dropout" if dropout > 0 else None


def _problem_of_device(config: Any, device: torch.device, dtype: torch.dtype) -> str | None:
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return _problem_of_kernel(device, dtype, (heads, key_heads, key_heads), head_size)


@functools.cache
def _problem_of_kernel(device: torch.device, dtype: torch.dtype, heads: _Heads, head_size: int) -> str | None:
    """Return why the kernel cannot be used, None if it computes what masks do: it is tried once, on a few tokens."""
    try:
        kernel = kernel_on(device, dtype)
        difference = _difference_from_masks(kernel, device, dtype, heads, head_size)
    except (StepError, RuntimeError, TypeError, ValueError) as failure:
        return str(failure).partition("\n")[0]
    if not difference <= _TOLERANCE:
        return f"flash attention of variable length differs from masks by {difference:.2g} on this device"
    return None


@torch.enable_grad()
def _difference_from_masks(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, heads: _Heads, head_size: int
) -> float:
    """Return the largest difference in results and gradients on three documents, relative to the largest number."""
    generator = torch.Generator().manual_seed(0)
    documents = torch.repeat_interleave(torch.arange(len(_PROBED_LENGTHS)), torch.tensor(_PROBED_LENGTHS))[None]
    query, key, value, gradient = (
        torch.randn((documents.numel(), number, head_size), generator=generator).to(device, dtype)
        for number in (*heads, heads[0])
    )

    def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return _call(kernel, query, key, value, starts=document_starts(documents)[0], longest=documents.shape[1])

    ways: tuple[Callable[..., torch.Tensor], ...] = (flash, _masked)
    computed = []
    for attend in ways:
        inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        output = attend(*inputs, documents=documents.to(device))
        computed.append([output.detach(), *torch.autograd.grad(output, inputs, gradient)])
    differences = [
        (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        for ours, theirs in zip(*computed, strict=True)
    ]
    return float(torch.stack(differences).max())


def _masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, documents: torch.Tensor) -> torch.Tensor:
    mask = (documents[0, :, None] == documents[0, None, :]).tril()
    by_head = [tensor.transpose(0, 1)[None].float() for tensor in (query, key, value)]
    groups = query.shape[1] // key.shape[1]
    keys, values = (tensor.repeat_interleave(groups, dim=1) for tensor in by_head[1:])
    return functional.scaled_dot_product_attention(by_head[0], keys, values, mask)[0].transpose(0, 1).to(query.dtype)


def _call(
    kernel: Kernel, *inputs: torch.Tensor, starts: torch.Tensor, longest: int, scale: float | None = None
) -> torch.Tensor:
    """Attend to what is before each token in its document; queries, keys and values are [tokens, heads, head size]."""
    is_grouped = inputs[0].shape[1] != inputs[1].shape[1]
    documents = starts, starts, longest, longest
    return kernel(*inputs, *documents, scale=scale, window_size=(-1, 0), enable_gqa=is_grouped)


@functools.cache
def _register() -> None:
    """Give transformers this module's attention and masks, by name. Without documents both are torch's usual ones."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def mask(*, config: Any, dtype: torch.dtype, device: torch.device, **request: Any) -> torch.Tensor | None:
        rows = _rows_of_pass[-1] if _rows_of_pass else None
        if rows is not None and rows.documents is not None and not request.get("use_vmap"):
            device = rows.documents.device
            if _problem_of_device(config, device, _computed_in(device, dtype)) is None:
                return document_starts(rows.documents) if rows.starts is None else rows.starts
        usual: Callable[..., torch.Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
        return usual(config=config, dtype=dtype, device=device, **request)

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        if attention_mask is None or attention_mask.dim() > 2:
            usual: tuple[torch.Tensor, None]
            usual = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
            return usual
        rows, _, length, _ = query.shape
        dtype = _computed_in(query.device, query.dtype)
        kernel = kernel_on(query.device, dtype)
        query, key, value = (tensor.transpose(1, 2).flatten(0, 1).to(dtype) for tensor in (query, key, value))
        # Of blocks of threads for a whole row, most would have nothing to do where documents are short.
        longest = min(length, 1 << attention_mask.shape[0])
        attended = _call(kernel, query, key, value, starts=attention_mask[0], longest=longest, scale=scaling)
        return attended.unflatten(0, (rows, length)), None

    AttentionInterface.register(_ATTENTION, attention)
    AttentionMaskInterface.register(_ATTENTION, mask)


def _computed_in(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which attention is computed; autocast does not know of this kernel."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
