"""What a loader worker cannot hand over is raised in the rank, and nobody waits for it."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.training.data_worker import start_worker

FULL = "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"


class Batches:
    """Eight batches, the third of which fails on its way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> object:
        return Unsendable(self.error) if index == 2 else index


class Unsendable:
    """What torch's tensors are where no shared memory is left."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError(FULL), HardwareUnfit, r"shared memory is full: [\d,]+ MiB are free.*dataloader_workers"),
        (TypeError("cannot pickle 'lock'"), TypeError, "handing a batch over.*cannot pickle 'lock'"),
    ],
)
def test_a_batch_that_cannot_be_handed_over(error: Exception, kind: type[Exception], words: str):
    """Small shared memory: in the batch's turn, after those that came; told with what helps."""
    loader = DataLoader(
        Batches(error), batch_size=None, num_workers=1, multiprocessing_context="fork",  # type: ignore[arg-type]
        worker_init_fn=start_worker, collate_fn=lambda value: value, timeout=120,
    )  # fmt: skip
    batches = iter(loader)

    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(kind, match=f"(?s){words}"):
        next(batches)
