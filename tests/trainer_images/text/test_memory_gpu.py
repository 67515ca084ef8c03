"""The twin of ``test_memory.py`` on a card: predictions against torch's own peak."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

from app_trainer_sdk.gpus import CARDS
from app_trainer_sdk.training.memory import CudaProbe
from app_trainer_sdk.training.predict import predict
from app_trainer_sdk.training.rehearsal import rehearse
from app_trainer_sdk.training.supervised import assemble
from trainer_images.text.models import MODELS
from trainer_images.text.trainer import TextTrainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WITHIN = 0.05


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("lean", [False, True], ids=["", "lean"])
@pytest.mark.parametrize("microbatch", [1, 8])
@pytest.mark.parametrize("max_length", [256, 1024])
def test_prediction_is_within_a_twentieth_of_the_card(plan_run, method, lean, microbatch, max_length):
    """Bytes that torch's allocator handed out at once, its rounding and workspaces of cuBLAS included."""
    run = plan_run(
        MODELS[0], method, keep_layers=0, dtype=torch.bfloat16, microbatch=microbatch, max_length=max_length,
        gradient_checkpointing=lean, optim_8bit=lean,
    )  # fmt: skip
    predicted = predict(TextTrainer(), run, kind="cuda").peak

    measured = peak_on_card(TextTrainer(), run)

    assert predicted.total + predicted.rounding + library_bytes() == pytest.approx(measured, rel=WITHIN)


def library_bytes() -> int:
    """Workspaces of cuBLAS on this card, which torch's allocator hands out."""
    told = torch.cuda.get_device_properties(0)
    here = told.gcnArchName.partition(":")[0] if torch.version.hip else f"{told.major}.{told.minor}"
    return max((card.library_bytes for card in CARDS if card.architecture == here), default=17 << 20)


def peak_on_card(trainer, run) -> int:
    """Most bytes allocated at once by the rehearsal with real tensors."""
    device = torch.device("cuda", 0)
    run = dataclasses.replace(run, device=device)
    gc.collect()
    CudaProbe(device).release()  # those that another test left would not be taken again
    before = torch.cuda.memory_allocated(device)
    modules = trainer.build_model(run, weights=False)
    state = assemble(trainer, run, modules)
    torch.cuda.reset_peak_memory_stats(device)
    rehearse(trainer, run, state, trainer.largest_batch(run, run.settings.microbatch))
    return torch.cuda.max_memory_allocated(device) - before
