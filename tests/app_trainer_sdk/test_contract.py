"""The contract's own promises: what stands on it, and that reading it needs no torch."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from app_trainer_sdk import contract
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.contract_check import OPTIONAL_HOOKS, abstract_names

TORCH_FREE = (
    "contract",
    "describe",
    "describe_schema",
    "describe_table",
    "registry",
    "errors",
    "hyperparameters",
    "validation",
    "catalog",
    "values",
    "handle",
)


def test_the_lifecycle_is_frozen():
    """Authors subclass these names: a change here is a change of the contract."""
    assert abstract_names(Trainer) == ["begin", "training_steps", "snapshot", "evaluate", "export", "replay"]


def test_parameters_are_frozen():
    """Hooks are called with exactly these parameters."""
    written = {
        name: str(inspect.signature(value)).split(" -> ")[0]
        for base in (Trainer, SupervisedTrainer)
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    bare = {name: [*inspect.signature(getattr(SupervisedTrainer, name)).parameters] for name in written}

    assert bare == {
        "examine": ["self", "run"],
        "phases": ["self", "run"],
        "phase_shapes": ["self", "run"],
        "begin": ["self", "run", "saved"],
        "training_steps": ["self", "run", "state"],
        "snapshot": ["self", "state"],
        "evaluate": ["self", "run", "state", "split"],
        "export": ["self", "run", "saved", "directory"],
        "replay": ["self", "run", "directory", "controls"],
        "build_model": ["self", "run", "weights"],
        "dataset": ["self", "run", "split"],
        "collate": ["self", "run", "items"],
        "loss": ["self", "modules", "batch", "random"],
        "largest_batch": ["self", "run", "rows"],
        "parameter_groups": ["self", "run", "modules"],
        "measure": ["self", "modules", "batch", "random"],
        "show": ["self", "run", "batch"],
    }


@pytest.mark.parametrize("base", [Trainer, SupervisedTrainer])
def test_a_base_cannot_be_used(base: type):
    """Bases are abstract: only a finished trainer makes instances."""
    with pytest.raises(TypeError, match="abstract"):
        base()


def test_optional_hooks_say_so():
    """Whoever reads the base sees in the first words which methods may be left out."""
    for name in OPTIONAL_HOOKS:
        assert getattr(SupervisedTrainer, name).__doc__.startswith("Optional hook")


def test_optional_hooks_of_a_plain_trainer_do_nothing():
    """A trainer without data or preparation writes neither hook."""
    assert Trainer.examine(None, None).rows is None
    assert Trainer.phases(None, None) == ()


def test_the_contract_fits_a_short_file():
    """An author reads the whole of it."""
    assert inspect.getsource(contract).count("\n") < 250


def test_reading_a_trainer_needs_no_torch():
    """Above the torch line nothing imports torch, numpy or transformers, not even through others."""
    heavy = (
        "torch",
        "numpy",
        "transformers",
        "accelerate",
        "peft",
        "bitsandbytes",
        "huggingface_hub",
        "safetensors",
    )
    imports = "".join(f"import app_trainer_sdk.{name}\n" for name in TORCH_FREE)
    program = f"{imports}import sys\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
