"""How ranks find each other, and what a broken collective means afterwards."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist

from app_trainer_sdk.errors import ExitCode, StopRequested
from app_trainer_sdk.outcome import code_of
from app_trainer_sdk.training import meeting
from app_trainer_sdk.training.meeting import ending, local_rank, meet
from app_trainer_sdk.training.team import Team, nobody_asked


def nothing():
    """Nobody asks to stop."""


@pytest.fixture(autouse=True)
def own_team():
    """The team of this process is what it was."""
    before = meeting.here()
    yield
    meeting.enter(before)


@pytest.fixture
def place(monkeypatch):
    """Where two ranks meet: the environment as the supervisor writes it, and the socket it has bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(bound.getsockname()[1]))
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        yield bound


def test_one_rank_meets_nobody():
    """Nothing of the environment is read."""
    assert meet(1, nothing, nobody_asked) is meeting.here()
    assert local_rank(Team()) == 0


def test_rank_0_holds_the_store_that_others_find(place, monkeypatch):
    """Over the socket that was bound for it; a rank's number on its node is told by torchrun."""
    monkeypatch.setenv("RANK", "0")
    bound = place.detach()  # it is the store's from now on
    first = meet(2, nothing, nobody_asked, bound)
    monkeypatch.setenv("RANK", "1")
    second = meet(2, nothing, nobody_asked)
    monkeypatch.setenv("LOCAL_RANK", "5")

    assert (first.rank, second.rank, second.size) == (0, 1, 2)
    assert meeting.here() is second
    assert local_rank(second) == 5


def test_a_rank_that_waits_for_rank_0_hears_a_wish_to_stop(place, monkeypatch):
    """Each try is short, since rank 0 may be gone."""
    monkeypatch.setenv("RANK", "1")
    asked = []

    def check():
        asked.append(True)
        if len(asked) == 2:
            raise StopRequested("interrupted")

    monkeypatch.setattr(meeting, "MEETING_TIMEOUT", meeting.MEETING_TIMEOUT / 20)
    with pytest.raises(StopRequested):
        meet(2, check, nobody_asked)

    assert len(asked) == 2


def test_what_a_broken_collective_means():
    """It is what another rank's end looks like from here, unless somebody asked to stop anyway."""
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
    asked = StopRequested("interrupted", checkpoint=False)
    ours = ValueError("ours")

    assert ending(broken, None).code is ExitCode.PEER_FAILED
    assert ending(broken, asked) is asked
    assert ending(ours, None) is ours


def test_torchs_own_errors_are_broken_collectives_too():
    """A wish to stop stays what it is."""
    stop = StopRequested("interrupted")

    assert ending(dist.DistBackendError("NCCL error"), None).code is ExitCode.PEER_FAILED
    assert ending(stop, None) is stop


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'", ExitCode.GPU_OUT_OF_MEMORY),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", ExitCode.GPU_FAULT),
    ],
)
def test_a_collective_that_broke_here_is_no_peers_end(said, code):
    """What it says of this rank's own device stays the cause."""
    error = dist.DistBackendError(said)

    assert ending(error, None) is error
    assert code_of(error) is code
