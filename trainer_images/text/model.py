"""Owns the model that trains: real weights or shapes alone, with LoRA layers when the method asks.

It must not know data, losses or export. Weights that train are fp32; frozen ones have the precision of the
forward pass.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from app_trainer_sdk.errors import BadJob, Problem, did_you_mean
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import Modules
from trainer_images.text.lean import install
from trainer_images.text.packing import register
from trainer_images.text.weights import base_identity, keep_blocks, load_model, weights_folder


def build_model(run: Run, *, weights: bool) -> Modules:
    """The causal language model, its rows laid end to end.

    New LoRA matrices are drawn from torch's global generator: the caller seeds it.

    Args:
        run: the job.
        weights: False builds from the catalog row alone, on torch's default device, and reads no file.
    """
    base = _with_weights(run) if weights else _shapes_alone(run)
    base.config.use_cache = False  # The key-value cache serves generation only.
    root = add_lora(run, base) if run.method == "lora" else base
    blocks = tuple(language_model(root).get_decoder().layers)
    if run.settings.gradient_checkpointing is not True and run.settings.torch_compile is not True:
        install(blocks)  # Recomputing a whole block, and a compiler, decide for themselves what is kept.
    return Modules(root=root, blocks=blocks)


def add_lora(run: Run, base: Any) -> Any:
    """The base model frozen, inside a peft model whose new matrices train in fp32."""
    # Importing peft takes a while, which full fine-tuning need not pay.
    with lean_peft():
        from peft import LoraConfig, get_peft_model

    settings = run.settings
    targets = settings.lora_targets
    if not isinstance(targets, str):
        _check_targets(base, targets)
    name, revision = base_identity(run)
    # peft writes both into what it saves; without this it would be the path of a local folder.
    base.name_or_path = base.config._name_or_path = name
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        base_model_name_or_path=name,
        revision=revision or None,
    )
    with lean_peft():
        return get_peft_model(base, config)


def _check_targets(base: nn.Module, targets: Sequence[str]) -> None:
    """Peft looks for names that end so; one that nothing has it passes over while another is found."""
    layers = ["." + name for name, each in base.named_modules() if isinstance(each, nn.Linear)]
    problems = [
        Problem(
            "/hyperparameters/lora_targets", repr(target), "the name of linear layers of the model",
            did_you_mean(target, {each.rpartition(".")[2] for each in layers}),
        )
        for target in targets
        if not any(each.endswith("." + target) for each in layers)
    ]  # fmt: skip
    if problems:
        raise BadJob("the job cannot be used:", problems=problems)


@contextlib.contextmanager
def lean_peft() -> Iterator[None]:
    """Inside, peft finds no bitsandbytes that is not there yet: it wants it for quantised base weights alone,
    none are here, and it takes a second. And peft 0.21 may ask transformers 5.24 by a deprecated name.
    """
    hidden = "bitsandbytes" not in sys.modules
    if hidden:
        sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            yield
    finally:
        if hidden:
            del sys.modules["bitsandbytes"]


def language_model(root: nn.Module) -> Any:
    """The transformers model inside ``root``, whether or not peft is around it."""
    return root.get_base_model() if hasattr(root, "get_base_model") else root  # type: ignore[operator]


def _with_weights(run: Run) -> Any:
    return load_model(
        weights_folder(run),
        dtype=_dtype(run),
        keep_layers=run.settings.keep_layers,
        attention=register(),
        allowed=run.allow,
    )


def _shapes_alone(run: Run) -> Any:
    config = AutoConfig.for_model(**run.model.architecture)
    keep_blocks(config, run.settings.keep_layers)
    return AutoModelForCausalLM.from_config(config, dtype=_dtype(run), attn_implementation=register())


def _dtype(run: Run) -> torch.dtype:
    """Precision of the base weights: what trains is fp32, what only multiplies has the forward's precision."""
    return run.dtype if run.method == "lora" and run.dtype is not None else torch.float32
