"""What is watched while ranks work, with ranks and a clock that do as they are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import GIB, Machine

from app_trainer_sdk.errors import ExitCode, GpuFault, HostOutOfMemory, InternalError
from app_trainer_sdk.limits import MemoryWatch
from app_trainer_sdk.outcome import outcome_document
from app_trainer_sdk.watch import Watch


class Ranks:
    """Ranks that have been quiet for as long as the clock has gone since they moved."""

    def __init__(self) -> None:
        self.now = self.moved_at = 0.0
        self.dumps = 0
        self.together = False

    def silence(self) -> float:
        return self.now - self.moved_at

    def dump_stacks(self) -> None:
        self.dumps += 1

    def wait_in_collectives(self) -> bool:
        return self.together


@pytest.fixture
def ranks() -> Ranks:
    """Ranks that just moved."""
    return Ranks()


def watch(ranks: Ranks, proc: Path = Path("/nowhere")) -> Watch:
    return Watch(ranks, MemoryWatch(proc), clock=lambda: ranks.now)


def looks(watched: Watch, ranks: Ranks, *moments: float) -> list[object]:
    found = []
    for ranks.now in moments:
        found.append(watched.look())
    return found


def test_one_that_moves_again(ranks: Ranks):
    """A11: stacks, then the word that it stalled, each once; when it moves nothing more is said."""
    watched = watch(ranks)

    assert looks(watched, ranks, 899, 900, 900.5, 901, 950) == ["", "", "", "stalled", ""]
    assert (ranks.dumps, watched.stalled) == (1, 901)
    ranks.moved_at = 960
    assert looks(watched, ranks, 961, 1859, 1860, 1861) == ["", "", "", "stalled"]
    assert ranks.dumps == 2


@pytest.mark.parametrize(("together", "kind"), [(False, InternalError), (True, GpuFault)])
def test_one_that_does_not(ranks: Ranks, together: bool, kind: type):
    """A5, A6: as long again, and the verdict is 70, or 80 where all wait in a collective. It is said once."""
    watched, ranks.together = watch(ranks), together
    *_, before, verdict, after = looks(watched, ranks, 900, 901, 1799, 1800, 1801)

    assert (before, type(verdict), after) == ("", kind, "")


def test_another_time(ranks: Ranks, monkeypatch: pytest.MonkeyPatch):
    """A1: ``STALL_SECONDS`` is the time until a stall is told."""
    monkeypatch.setenv("APP_TRAINER_STALL_SECONDS", "3")

    assert looks(watch(ranks), ranks, 2.9, 3, 4) == ["", "", "stalled"]


def test_memory_that_runs_out(ranks: Ranks, tmp_path: Path):
    """A6: above 97 % of the limit, once."""
    machine = Machine(tmp_path, group="/box")
    machine.memory("box", 100 * GIB, 97, 0)
    watched = watch(ranks, machine.proc)

    assert looks(watched, ranks, 1) == [""]
    machine.memory("box", 100 * GIB, 97.1, 0)
    verdict, after = looks(watched, ranks, 2, 3)

    assert isinstance(verdict, HostOutOfMemory)
    assert after == ""


def test_a_success_beside_a_kill_stays_one(ranks: Ranks, tmp_path: Path):
    """A6: a kill for memory explains an end without a reason, and no other."""
    machine = Machine(tmp_path, group="/box")
    machine.kills("box", 0)
    watched = watch(ranks, machine.proc)
    machine.kills("box", 1)

    for code in (ExitCode.SUCCEEDED, ExitCode.INTERRUPTED, ExitCode.GPU_OUT_OF_MEMORY):
        outcome = outcome_document(code)
        assert watched.explained(outcome) == outcome
