"""Real weights, a real tokenizer and hand-made runs for the tests of the text image."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.handle import Run
from trainer_images.text import tokens, weights
from trainer_images.text.models import MODELS
from trainer_images.text.trainer import TextTrainer

ROOT = Path(__file__).resolve().parents[3]
DICTIONARY = ROOT / "trainer_images/text/examples/devils_dictionary.jsonl"
MakeRun = Callable[..., Run]


#: A row like the catalog's, small enough to train in every combination of settings.
TINY = ModelRow(
    name="tiny", title="A tiny llama", parameters=0,
    architecture={
        "model_type": "llama", "vocab_size": 640, "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 512, "tie_word_embeddings": False,
    },
)  # fmt: skip


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    """The GGUF file out of its package; a missing package is a failure, never a skip."""
    source = MODELS[0].weights["base"]
    spec = importlib.util.find_spec(source.package.replace("-", "_"))
    assert spec is not None, f"install {source.package}: the tests train a real model"
    assert spec.submodule_search_locations

    return Path(spec.submodule_search_locations[0]) / source.file


@pytest.fixture(scope="session")
def conversion(gguf_file: Path) -> tuple[Path, dict[str, Any]]:
    """Folder and facts of the phase ``weights``, kept between test runs until its code changes."""
    code = hashlib.sha256(Path(weights.__file__).read_bytes()).hexdigest()[:16]
    folder = ROOT / ".cache/tests/text-weights" / code
    facts = folder / "facts.json"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:  # another test process may be at it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not facts.is_file():
            (folder / "folder").mkdir(parents=True, exist_ok=True)
            run = Run(
                settings=None, model=MODELS[0], method="lora", directory=folder, cache=folder,
                weights={"base": gguf_file},
            )  # fmt: skip
            facts.write_text(json.dumps(weights.convert(run, folder / "folder")))
    return folder / "folder", json.loads(facts.read_text())


@pytest.fixture(scope="session")
def folder(conversion: tuple[Path, dict[str, Any]]) -> Path:
    """The real model as a transformers folder."""
    return conversion[0]


@pytest.fixture(scope="session")
def narrow(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's architecture, tokenizer and vocabulary at a ninth of its width and four random blocks:
    what is computed does not depend on the width, and how long it takes does.
    """  # fmt: skip
    narrow = tmp_path_factory.mktemp("narrow") / "folder"
    shutil.copytree(folder, narrow, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(folder)
    config.update({
        "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16,
    })  # fmt: skip
    with torch.random.fork_rng(), weights.quiet():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(narrow)
    return narrow


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Any:
    """The real tokenizer with its chat template."""
    return weights.load_tokenizer(folder)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run as the SDK would make it, over ``rows`` (values to write as JSON, or raw lines) or a file."""

    def make(
        rows: Any = (), *, method: str = "lora", base: Path | None = None, inputs: Any = None, **settings: Any
    ) -> Run:
        files = {"dataset": rows, **(inputs or {})}
        paths = {name: _file(tmp_path / f"{name}.jsonl", value) for name, value in files.items()}
        return Run(
            settings=TextTrainer.hyperparameters_class.read({**TextTrainer.defaults[method], **settings}),
            model=MODELS[0],
            method=method,
            directory=tmp_path,
            cache=tmp_path / "cache",
            weights={"base": base} if base else {},
            inputs=paths,
            store={"tokens": tmp_path / "tokens"},
            device=torch.device("cpu"),
            dtype=torch.float32,
        )

    return make


@pytest.fixture
def plan_run(tmp_path: Path) -> MakeRun:
    """A run with every setting decided, over no rows and no weights."""

    def make(
        row: ModelRow = TINY, method: str = "lora", *, dtype: torch.dtype = torch.float32, **settings: Any
    ) -> Run:
        decided: dict[str, Any] = {
            "updates": 10, "warmup_updates": 0, "microbatch": 2, "gradient_accumulation_steps": 1,
            "torch_compile": False, "optim_8bit": False, "gradient_checkpointing": False,
            "mixed_precision": "no" if dtype == torch.float32 else "bf16", "keep_layers": 1, **settings,
        }  # fmt: skip
        decided["global_batch"] = decided["microbatch"] * decided["gradient_accumulation_steps"]
        read = TextTrainer.hyperparameters_class.read({**TextTrainer.defaults[method], **decided})
        return Run(
            settings=read, model=row, method=method, directory=tmp_path, cache=tmp_path,
            device=torch.device("cpu"), dtype=dtype,
        )  # fmt: skip

    return make


@pytest.fixture
def tokenized(tmp_path: Path) -> Callable[[Run], dict[str, Any]]:
    """Do the phase ``tokens`` and return its facts."""

    def work(run: Run) -> dict[str, Any]:
        (tmp_path / "tokens").mkdir(exist_ok=True)
        return dict(tokens.write_tokens(run, tmp_path / "tokens"))

    return work


@pytest.fixture
def dictionary() -> list[dict[str, str]]:
    """The first forty rows of the dictionary."""
    with DICTIONARY.open(encoding="utf-8") as stream:
        return [json.loads(line) for _, line in zip(range(40), stream, strict=False)]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    """Equal initial LoRA matrices in every test."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def _file(path: Path, value: Any) -> Path:
    if isinstance(value, Path):
        return value
    if isinstance(value, bytes):
        path.write_bytes(value)
        return path
    lines = [each if isinstance(each, str) else json.dumps(each) for each in value]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
