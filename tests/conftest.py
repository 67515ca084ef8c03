"""Owns how the suite runs: hypothesis without time limits, one thread for what is computed in this process, no
search for garbage while tests are collected, files that take minutes before the others, and cards hidden from
all tests but those of a card.
"""  # fmt: skip

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Its time limits say how busy the machine is, and nothing of the code. Half of its usual examples: the suite
# has eight minutes. The same ones each time: others are looked for with ``--hypothesis-profile default``.
settings.register_profile(
    "shared", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

#: Files are dealt to processes in this order: one of these at the end would leave the other process idle.
LONGEST = (
    "test_readme.py", "test_kills.py", "test_compiled.py", "test_memory.py", "test_team.py", "test_pilot.py",
    "test_trainer.py", "test_run.py",
    "test_killed.py",  # finds the weights that the README's job has converted
)  # fmt: skip


#: Read by torch when it is imported.
THREADS = "OMP_NUM_THREADS"
threads_before = pytest.StashKey[str | None]()


#: Where a card shows, and the variables that hide all of them.
CARDS = ("nvidiactl", "dxg", "kfd")
HIDING = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}


def pytest_configure(config: pytest.Config) -> None:
    """Tests are about processors, whatever the machine has, unless only those of a card are asked for.

    A shell that begins them in the background lets them ignore Ctrl-C, and so all processes that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    files = [argument.partition("::")[0] for argument in config.args]
    asked = bool(files) and all(each.endswith("_gpu.py") for each in files)
    if not asked and any(Path("/dev", name).exists() for name in CARDS):
        os.environ.update(HIDING)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Collecting imports torch, which then computes with one thread in this process: what tests compute is
    small, and several processes of them run at once. A million objects are made that live until the end.
    """  # fmt: skip
    session.config.stash[threads_before] = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, "1")
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Processes that tests start have as many threads as anybody's; garbage is what the tests make."""
    if session.config.stash.get(threads_before, None) is None:
        os.environ.pop(THREADS, None)
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """What a test settles for torch's threads is gone after it."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; everything else stays in its order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
