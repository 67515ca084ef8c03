"""Every way a training process can end: one code, one failure object, one last event. No rank has torch."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from machines import GIB, Machine
from process_helpers import BEGUN, Clock, Told, gone, supervise

from app_trainer_sdk.schemas.result import result_schema
from app_trainer_sdk.supervisor import Supervisor

FINAL = ("job.succeeded", "job.failed", "job.canceled", "job.interrupted")
SUM_UP = "leave(0, 'succeeded', outputs=[], timings={'train': 1.0})"
XID = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the test's own, and each job's first attempt."""
    monkeypatch.delenv("APP_TRAINER_ATTEMPT", raising=False)
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def one_truth(told: Told) -> None:
    """Exit code, result, report and the one last event agree."""
    result, failure = told.result, told.result.get("failure")
    finals = [event for event in told.events if event["type"] in FINAL]

    assert len(finals) == 1
    assert told.last["type"] in FINAL
    assert result["exit_code"] == told.last["code"] == told.code
    assert (failure or {}).get("message") == (told.last.get("failure") or {}).get("message")
    assert (failure is None) == (told.code == 0)
    assert (told.directory / "report.md").exists()
    terminal = told.directory / "attempts" / "1" / "terminal.json"
    assert terminal.exists() == (told.last["type"] != "job.interrupted")


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (SUM_UP, 0, ""),
        ("leave(79, 'CUDA out of memory')", 79, "CUDA out of memory"),
        ("os.kill(os.getpid(), 9)", 70, "signal 9 (SIGKILL)"),
        ("import ctypes; ctypes.string_at(0)", 70, "signal 11 (SIGSEGV)"),
        ("os._exit(3)", 70, "ended with status 3"),
        ("os._exit(0)", 70, "ended with status 0"),
        ("print('why', flush=True); raise ValueError('that')", 70, "ended with status 1"),
        ("os.kill(os.getpid(), 15)", 72, "signal 15 (SIGTERM)"),
        (f"print({XID!r}, flush=True); os.abort()", 80, "fault of the accelerator"),
        (f"print({WATCHDOG!r}, flush=True); os.abort()", 80, "fault of the accelerator"),
        ("print('CUDA error: uncorrectable ECC error encountered', flush=True); os._exit(1)", 80, "fault"),
        ("say('outcome', exit_code=73, name='disk_full', status='failed', failure=fail(73, 'no space')); "
         "os._exit(73)", 73, "no space"),
    ],
)  # fmt: skip
def test_an_end(tmp_path: Path, body: str, code: int, said: str):
    """L3, A13 row 12: whatever happens to the rank, everybody is told the same once, never 0 for a failure."""
    told = supervise(tmp_path, body)

    assert told.code == code
    assert said in (told.result.get("failure") or {"message": ""})["message"]
    one_truth(told)


def test_what_the_rank_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """L3: the failure carries the end of the rank's log, of this start and not of one before."""
    log = tmp_path / "dir" / "attempts" / "1" / "logs"
    log.mkdir(parents=True)
    (log / "rank-0.log").write_text(XID + "\n")
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "1")
    told = supervise(tmp_path, "raise ValueError('that')")

    assert told.code == 70
    assert "ValueError: that" in told.result["failure"]["traceback"]
    assert "Xid" not in told.result["failure"]["traceback"]


@pytest.mark.parametrize("version", [1, 2])
def test_killed_for_want_of_memory(tmp_path: Path, version: int):
    """A6: a kill while the group's counter rises is 71, also one of a loader worker that the rank tells of."""
    machine = Machine(tmp_path, version=version, group="/box")
    machine.kills("box", 3)
    name = "memory.events" if version == 2 else "memory.oom_control"
    count = f"pathlib.Path({str(machine.mount / 'box' / name)!r}).write_text('oom_kill 4\\n')\n"
    for number, end in enumerate(
        ("os.kill(os.getpid(), 9)", "leave(70, 'worker (pid 7) is killed by signal')")
    ):
        (tmp_path / str(number)).mkdir()
        machine.kills("box", 3)
        told = supervise(tmp_path / str(number), count + end, proc=machine.proc)

        assert told.code == 71
        assert "for want of memory" in told.result["failure"]["message"]
        assert told.result["failure"]["retry"] == "bigger host"
        one_truth(told)


def test_an_old_kill_is_nobodys_reason(tmp_path: Path):
    """A6: what was killed before this start does not make a failure one of memory, and a success stays one."""
    machine = Machine(tmp_path, group="/box")
    machine.kills("box", 3)

    assert supervise(tmp_path, "os._exit(3)", proc=machine.proc).code == 70


@pytest.mark.parametrize("version", [1, 2])
def test_nearly_full(tmp_path: Path, version: int):
    """A6: at 97 % of the group's memory the ranks go before the kernel takes the supervisor too: 71."""
    machine = Machine(tmp_path, version=version, group="/box")
    machine.memory("box", 8 * GIB, 7.7, 0)  # 96 %
    told = supervise(
        tmp_path, BEGUN + "time.sleep(600)", proc=machine.proc,
        acts=[lambda supervisor: machine.memory("box", 8 * GIB, 7.8, 0)],
    )  # fmt: skip

    assert told.code == 71
    assert "7,987 of 8,192 MiB" in told.result["failure"]["message"]
    assert told.console.count("ending the ranks") == 1
    one_truth(told)


STUCK = """
import faulthandler
faulthandler.register(signal.SIGUSR1, all_threads=True)
def hangs():
    (folder / f"hangs-{rank}-{threading.get_ident()}").touch()
def wait_for_ever():
    hangs()
    while True: time.sleep(600)
threading.Thread(target=wait_for_ever, name="other").start()
"""


class Hanging:
    """Time that stands until both threads of all ranks hang, then until as many stacks as that are in the logs
    with ``words``; from there on as much has passed as it takes.
    """  # fmt: skip

    def __init__(self, folder: Path, words: str, stacks: int, ranks: int) -> None:
        self._attempt = folder / "dir" / "attempts" / "1"
        self._words, self._stacks, self._ranks = words, stacks, ranks
        self._heard: Callable[[], bool] = lambda: False
        self._moments = [(self._hang, 900.0), (self._told, 901.0), (lambda: True, 1800.0)]
        self._now = 0.0

    def begin(self, supervisor: Supervisor) -> None:
        """The one whose ranks it are: who was not heard yet is not asked for its stacks."""
        self._heard = lambda: all(each.listens for each in supervisor._ranks._members)  # type: ignore[union-attr]

    def __call__(self) -> float:
        if self._moments and self._moments[0][0]():
            self._now = self._moments.pop(0)[1]
        return self._now

    def _hang(self) -> bool:
        return len([*self._attempt.glob("hangs-*")]) == 2 * self._ranks and self._heard()

    def _told(self) -> bool:
        return sum(log.read_text().count(self._words) for log in self._attempt.glob("logs/*")) >= self._stacks


def test_a_rank_that_hangs(tmp_path: Path):
    """A6, A11: the stacks of every thread, then ``job.stalled``; as long again, and it is killed: 70."""
    clock = Hanging(tmp_path, "in wait_for_ever", stacks=2, ranks=1)
    told = supervise(tmp_path, STUCK + BEGUN + "wait_for_ever()", clock=clock, meanwhile=clock.begin)
    log = (tmp_path / "dir" / "attempts" / "1" / "logs" / "rank-0.log").read_text()

    assert told.code == 70
    assert told.kinds == ["job.accepted", "job.phase", "job.stalled", "job.failed"]
    assert told.events[2]["phase"] == {"name": "train"}
    assert log.count("in wait_for_ever") == 2
    assert "nothing moved for" in told.result["failure"]["message"]
    one_truth(told)


def test_ranks_that_wait_for_each_other(tmp_path: Path):
    """A5: when every rank hangs in a collective it is 80, as a collective's own time-out is."""
    code = "exec(compile('hangs(); time.sleep(600)', '/lib/torch/distributed/distributed_c10d.py', 'exec'))"
    clock = Hanging(tmp_path, "torch/distributed", stacks=2, ranks=2)
    told = supervise(tmp_path, STUCK + f"say('pulse')\n{code}", ranks=2, clock=clock, meanwhile=clock.begin)

    assert told.code == 80
    assert "waits for the others in a collective" in told.result["failure"]["message"]
    one_truth(told)


@pytest.mark.parametrize(
    ("order", "code", "last"),
    [("cancel", 81, "job.canceled"), ("gone", 81, "job.canceled"), ("fenced", 76, "job.interrupted")],
)
def test_an_order_of_the_control_plane(tmp_path: Path, order: Any, code: int, last: str):
    """A6: obeyed as a first signal is, with a checkpoint; who is fenced leaves none."""
    told = supervise(tmp_path, BEGUN + "obey()", acts=[lambda supervisor: supervisor.order(order)])

    assert (told.code, told.last["type"]) == (code, last)
    outcome = json.loads((told.directory / "attempts" / "1" / "outcome-0.json").read_text())
    assert told.result["stop"]["checkpoint"] == (order != "fenced") == bool(outcome["step"])
    one_truth(told)


@pytest.mark.parametrize("variable", ["MAX_RUNTIME_SECONDS", "DEADLINE"])
def test_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str):
    """A1: 77 with a checkpoint, and another attempt may go on."""
    at, clock = 300 if variable == "MAX_RUNTIME_SECONDS" else time.time() + 300, Clock()
    monkeypatch.setenv("APP_TRAINER_" + variable, str(at))
    told = supervise(tmp_path, BEGUN + "obey()", clock=clock, acts=[lambda supervisor: clock.go(301)])

    assert (told.code, told.last["type"], told.result["step"]) == (77, "job.interrupted", 1)
    assert "deadline" in told.console.splitlines()  # and not as an error
    assert told.result["stop"]["reason"] == "deadline"
    one_truth(told)


def test_a_deadline_ends_a_download_from_a_silent_server(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
):
    """L4, A13 row 2 (a): nothing arrives; at the deadline it is 77 all the same."""
    clock = Clock()

    def answer(handler: Any, request: Any) -> None:
        clock.go(301)
        server.released.wait(120.0)

    server = serve(answer)
    monkeypatch.setenv("APP_TRAINER_MAX_RUNTIME_SECONDS", "300")
    started = time.monotonic()
    told = supervise(tmp_path, SUM_UP, job={"inputs": {"dataset": f"{server.url}/rows"}}, clock=clock)

    assert told.code == 77
    assert time.monotonic() - started < 60
    one_truth(told)


def test_a_second_signal_gives_up_the_checkpoint(tmp_path: Path):
    """A6: a second or more after the first; within it the same finger on Ctrl-C counts once."""
    heard, clock = tmp_path / "heard", Clock()

    def twice_at_once(supervisor: Supervisor) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            clock.go(0.4)

    def once_more(supervisor: Supervisor) -> None:
        clock.go(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    body = BEGUN + "first = hear()\n"
    body += f"pathlib.Path({str(heard)!r}).write_text(json.dumps(first))\n" + BEGUN + "obey()"
    told = supervise(tmp_path, body, clock=clock, acts=[twice_at_once, once_more])

    assert json.loads(heard.read_text()) == {"kind": "stop", "reason": "interrupted", "checkpoint": True}
    assert (told.code, told.result["step"]) == (75, 0)
    assert "stopping without a checkpoint" in told.console
    one_truth(told)


def test_a_rank_that_does_not_stop(tmp_path: Path):
    """L4: killed with everything below it when the grace less its last two seconds is over: 75, and told why
    nobody waited longer; what the grace was spent on is in the result.
    """  # fmt: skip
    begun, clock = tmp_path / "begun", Clock()

    def ask(supervisor: Supervisor) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        clock.go(28.1)

    body = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    body += f"pathlib.Path({str(begun)!r}).write_text(str(child.pid))\n" + BEGUN + "time.sleep(600)"
    started = time.monotonic()
    told = supervise(tmp_path, body, clock=clock, acts=[ask])
    stop = told.result["stop"]

    assert time.monotonic() - started < 60  # and not the minutes that it sleeps
    assert (told.code, stop["reason"], stop["grace_seconds"]) == (75, "interrupted", 30.0)
    assert stop["seconds"]["checkpoint"] == pytest.approx(28.1)
    assert set(stop["seconds"]) == set(stop["share_of_grace"]) == {"checkpoint", "upload", "terminal", "kill"}
    assert gone(int(begun.read_text()))
    one_truth(told)


ORPHAN = "subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)"
BEHIND = f"""
child = subprocess.Popen(["sleep", "600"])
apart = {ORPHAN}
middle = subprocess.run([sys.executable, "-I", "-S", "-c", "import subprocess; print({ORPHAN}.pid)"],
                        stdout=subprocess.PIPE)
(folder / "left").write_text(" ".join(map(str, [child.pid, apart.pid, int(middle.stdout)])))
"""


@pytest.mark.parametrize("end", [SUM_UP, "os.kill(os.getpid(), 9)"])
def test_nothing_outlives_the_supervisor(tmp_path: Path, end: str):
    """A6: a child, one that left the session, and an orphan that did are gone when the end is told."""
    told = supervise(tmp_path, BEHIND + end)
    left = [int(word) for word in (tmp_path / "dir" / "attempts" / "1" / "left").read_text().split()]

    assert len(left) == 3
    assert [gone(pid, 0.0) for pid in left] == [True] * 3
    one_truth(told)


def test_a_stop_as_the_published_schema_has_it(tmp_path: Path):
    """A6: ``result.json`` of a stopped job is what ``app-trainer schema`` promises, shares included."""
    told = supervise(tmp_path, BEGUN + "obey()", acts=[lambda supervisor: supervisor.order("cancel")])

    Draft202012Validator(result_schema()).validate(told.result)
    assert told.result["stop"]["reason"] == "canceled"
