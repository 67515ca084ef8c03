"""Owns attention over rows laid end to end: each row sees itself and what stands before it, nothing else.

No padding, and never a mask of tokens by tokens. On a card one variable-length kernel does all rows where
torch and the card have it; elsewhere each row is one causal call. It must not know models, losses or data.
Sliding windows and soft caps are refused: no model of the catalog has them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from app_trainer_sdk.training.device import kind_of
from trainer_images.text.lean import keep_recipe

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # a build without it
    varlen_attn = None
else:  # what torch before 2.13 has takes other arguments
    if not {"scale", "window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys():
        varlen_attn = None

#: The name under which transformers' models find this attention.
NAME = "rows_end_to_end"

#: What the variable-length kernel computes in; fp32 goes row by row.
KERNEL_DTYPES = (torch.float16, torch.bfloat16)
#: A head's width must be a multiple of this: torch pads it for its other attention, and for this one not.
KERNEL_WIDTH = 8
ROCM = bool(torch.version.hip)

Asks = Callable[[SDPAParams], bool]


class RowLayout:
    """Where rows begin and end. One object, so that compiled blocks do not specialise on the lengths.

    Args:
        lengths: tokens of each row, on the host.
        starts: the same as running sums from 0, an int32 tensor on the model's device, for the kernel.
    """

    __slots__ = ("lengths", "starts")

    def __init__(self, lengths: Sequence[int], starts: Tensor) -> None:
        self.lengths = list(lengths)
        self.starts = starts


def register() -> str:
    """Make the attention known to transformers. Calling it again changes nothing.

    Returns:
        the name to give as ``attn_implementation``.
    """
    AttentionInterface.register(NAME, attend)
    return NAME


@torch.compiler.disable(recursive=True)
def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    row_layout: RowLayout,
    dropout: float = 0.0,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each row, in the form transformers calls.

    Args:
        module: the attention layer; unused, part of the interface.
        query: (1, heads, tokens, width); ``key`` and ``value`` may have fewer heads.
        key: (1, key heads, tokens, width).
        value: (1, key heads, tokens, width).
        attention_mask: always None: the layout says which tokens belong together.
        scaling: factor on the scores.
        row_layout: the rows.
        dropout: probability of dropping a score.
        unused: what transformers passes to every attention.

    Returns:
        (1, tokens, heads, width), and None in place of the scores.
    """
    if attention_mask is not None or unused.get("sliding_window") or unused.get("softcap"):
        raise NotImplementedError("rows laid end to end know plain causal attention only")
    query, key, value = (_as_computed(each) for each in (query, key, value))
    if not dropout and has_kernel(query, key, value):
        return _all_rows_at_once(query, key, value, row_layout, scaling), None
    return _row_by_row(query, key, value, row_layout.lengths, scaling, dropout), None


def has_kernel(
    query: Tensor, key: Tensor, value: Tensor, *, works: Asks = can_use_flash_attention, rocm: bool = ROCM
) -> bool:  # fmt: skip
    """Whether one call of the variable-length kernel does all rows.

    Args:
        query: as in :func:`attend`, and so ``key`` and ``value``.
        key: see there.
        value: see there.
        works: asks torch whether the card has flash attention.
        rocm: whether torch is AMD's, whose kernel torch's own tests pass over: there rows go one by one.
    """
    if varlen_attn is None or rocm or query.shape[-1] % KERNEL_WIDTH:
        return False
    return _has_flash(query, key, value, works)


def _has_flash(query: Tensor, key: Tensor, value: Tensor, works: Asks = can_use_flash_attention) -> bool:
    """Whether a card computes this by flash attention: none before compute capability 8.0 does."""
    if query.dtype not in KERNEL_DTYPES:
        return False
    if query.is_cuda:
        return works(SDPAParams(query, key, value, None, 0.0, True, True))
    # Memory is predicted for a card that is not here. In fp16 that is one without bf16, and without the kernel.
    return kind_of(query) == "cuda" and query.dtype == torch.bfloat16


def _as_computed(tensor: Tensor) -> Tensor:
    """In the precision of the forward pass: under autocast a rotated query is in that of the weights."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def _all_rows_at_once(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scaling: float) -> Tensor:
    longest = max(layout.lengths)
    tokens_first = [each[0].transpose(0, 1) for each in (query, key, value)]
    out = varlen_attn(
        *tokens_first, layout.starts, layout.starts, longest, longest,
        scale=scaling, window_size=(-1, 0), enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return out.unsqueeze(0)


def _row_by_row(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scaling: float, dropout: float
) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    if grouped and kind_of(query) != "cpu" and not _has_flash(query, key, value):
        # What is left on a card shares no keys among heads, but for plain arithmetic with T x T scores.
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
        grouped = False
    rows = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    answers = [
        scaled_dot_product_attention(
            *row, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=grouped
        ).transpose(1, 2)
        for row in rows
    ]
    joined = torch.cat(answers, dim=1)
    # Each row's answer is kept for its own backward; their copy end to end need not be.
    keep_recipe(joined, lambda: torch.cat(answers, dim=1))
    return joined
