"""Several processes end as one: who is heard, who stops whom, and which end is the result."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk import ranks as module
from app_trainer_sdk.errors import StopRequested
from app_trainer_sdk.ranks import Ranks

HEAD = """
import json, os, pathlib, signal, socket, sys, time
rank = os.environ.get("RANK", "0")
folder = pathlib.Path(sys.argv[1]).parent
line = socket.socket(fileno=int(sys.argv[2]))
def leave(code, name):
    failure = {"code": code, "message": name, "step": None} if code else None
    outcome = {"exit_code": code, "name": name, "failure": failure}
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    os._exit(code)
"""
HEAR = "said = line.recv(1000)\n"


def ended(folder: Path, body: str, *, count: int, stop: StopRequested | None = None) -> tuple[Any, list[Any]]:
    """Run ``body`` in every rank to the end; the one outcome and what was heard."""
    ranks = Ranks(folder, count, program=(sys.executable, "-c", HEAD + body))
    heard = []
    try:
        ranks.begin()
        if stop is not None:
            ranks.tell(stop)
        while ranks.working:
            heard += ranks.listen(0.05)
            ranks.mind_failures(stop)
    finally:
        ranks.close()
    return ranks.outcome(stop, phase="train", step=3), heard


def test_all_is_well(tmp_path: Path):
    """Rank 0's outcome is the result, and rank 0 alone is heard."""
    body = 'line.sendall(json.dumps({"kind": rank}).encode() + b"\\n")\nleave(0, rank)'
    outcome, heard = ended(tmp_path, body, count=3)

    assert outcome["name"] == "0"
    assert heard == [{"kind": "0"}]


def test_one_fails(tmp_path: Path):
    """The others are told to stop as peers; the failure of the first is the result, not what followed."""
    body = (
        'if rank == "2": leave(65, "rows")\n'
        + HEAR
        + 'leave(72, "peer") if b"peer" in said else leave(70, "x")'
    )
    outcome, _ = ended(tmp_path, body, count=3)

    assert (outcome["exit_code"], outcome["name"], outcome["failure"]["step"]) == (65, "rows", 3)


def test_one_is_killed_and_another_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A rank that hangs is killed after the peers' time; the signal that began it is told with its rank."""
    monkeypatch.setattr(module, "PEER_SECONDS", 0.3)
    body = 'if rank == "1": os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)'
    started = time.monotonic()
    outcome, _ = ended(tmp_path, body, count=3)

    assert time.monotonic() - started < 60
    assert outcome["exit_code"] == 70
    assert "rank 1 was killed by signal 9 (SIGKILL)" in outcome["failure"]["message"]


def test_stopping_as_asked_is_no_failure(tmp_path: Path):
    """A rank that left early because all were asked to does not hurry another that still saves."""
    body = HEAR + 'time.sleep(0.5 if rank == "0" else 0)\nline.setblocking(False)\n'
    body += 'try: more = line.recv(1000)\nexcept OSError: more = b""\nleave(70 if more else 75, rank)'
    outcome, _ = ended(tmp_path, body, count=2, stop=StopRequested("interrupted"))

    assert outcome["exit_code"] == 75


def test_only_consequences(tmp_path: Path):
    """When every rank says that another one ended first, that is the result."""
    outcome, _ = ended(tmp_path, 'leave(72, "peer")', count=2)

    assert outcome["exit_code"] == 72


def test_an_outcome_that_no_disk_takes(tmp_path: Path):
    """A rank that cannot write its outcome says it; with one rank or several its code is the result."""
    body = (
        'told = {"kind": "outcome", "exit_code": 73, "name": rank, "failure": {"message": "m", "step": None}}\n'
        'if rank == "0": line.sendall(json.dumps(told).encode() + b"\\n"); os._exit(73)\n'
        + HEAR
        + "os._exit(72)"
    )
    for count in (1, 2):
        outcome, _ = ended(tmp_path, body, count=count)

        assert (outcome["exit_code"], outcome["name"], outcome["failure"]["step"]) == (73, "0", 3)
        assert "kind" not in outcome
