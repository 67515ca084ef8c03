"""Owns the text backbone: a BERT encoder whose token states are averaged and brought to length 1.

It must not know rows, heads or training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from app_trainer_sdk.errors import InputMissing
from app_trainer_sdk.handle import Run

TOKENIZER = "tokenizer.json"
Prepared = tuple[Mapping[str, Tensor], list[str]]
Prepare = Callable[[Sequence[str]], Prepared]


class SentenceEncoder(nn.Module):
    """Token ids and their mask, both (rows, tokens), to features (rows, hidden_size) of length 1."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        # transformers takes seconds to import, which a run on stored features need not pay.
        from transformers import AutoConfig, BertModel

        super().__init__()
        self.bert = BertModel(AutoConfig.for_model(**config), add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The mean of the token states that are no padding, summed in fp32."""
        states = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weight = mask.unsqueeze(-1).float()
        return functional.normalize((states * weight).sum(1) / weight.sum(1), dim=-1)


def build(run: Run) -> SentenceEncoder:
    """The backbone without weights."""
    return SentenceEncoder(run.model.architecture["config"])


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the published file under the names of :class:`SentenceEncoder`; what it lacks is left out.

    The pooling layer was trained and is never used; position ids are no weights.
    """
    unused = ("pooler.", "embeddings.position_ids")
    return {f"bert.{name}": each for name, each in tensors.items() if not name.startswith(unused)}


def preparer(run: Run) -> Prepare:
    """What turns texts into tokens, padded to the longest of them; no text is unusable."""
    # The tokenizer alone: transformers' wrapper around it would cost seconds of imports.
    tokenizer = Tokenizer.from_file(str(tokenizer_file(run)))
    tokenizer.enable_truncation(run.settings.max_length)
    tokenizer.enable_padding()

    def prepare(texts: Sequence[str]) -> Prepared:
        encoded = tokenizer.encode_batch(list(texts))
        tensors = {
            "ids": torch.tensor([each.ids for each in encoded]),
            "mask": torch.tensor([each.attention_mask for each in encoded]),
        }
        return tensors, [""] * len(texts)

    return prepare


def largest_batch(run: Run, rows: int) -> dict[str, Tensor]:
    """``rows`` texts of the longest kind."""
    ids = torch.zeros(rows, run.settings.max_length, dtype=torch.long)
    return {"ids": ids, "mask": torch.ones_like(ids)}


def tokenizer_file(run: Run) -> Path:
    """The tokenizer beside the weights."""
    path = run.weights["base"]
    file = (path if path.is_dir() else path.parent) / TOKENIZER
    if not file.is_file():
        raise InputMissing(f"no {TOKENIZER} beside {path.name}", expected="it", setting="/weights/base")
    return file
