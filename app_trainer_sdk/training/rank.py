"""Owns the process that trains: open the job, prepare, train, export, replay, and leave one outcome.

``python -m app_trainer_sdk.training.rank START.json CHANNEL_FD [MEETING_FD]``. Everything said to the outside
goes through the channel to the supervisor; everything kept goes to the job's directory. Of several ranks only
rank 0 says and keeps anything, exports and replays. This file must not know losses, nor how events travel.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.checkpoints import Checkpoint, is_trained
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.data_wait import data_wait
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.files import read_lines, sha256_tree, write_json
from app_trainer_sdk.handle import Run
from app_trainer_sdk.outcome import code_of, describe_failure, outcome_document
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.redaction import redact_logs
from app_trainer_sdk.start import ENVIRONMENT, Start
from app_trainer_sdk.time_split import Stopwatch, counting, timed
from app_trainer_sdk.training import interrupts
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.training.compiled import count_graphs
from app_trainer_sdk.training.device import pick_device
from app_trainer_sdk.training.drive import Desk, Drive
from app_trainer_sdk.training.ema import averaged
from app_trainer_sdk.training.environment import describe_environment
from app_trainer_sdk.training.finished import pick_for_export
from app_trainer_sdk.training.handover import ask_again, export_artifacts
from app_trainer_sdk.training.ledger import Ledger, Policy
from app_trainer_sdk.training.meeting import ending, local_rank, meet
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.training.metrics import append_line
from app_trainer_sdk.training.opening import Opened, identity_of, open_job, prepare, settle_plan, store_of
from app_trainer_sdk.training.optimizer_state import described
from app_trainer_sdk.training.phase_row import Row
from app_trainer_sdk.training.qualify import qualify_in_process, refuse_unqualified
from app_trainer_sdk.training.rank_signals import end_process, leave_with_children, settle_signals
from app_trainer_sdk.training.reading_plan import settle_reading
from app_trainer_sdk.training.stream_feed import told_place
from app_trainer_sdk.training.team import Team
from app_trainer_sdk.training.touch import touch_device


@dataclasses.dataclass(frozen=True)
class Ready:
    """A job ready to be trained.

    Attributes:
        opened: trainer and handle, the preparation phases done.
        plan: its numbers.
        checkpoint: what training goes on from, if anything.
        store: the job's checkpoints.
        ledger: measures phases.
    """

    opened: Opened
    plan: Plan
    checkpoint: Checkpoint | None
    store: CheckpointStore
    ledger: Ledger


class Rank:
    """One training process of one attempt."""

    def __init__(self, start: Start, channel: RankChannel, token: StopToken, team: Team | None = None) -> None:
        self.start = start
        self.layout = start.layout
        self.team = team or Team()
        self.channel = channel if self.team.speaks else RankChannel(None, token)
        self.token = token
        self.phase = "start"
        self.timings: dict[str, float] = {}
        self.watch = Stopwatch()

    def work(self) -> dict[str, Any]:
        """Do the job and return the facts of its outcome."""
        with timed("prepare"):
            ready = self.prepare()
        if ready.checkpoint is None or not is_trained(ready.checkpoint, ready.plan):
            self._train(ready)
        return self._hand_over(ready) if self.team.speaks else {"rank": self.team.rank}

    def prepare(self, policy: Policy | None = None) -> Ready:
        """Everything before training: the plan, and the preparation phases.

        Args:
            policy: what happens when a phase keeps memory; by default what the job says.
        """
        local = local_rank(self.team)
        probe = probe_for(pick_device(local))
        ledger = Ledger(probe, self._write_row, policy=policy or "warn", rank=self.team.rank)
        self.enter("examine")
        check, team = self.token.check, self.team
        store = store_of(self.layout, self.start)
        with team.first("the plan", check), interrupts.interruptible():
            opened = open_job(
                self.start, ledger=ledger, check=check, progress=self._progress, rank=local_rank(team)
            )
            ledger.policy = policy or opened.asked.memory_release
            plan, checkpoint = settle_plan(opened, self.start, store, writes=team.speaks)
            resumed = checkpoint is not None
            if not opened.trainer.preparation:
                plan = settle_reading(opened, plan, self.start, resumed=resumed, rank=team.rank)
        team.compare("the checkpoint", checkpoint.path.name if checkpoint is not None else "none", check)
        # Each rank decided for its own card; weights of ranks that differ in this would drift apart unseen.
        bits = 8 if plan.settings["optim_8bit"].effective is True else 32
        team.compare("precision and optimizer state", f"{plan.precision}, {bits} bits", check)
        self._say_plan(opened, plan, store)
        self._touch_device(opened, plan)
        self.enter("prepare")
        with team.first("the phases", check), interrupts.interruptible():
            opened = prepare(opened, plan, ledger, verify=team.speaks)
            if opened.trainer.preparation:  # what it reads did not exist before
                opened, plan = self._settle_prepared(opened, plan, store, resumed=resumed)
        check()
        return Ready(opened, plan, checkpoint, store, ledger)

    def _settle_prepared(
        self, opened: Opened, plan: Plan, store: CheckpointStore, *, resumed: bool
    ) -> tuple[Opened, Plan]:
        """The plan once the phases have made the data; said again only where the number is another one."""
        before = plan.settings["dataloader_workers"].effective
        plan = settle_reading(opened, plan, self.start, resumed=resumed, rank=self.team.rank)
        run = dataclasses.replace(opened.run, settings=plan.resolved(opened.asked))
        if plan.settings["dataloader_workers"].effective != before:
            self._say_plan(opened, plan, store)
        return dataclasses.replace(opened, run=run), plan

    def _touch_device(self, opened: Opened, plan: Plan) -> None:
        """The device proves that it computes, and tells what it is, before anything large is loaded."""
        assert opened.run.device is not None
        own_loop = not isinstance(opened.trainer, SupervisedTrainer)
        touch_device(opened.run.device, None if own_loop else plan.resolved(opened.asked))
        if self.team.speaks:
            folder = self.layout.attempt(self.start.attempt)
            known = describe_environment(opened.run.device)
            operations = qualify_in_process(folder, self.token.check) if known["torch"]["hip"] else {}
            data = {"fingerprint": opened.examination.fingerprint, "rows": opened.examination.rows}
            write_json(folder / ENVIRONMENT, {**known, "operations": operations, "data": data})
            refuse_unqualified(operations, plan)

    def connect(self, opened: Opened) -> Run:
        """Form the groups of all ranks; the handle to train with, whose check asks them all."""
        assert opened.run.device is not None
        self.team.connect(opened.run.device, self.token.check)
        return dataclasses.replace(opened.run, check=self.team.check) if self.team.size > 1 else opened.run

    def _train(self, ready: Ready) -> None:
        self.enter("train")
        opened, plan, store = ready.opened, ready.plan, ready.store
        with timed("load"):
            run = self.connect(opened)
        identity = identity_of(opened, self.start, plan)
        desk = Desk(self.written(), store, self.channel, self.token, plan, identity, saves=self.team.speaks)
        checkpoint, _ = store.newest()
        with ready.ledger.phase("train", inputs={"updates": plan.updates, "batch": plan.batch}):
            with timed("load"), interrupts.interruptible():
                saved = load_checkpoint(checkpoint) if checkpoint is not None else None
            Drive(opened.trainer, run, desk).train(saved)
            del saved

    def written(self) -> JobDirectory:
        """Where lines about updates go: those of other ranks than 0 beside their logs, to be compared."""
        if self.team.speaks:
            return self.layout
        folder = self.layout.attempt(self.start.attempt) / f"rank-{self.team.rank}"
        folder.mkdir(parents=True, exist_ok=True)
        return JobDirectory(folder)

    def _hand_over(self, ready: Ready) -> dict[str, Any]:
        """Export from the last checkpoint, then ask the artifact in a new process."""
        opened, plan, store, ledger = ready.opened, ready.plan, ready.store, ready.ledger
        with timed("export"):
            checkpoint, ending = pick_for_export(store, plan)
            snapshot = averaged(load_checkpoint(checkpoint))
            counters, optimizer = snapshot.values.get("counters", {}), described(snapshot.values)
            stream = told_place(snapshot.values)
            self.enter("export")
            inputs = {"checkpoint": checkpoint.path.name}
            with ledger.phase("export", inputs=inputs), interrupts.interruptible():
                artifact = export_artifacts(opened, snapshot, self.layout)
            del snapshot
            outputs = [self._output(folder) for folder in sorted(self.layout.artifacts.iterdir())]
        self.enter("replay")
        with timed("replay"), ledger.phase("replay", inputs={"artifact": artifact.name}):
            replay = ask_again(artifact, self.start, self.token.check)
        waited = data_wait(read_lines(self.layout.metrics))
        told = {**artifact.facts, "name": artifact.name, "reload": artifact.reload}
        return {
            "step": checkpoint.step, "training": ending, "counters": counters, "optimizer": optimizer,
            "compiled_graphs": count_graphs(), "data_wait": waited, **stream,
            "outputs": outputs, "replay": replay, "artifact": told,
        }  # fmt: skip

    def _output(self, folder: Path) -> dict[str, Any]:
        digest, size = sha256_tree(folder)
        output = {"name": folder.name, "path": f"artifacts/{folder.name}", "bytes": size, "sha256": digest}
        self.channel.say("artifact", **output)
        return output

    def _write_row(self, row: Row) -> None:
        if not row.within:  # the time of a scope inside is time of the one around it
            self.timings[row.phase] = self.timings.get(row.phase, 0.0) + row.seconds
        document = {"attempt": self.start.attempt, **row.document()}
        append_line(self.written().phases, document)
        self.channel.say("phase_end", **document)

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        self.phase = phase
        self.channel.say("phase", name=phase)

    def times(self) -> dict[str, Any]:
        """Seconds by phase, and by activity."""
        return {"timings": self.timings, "activities": self.watch.seconds()}

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


def serve(arguments: Sequence[str], work: Callable[[Rank], dict[str, Any]]) -> int:
    """Run one rank as the supervisor starts it; the exit code is the outcome's.

    Args:
        arguments: ``START.json CHANNEL_FD [MEETING_FD]``.
        work: what the rank does; the facts of its outcome.
    """
    token = StopToken()
    settle_signals(token)
    redact_logs()
    start = Start.load(Path(arguments[0]))
    line = socket.socket(fileno=int(arguments[1]))
    channel = RankChannel(line, token, leave=leave_with_children, heard=interrupts.nudge)
    number = int(os.environ["RANK"]) if start.ranks > 1 else 0
    path = start.layout.attempt(start.attempt) / f"outcome-{number}.json"
    rank = Rank(start, channel, token)
    try:
        team = meet(start.ranks, token.check, lambda: token.asked, *map(int, arguments[2:]))
        rank = Rank(start, channel, token, team)
        with counting(rank.watch):
            facts = work(rank)
        outcome = outcome_document(ExitCode.SUCCEEDED, **facts, **rank.times())
    except BaseException as error:  # noqa: BLE001 - every ending becomes one outcome
        if start.ranks > 1:
            error = ending(error, token.asked)
        code = code_of(error)
        failure = describe_failure(error, phase=rank.phase)
        outcome = outcome_document(code, failure=failure, **rank.times())
    outcome = _hand_in(outcome, path, channel)
    channel.close()
    return int(outcome["exit_code"])


def _hand_in(outcome: dict[str, Any], path: Path, channel: RankChannel) -> dict[str, Any]:
    """Leave the outcome as a file. Where the disk takes none it is said; work that cannot be kept failed."""
    try:
        write_json(path, outcome)
    except OSError as error:
        if outcome["exit_code"] == ExitCode.SUCCEEDED:
            outcome = outcome_document(code_of(error), failure=describe_failure(error, phase="outcome"))
        channel.say("outcome", **outcome)
    return outcome


if __name__ == "__main__":
    end_process(serve(sys.argv[1:], Rank.work))
