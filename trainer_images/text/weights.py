"""Owns the base weights on disk: which folder to load, and the phase that makes one from a GGUF file.

It must not know LoRA, training or data.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from app_trainer_sdk.errors import BadData, InputMissing
from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.handle import Run
from app_trainer_sdk.trust.formats import PICKLE, REMOTE_CODE, refuse_remote_code, refuse_untrusted
from app_trainer_sdk.values import JSON, Phase

#: Raise it when the same GGUF file would become another folder.
CONVERTER_VERSION = 1


def phases(run: Run) -> Sequence[Phase]:
    """The conversion, when the base weights are a GGUF file; a folder is used as it is."""
    if not is_gguf(run):
        return ()
    key = {"weights": _digest(run), "converter": CONVERTER_VERSION}
    return (Phase("weights", convert, key, uses=("weights",)),)


def is_gguf(run: Run) -> bool:
    """Whether the base weights came as one GGUF file."""
    return _gguf_file(run) is not None


def _gguf_file(run: Run) -> Path | None:
    """The GGUF file of the base weights: given itself, or as the only one of a set of files without a model."""
    base = run.weights.get("base")
    if base is None or base.suffix == ".gguf":
        return base
    found = [] if (base / "config.json").is_file() else sorted(base.glob("*.gguf"))
    return found[0] if len(found) == 1 else None


def weights_folder(run: Run) -> Path:
    """The transformers folder of the base weights: converted by the phase, or given."""
    if is_gguf(run):
        return run.store["weights"]
    folder = run.weights["base"]
    if not (folder / "config.json").is_file():
        raise InputMissing(
            f"no config.json and {len([*folder.glob('*.gguf')])} .gguf files in {folder}",
            expected="a transformers folder, or one .gguf file", setting="/weights/base",
        )  # fmt: skip
    return folder


def base_identity(run: Run) -> tuple[str, str]:
    """Name and revision of the base weights as others can find them; never a local path.

    Weights out of a GGUF file were quantised once: they are not the Hub's, so they keep the catalog's name.
    """
    source = run.model.weights.get("base")
    if source is not None and source.hub and not is_gguf(run):
        return source.hub, source.revision
    digest = (source.sha256 or source.revision) if source is not None else ""
    return run.model.name, digest


def tokenizer_digest(run: Run) -> str:
    """What tokens depend on: the GGUF file, or the tokenizer's files in the folder."""
    if is_gguf(run):
        return _digest(run)
    folder = weights_folder(run)
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt")
    files = [folder / name for name in names]
    return "-".join(sha256_file(file)[:16] for file in files if file.is_file())


def convert(run: Run, directory: Path) -> Mapping[str, JSON]:
    """Write the GGUF file as an ordinary bf16 transformers folder, tokenizer and chat template included.

    Raises:
        BadData: the file is not the one the catalog names.
    """
    file = _gguf_file(run) or run.weights["base"]
    _check_digest(run, file)
    run.check()
    with quiet(), _index_read_once():
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
        loaded = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
        run.check()
        # A model loaded from GGUF refuses to be saved; one built from its configuration is an ordinary model.
        values = loaded.config.to_dict()
        values.pop("quantization_config", None)
        values.pop("_name_or_path", None)
        config = AutoConfig.for_model(**values)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(loaded.state_dict(), assign=True)
        del loaded  # The state is shared with the model now; bf16 below then halves it.
        model.tie_weights()
        model.to(torch.bfloat16).save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    size = sum(path.stat().st_size for path in directory.iterdir())
    return {"parameters": sum(each.numel() for each in model.parameters()), "dtype": "bfloat16", "bytes": size}


@contextlib.contextmanager
def _index_read_once() -> Iterator[None]:
    """Inside, a GGUF file's index is read once, and the table of its names made once.

    Transformers 5.24 reads it for the configuration, the model and the tokenizer apart, and makes the table
    anew for each module of the model: more than half of the time that a conversion takes.
    """
    import gguf

    library: Any = gguf
    reader, names = library.GGUFReader, library.get_tensor_name_map
    library.GGUFReader, library.get_tensor_name_map = functools.cache(reader), functools.cache(names)
    try:
        yield
    finally:
        library.GGUFReader, library.get_tensor_name_map = reader, names


def load_tokenizer(folder: Path, allowed: Collection[str] = ()) -> Any:
    """The tokenizer of a transformers folder, from the folder alone; ``allowed`` is ``run.allow``."""
    with _only_data(folder, allowed) as own_code:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=own_code)


def load_model(
    folder: Path, *, dtype: torch.dtype, keep_layers: int = 0, attention: str = "sdpa",
    allowed: Collection[str] = (),
) -> Any:  # fmt: skip
    """The causal language model of a transformers folder: from safetensors, unless the job allows pickles.

    Args:
        folder: a transformers folder.
        dtype: precision of all weights.
        keep_layers: number of first blocks to keep; 0 keeps all.
        attention: a name known to transformers' attention interface.
        allowed: formats that may run code when they are read (``run.allow``).

    Raises:
        BadJob: the model is Python of its own, or a pickle, and the job does not allow it.
    """
    refuse_untrusted({"base": folder}, allowed)
    with _only_data(folder, allowed) as own_code, quiet():
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=own_code)
        keep_blocks(config, keep_layers)
        return AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=attention, local_files_only=True,
            trust_remote_code=own_code, weights_only=True, use_safetensors=None if PICKLE in allowed else True,
        )  # fmt: skip


@contextlib.contextmanager
def _only_data(folder: Path, allowed: Collection[str]) -> Iterator[bool]:
    """Whether a model's own Python may run; where it may not and must, the job is refused."""
    try:
        yield REMOTE_CODE in allowed
    except ValueError as error:
        refuse_remote_code(error, folder, allowed)
        raise


def keep_blocks(config: Any, keep_layers: int) -> None:
    """Shorten a configuration to its first blocks; 0, or more than there are, keeps all."""
    if keep_layers:
        config.num_hidden_layers = min(keep_layers, config.num_hidden_layers)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold transformers' bars and notices back: a run reports progress in one place."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _digest(run: Run) -> str:
    source = run.model.weights.get("base")
    return (
        source.sha256
        if source is not None and source.sha256
        else sha256_file(_gguf_file(run) or run.weights["base"])
    )


def _check_digest(run: Run, file: Path) -> None:
    expected, found = _digest(run), sha256_file(file)
    if found != expected:
        raise BadData(
            f"{file.name} has the SHA-256 {found}",
            expected=expected,
            setting=f"the weights of {run.model.name}",
        )
