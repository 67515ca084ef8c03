"""Owns the process that trains: open the job, prepare, train, export, replay, and leave one outcome.

``python -m app_trainer_sdk.training.rank START.json CHANNEL_FD``. Everything said to the outside goes through
the channel to the supervisor; everything kept goes to the job's directory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.errors import ExitCode, InternalError
from app_trainer_sdk.files import read_json, remove_tree, sha256_tree, sync_directory, write_json
from app_trainer_sdk.outcome import code_of, describe_failure, outcome_document
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.training.drive import Desk, Drive, is_trained
from app_trainer_sdk.training.memory import Ledger, Row, probe_for
from app_trainer_sdk.training.metrics import append_line
from app_trainer_sdk.training.opening import Opened, identity_of, open_job, prepare, settle_plan, store_of
from app_trainer_sdk.values import JSON, Artifact


class Rank:
    """One training process of one attempt."""

    def __init__(self, start: Start, channel: RankChannel, token: StopToken) -> None:
        self.start = start
        self.layout = start.layout
        self.channel = channel
        self.token = token
        self.phase = "start"
        self.timings: dict[str, float] = {}

    def work(self) -> dict[str, Any]:
        """Do the job and return the facts of its outcome."""
        ledger = self._ledger("warn")
        self._enter("examine")
        opened = open_job(self.start, ledger=ledger, check=self.token.check, progress=self._progress)
        ledger = self._ledger(opened.asked.memory_release)
        store = store_of(self.layout, self.start)
        plan, checkpoint = settle_plan(opened, self.start, store)
        self._say_plan(opened, plan, store)
        self._enter("prepare")
        opened = prepare(opened, plan, ledger)
        self.token.check()
        if checkpoint is None or not is_trained(checkpoint, plan):
            self._train(opened, plan, store, ledger)
        return self._hand_over(opened, plan, store, ledger)

    def _train(self, opened: Opened, plan: Plan, store: CheckpointStore, ledger: Ledger) -> None:
        self._enter("train")
        desk = Desk(self.layout, store, self.channel, self.token, plan, identity_of(opened, self.start, plan))
        checkpoint, _ = store.newest()
        with ledger.phase("train", inputs={"updates": plan.updates, "batch": plan.batch}):
            saved = load_checkpoint(checkpoint) if checkpoint is not None else None
            Drive(opened.trainer, opened.run, desk).train(saved)
            del saved

    def _hand_over(self, opened: Opened, plan: Plan, store: CheckpointStore, ledger: Ledger) -> dict[str, Any]:
        """Export from the last checkpoint, then ask the artifact in a new process."""
        checkpoint, _ = store.newest()
        if checkpoint is None or checkpoint.step != plan.updates:
            raise InternalError("the last checkpoint is gone", expected=f"one of step {plan.updates}")
        snapshot = load_checkpoint(checkpoint)
        counters = snapshot.values.get("counters", {})
        self._enter("export")
        with ledger.phase("export", inputs={"checkpoint": checkpoint.path.name}):
            artifact = self._export(opened, snapshot)
        del snapshot
        outputs = [self._output(folder) for folder in sorted(self.layout.artifacts.iterdir())]
        self._enter("replay")
        with ledger.phase("replay", inputs={"artifact": artifact.name}):
            replay = self._replay(artifact)
        return {
            "step": plan.updates, "counters": counters, "outputs": outputs, "replay": replay,
            "artifact": {"name": artifact.name, **artifact.facts},
        }  # fmt: skip

    def _export(self, opened: Opened, snapshot: Any) -> Artifact:
        """Artifacts appear whole: they are written beside and put in place by one rename."""
        beside = self.layout.root / f".artifacts.{os.getpid()}.tmp"
        for leftover in self.layout.root.glob(".artifacts.*.tmp"):
            remove_tree(leftover)
        beside.mkdir()
        artifact = opened.trainer.export(opened.run, snapshot, beside)
        declared = opened.trainer.artifacts[opened.run.method]
        for name in declared:
            if not (beside / name).is_dir():
                raise InternalError(f"export wrote no folder {name}", expected=", ".join(declared))
        remove_tree(self.layout.artifacts)
        beside.rename(self.layout.artifacts)
        sync_directory(self.layout.root)
        return artifact

    def _output(self, folder: Path) -> dict[str, Any]:
        digest, size = sha256_tree(folder)
        output = {"name": folder.name, "path": f"artifacts/{folder.name}", "bytes": size, "sha256": digest}
        self.channel.say("artifact", **output)
        return output

    def _replay(self, artifact: Artifact) -> dict[str, Any]:
        """Load the artifact in a new process and compare its answers with those before export."""
        if not artifact.controls:
            return {"asked": 0, "same": True}
        attempt = self.layout.attempt(self.start.attempt)
        question, answer = attempt / "replay-question.json", attempt / "replay-answer.json"
        write_json(question, {"artifact": artifact.name, "controls": artifact.controls})
        command = [sys.executable, "-m", "app_trainer_sdk.training.replay", str(attempt / "start.json")]
        with subprocess.Popen([*command, str(question), str(answer)]) as process:
            while process.poll() is None:
                try:
                    self.token.check()
                    time.sleep(0.05)
                except BaseException:
                    process.kill()
                    raise
        if process.returncode:
            raise InternalError(f"the artifact {artifact.name} could not be loaded again in a new process")
        answers: Sequence[JSON] = read_json(answer)
        expected = json.loads(json.dumps(artifact.expected))
        if answers != expected:
            raise InternalError(
                f"the exported {artifact.name} answers {answers!r}", expected=f"{expected!r}, as before export"
            )
        return {"asked": len(answers), "same": True}

    def _ledger(self, policy: Any) -> Ledger:
        from app_trainer_sdk.training.device import pick_device

        return Ledger(probe_for(pick_device()), self._write_row, policy=policy)

    def _write_row(self, row: Row) -> None:
        self.timings[row.phase] = self.timings.get(row.phase, 0.0) + row.seconds
        document = {"attempt": self.start.attempt, **row.document()}
        append_line(self.layout.phases, document)
        self.channel.say("phase_end", **document)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.channel.say("phase", name=phase)

    def _progress(self, label: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if done and now - getattr(self, "_told", 0.0) < 1.0:
            return
        self._told = now
        self.channel.say("work", label=label, done=done, total=total)

    def _say_plan(self, opened: Opened, plan: Plan, store: CheckpointStore) -> None:
        checkpoint, skipped = store.newest()
        resumed = checkpoint.step if checkpoint else None
        told = [f"{each.path.name}: {each.problem or 'of another run'}" for each in skipped]
        facts = opened.examination.facts
        self.channel.say("plan", plan=plan.document(), resumed=resumed, skipped=told, data=facts)


def main(arguments: Sequence[str]) -> int:
    """Run one rank; the exit code is the outcome's."""
    _leave_signals_to_the_supervisor()
    start = Start.load(Path(arguments[0]))
    token = StopToken()
    channel = RankChannel(socket.socket(fileno=int(arguments[1])), token)
    rank = Rank(start, channel, token)
    path = start.layout.attempt(start.attempt) / "outcome-0.json"
    try:
        facts = rank.work()
        outcome = outcome_document(ExitCode.SUCCEEDED, **facts, timings=rank.timings)
    except BaseException as error:  # noqa: BLE001 - every ending becomes one outcome
        code = code_of(error)
        failure = describe_failure(error, phase=rank.phase)
        outcome = outcome_document(code, failure=failure, timings=rank.timings)
    write_json(path, outcome)
    channel.close()
    return int(outcome["exit_code"])


def _leave_signals_to_the_supervisor() -> None:
    """Stop requests come over the channel. A signal meant for the group must not interrupt a save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.PEER_FAILED))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries must not hold the container
