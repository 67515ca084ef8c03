"""Several nodes: a place as torchrun tells it, and two local agents that train one job together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from loopback import reserved_port
from process_helpers import TOY, program, wait_for

from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.files import write_json
from app_trainer_sdk.nodes import Place, help_out, place_from_environment
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.rank_process import rank_environment
from app_trainer_sdk.ranks import Ranks

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}


def around(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in (*TORCHRUN, "APP_TRAINER_ATTEMPT", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_places(monkeypatch: pytest.MonkeyPatch):
    """A6: only torchrun makes several nodes; variables of another launcher, or one node, change nothing."""
    around(monkeypatch, RANK="1", WORLD_SIZE="2")
    assert place_from_environment() == Place(0, 1)
    around(monkeypatch, **{**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"})
    assert place_from_environment() == Place(0, 1)
    around(monkeypatch, **TORCHRUN, APP_TRAINER_ATTEMPT="3")
    assert place_from_environment() == Place(1, 2)


@pytest.mark.parametrize(
    ("variables", "named"),
    [({"LOCAL_WORLD_SIZE": "8", "APP_TRAINER_ATTEMPT": "1"}, "--nproc-per-node"), ({}, "APP_TRAINER_ATTEMPT")],
)
def test_places_that_are_none(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str):
    """One supervisor a node, and attempts that all count alike; else 64 with what to change."""
    around(monkeypatch, **{**TORCHRUN, **variables})
    with pytest.raises(BadJob, match=f"change .*{named}"):
        place_from_environment()


def test_a_rank_of_the_second_node(monkeypatch: pytest.MonkeyPatch):
    """A6: its number is among all ranks, its device among those of its node; where they meet is torchrun's."""
    around(monkeypatch, MASTER_ADDR="10.0.0.7")
    place = rank_environment(1, 2, 0, node=1, nodes=2)

    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")

    assert [place[name] for name in names] == ["3", "1", "4", "2", "10.0.0.7"]
    assert "GLOO_SOCKET_IFNAME" not in place


class Nodes:
    """Two agents on this machine with one job directory."""

    def __init__(self, folder: Path, **hyperparameters: Any) -> None:
        self.folder = folder
        job = {**TOY, "job_id": "nodes", "hyperparameters": hyperparameters}
        (folder / "job.json").write_text(json.dumps(job))
        self._held = contextlib.ExitStack()
        port = self._held.enter_context(reserved_port())
        self.agents = [self._begin(node, port) for node in (0, 1)]

    def _begin(self, node: int, port: int) -> subprocess.Popen[bytes]:
        words = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", "--max-restarts", "0"]
        words += ["--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "app_trainer_sdk.run"]
        words += ["--job", str(self.folder / "job.json"), "--job-dir", str(self.folder / "dir")]
        own = {name: value for name, value in os.environ.items() if not name.startswith("APP_TRAINER_")}
        own |= {"APP_TRAINER_ATTEMPT": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        own |= {"APP_TRAINER_CACHE_DIR": str(self.folder / "cache"), "APP_TRAINER_GRACE_SECONDS": "60"}
        with (self.folder / f"agent-{node}").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words], env=own, stdout=output, stderr=output
            )

    def end(self) -> list[int]:
        """Exit codes of the agents, which know 0 and 1."""
        try:
            return [each.wait(150) for each in self.agents]
        finally:
            self._held.close()
            for each in self.agents:
                each.kill()
                each.wait()

    def told(self) -> str:
        """What was printed on both."""
        return "".join((self.folder / f"agent-{node}").read_text() for node in (0, 1))

    def result(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "dir" / "result.json").read_text())
        return document


def test_two_agents_train_one_job(tmp_path: Path):
    """A6: torchrun begins a supervisor on each of two nodes. Node 0 alone speaks; after SIGTERM at the other
    one both ranks stop after the same update, node 0 saves, and it is 75.
    """  # fmt: skip
    nodes = Nodes(tmp_path, updates=2000, sleep_seconds=0.05, global_batch=4, evaluate_every=0)
    wait_for(tmp_path / "dir" / "metrics.jsonl", 150)
    nodes.agents[1].send_signal(signal.SIGTERM)
    codes = nodes.end()
    attempt = tmp_path / "dir" / "attempts" / "1"
    outcomes = [json.loads((attempt / f"outcome-{rank}.json").read_text()) for rank in (0, 1)]
    lines = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]

    assert 0 not in codes
    assert [each["exit_code"] for each in (*outcomes, nodes.result())] == [75, 75, 75], nodes.told()
    assert json.loads((tmp_path / "dir" / "plan.json").read_text())["replicas"] == 2
    assert len({line["instance"] for line in lines}) == 1
    assert len([*(tmp_path / "dir" / "checkpoints").glob("step-*")]) == 1
    here, there = (attempt.parent.parent / "metrics.jsonl", attempt / "rank-1" / "metrics.jsonl")
    assert here.read_text().count("\n") == there.read_text().count("\n") > 0


@pytest.mark.parametrize(
    ("body", "code"), [("leave(0, 'fine')", 0), ("leave(65, 'rows')", 65), ("os.kill(os.getpid(), 9)", 70)]
)
def test_the_second_node_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, code: int):
    """A6: it waits for node 0's start, and leaves an outcome where its ranks' are, whatever ends them."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "1")
    layout = JobDirectory(tmp_path)
    attempt = layout.attempt(1)
    attempt.mkdir(parents=True)
    threading.Timer(0.3, (attempt / "start.json").touch).start()

    assert help_out(layout, Place(1, 2), 1, Console(quiet=True), program=program(body)) == code
    assert json.loads((attempt / "outcome-1.json").read_text())["exit_code"] == code


def test_a_first_node_that_ends_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A6: where node 0 refuses the job nobody waits for its start: 72."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "1")
    layout = JobDirectory(tmp_path)
    over = threading.Event()

    def refuse() -> None:  # what was there before this node began is of an earlier start
        while not over.wait(0.05):
            write_json(layout.result, {"attempt": 1})

    refusing = threading.Thread(target=refuse)
    refusing.start()
    code = help_out(layout, Place(1, 2), 1, Console(quiet=True), program=program("time.sleep(60)"))
    over.set()
    refusing.join()

    assert code == 72


@pytest.mark.parametrize("end", ["leave(72, 'peer')", "obey()"])
def test_the_cause_lies_on_another_node(tmp_path: Path, end: str):
    """A5, A6: ranks here end as peers, or are told to; what the rank of the other node left is the result. What
    lies there from an earlier start is nobody's cause.
    """  # fmt: skip
    (tmp_path / "outcome-2.json").write_text('{"exit_code": 65}')
    code = "pathlib.Path(folder / 'beside').write_text(json.dumps("
    code += "{'exit_code': 79, 'name': 'gpu_out_of_memory', 'failure': fail(79, 'memory')}))\n"
    code += "pathlib.Path(folder / 'beside').rename(folder / 'outcome-1.json')\n"
    ranks = Ranks(tmp_path, 1, program=program(code + end), nodes=3)
    try:
        ranks.begin()
        while ranks.working:
            ranks.listen(0.05)
            ranks.mind_failures(None)
    finally:
        ranks.close()

    assert ranks.outcome(None, phase="train", step=3)["exit_code"] == 79
