"""Owns what happens between two updates: metrics, checkpoints, progress, and when to evaluate.

It iterates over a trainer's facts and is the same for every trainer, with or without the ordinary loop.
"Every N" is decided in one place, :func:`is_due`. This file must not know losses or optimizers.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from app_trainer_sdk.changes import RANDOM
from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import BadJob, Diverged, InternalError, StopRequested
from app_trainer_sdk.handle import Run
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training.checkpoint import CheckpointStore, copied
from app_trainer_sdk.training.evaluations import Evaluations, end_iterator
from app_trainer_sdk.training.interrupts import interruptible
from app_trainer_sdk.training.memory import told_memory
from app_trainer_sdk.training.metrics import MetricsWriter, keep_lines
from app_trainer_sdk.training.pace import Pace
from app_trainer_sdk.training.random_state import capture_random, restore_random
from app_trainer_sdk.training.randomness import CPU, seed_globals
from app_trainer_sdk.training.saver import Saver
from app_trainer_sdk.values import Snapshot, StepInfo

PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Desk:
    """The tools a drive works with."""

    layout: JobDirectory
    store: CheckpointStore
    channel: RankChannel
    token: StopToken
    plan: Plan
    identity: Mapping[str, Any]
    saves: bool = True  # of several ranks one alone
    clock: Callable[[], float] = time.perf_counter


def is_due(step: int, every: int, last: int) -> bool:
    """Whether something done every ``every`` updates is due after update ``step``; always at the last one."""
    return step == last or (every > 0 and step % every == 0)


class Drive:
    """Training from a snapshot, or from nothing, to the plan's last update."""

    def __init__(self, trainer: Trainer, run: Run, desk: Desk) -> None:
        self._trainer = trainer
        self._run = run
        self._desk = desk
        self._saved_step = -1
        self._step = 0
        self._elapsed_before = 0.0
        self._started = desk.clock()
        self._said = 0.0
        self._pace = Pace(desk.plan.updates)
        self._saver = Saver()
        self._evaluations = Evaluations(trainer, run, desk)
        self._evaluate_every = _number(desk.plan, "evaluate_every")
        self._checkpoint_every = _number(desk.plan, "checkpoint_every")
        self._checkpoints_kept = _number(desk.plan, "checkpoints_kept")

    def train(self, saved: Snapshot | None) -> None:
        """Make the updates that are left; afterwards the last checkpoint holds the result.

        Raises:
            StopRequested: somebody asked; a checkpoint was saved unless they asked for none.
            Diverged: losses, gradients or weights are not finite.
        """
        if saved is None:
            for path in (self._desk.layout.metrics, self._desk.layout.evaluations):
                keep_lines(path, 0)
        # For a trainer with a loop of its own; the ordinary loop draws by position.
        seed_globals(self._run.random("train").seed, self._run.device or CPU)
        state = self._begin(saved)
        if saved is not None:
            self._take_up(saved)
        del saved  # the state has its own copy; this one would double the memory of a run
        self._metrics = MetricsWriter(self._desk.layout.metrics, clock=self._desk.clock)
        try:
            with timed("compute"):
                self._iterate(state)
            with timed("checkpoint"):
                self._saver.finish(self._desk.token.check)
        except StopRequested as stop:
            if stop.checkpoint:
                self._desk.token.begin_saving()
                with timed("checkpoint"):
                    self._saver.finish(self._desk.token.check)
            raise
        except Exception:
            # A checkpoint on its way is of an earlier update: good, or the first sign of what is wrong.
            self._saver.finish()
            raise
        finally:
            self._metrics.close()

    def _begin(self, saved: Snapshot | None) -> Any:
        """The trainer's state. After an allowed change, a checkpoint that does not fit is the job's fault."""
        try:
            with timed("load"), interruptible():
                return self._trainer.begin(self._run, saved)
        except InternalError as error:
            if saved is None or not self._desk.plan.changed:
                raise
            names = ", ".join(str(each["field"]) for each in self._desk.plan.changed)
            raise BadJob(
                f"with {names} changed the checkpoint does not fit: {error}",
                setting="the job back, or give another --job-dir",
            ) from error

    def _iterate(self, state: Any) -> None:
        plan = self._desk.plan
        self._look_first(state)
        if self._is_over():
            return
        steps = self._trainer.training_steps(self._run, state)
        before = self._desk.clock()
        try:
            for info in steps:
                now = self._desk.clock()
                self._metrics.add(info, now - before)
                self._pace.add(info, now - before)
                for variant in info.recovered:
                    self._desk.channel.say("recovered", step=info.step, **variant)
                before = now
                self._saver.raise_if_failed()
                if info.applied:
                    _refuse_gap(self._step, info.step)
                    self._step = info.step
                    self._between(state, info.step)
                    before = self._desk.clock()
                self._tell(info)
                self._run.check()
                if self._is_over() or self._step >= plan.updates:
                    break  # the plan says how long a run is, also where a loop of one's own has no end
        except StopRequested as stop:
            self._stop(state, stop)
            raise
        finally:
            end_iterator(steps)
        if self._step < plan.updates and not self._is_over():
            raise InternalError(f"training ended after {self._step} updates", expected=f"{plan.updates}")

    def _look_first(self, state: Any) -> None:
        """Evaluate before the first update, or what a stop cut short; the latter belongs to its checkpoint."""
        resumed = self._saved_step >= 0
        if not resumed and self._evaluate_every:
            self._evaluations.add()
        if not self._evaluations.pending:
            return
        with timed("evaluation"):
            self._evaluations.look(state, self._step)
        if resumed:
            self._evaluations.end_early(state, self._step)
            if self._must_save(self._step):
                self._saved_step = -1  # the one on disk does not know of these evaluations
                self._save(state)

    def _between(self, state: Any, step: int) -> None:
        last = self._desk.plan.updates
        if is_due(step, self._evaluate_every, last):
            self._evaluations.add(last=step == last)
            with timed("evaluation"):
                self._evaluations.look(state, step)
            self._evaluations.end_early(state, step)
        if self._must_save(step):
            self._save(state)

    def _is_over(self) -> bool:
        return bool(self._evaluations.ended)

    def _must_save(self, step: int) -> bool:
        best = self._evaluations.best
        due = is_due(step, self._checkpoint_every, self._desk.plan.updates)
        return (best.wanted and best.step == step) or due or self._is_over()

    def _stop(self, state: Any, stop: StopRequested) -> None:
        """Somebody asked to stop: keep what was done, unless they are in too much of a hurry."""
        if stop.checkpoint and stop.reason != "peer":
            self._desk.token.begin_saving()
            self._save(state)

    def _save(self, state: Any) -> None:
        if self._step == self._saved_step:
            return
        if not self._desk.saves:
            self._saved_step = self._step
            return
        with timed("checkpoint"):
            self._hand_to_saver(state)
        self._saved_step = self._step

    def _hand_to_saver(self, state: Any) -> None:
        """Copy the state, and let it be written while training goes on."""
        assert self._run.device is not None
        self._metrics.flush(sync=True)
        taken = self._trainer.snapshot(state)
        tensors, random_values = capture_random(self._run.device)
        named = {f"{RANDOM}/{name}": tensor for name, tensor in tensors.items()}
        values = {**taken.values, RANDOM: random_values, "driver": self._driver_values()}
        snapshot = copied(Snapshot({**taken.tensors, **named}, values))
        self._saver.start(functools.partial(self._write, self._step, snapshot, self._evaluations.best.step))

    def _write(self, step: int, snapshot: Snapshot, best: int | None) -> None:
        """Write one checkpoint, in the saver's thread; afterwards older ones may go."""
        desk = self._desk
        started = desk.clock()
        _refuse_nonfinite(snapshot, step)
        documents = {"plan.json": desk.plan.document(), "identity.json": dict(desk.identity)}
        saved = desk.store.save(step, snapshot, documents)
        desk.store.retain(self._checkpoints_kept, best=best)
        seconds = desk.clock() - started
        desk.channel.say("checkpoint", step=step, bytes=saved.size_bytes, seconds=seconds, name=saved.path.name)

    def _driver_values(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "metrics_lines": self._metrics.lines,
            **self._evaluations.document(),
            "elapsed_seconds": self._elapsed_before + self._desk.clock() - self._started,
        }

    def _take_up(self, saved: Snapshot) -> None:
        """Continue where a checkpoint left off: cut what was written past it, put the generators back."""
        values: Any = saved.values["driver"]
        self._step = self._saved_step = int(values["step"])
        self._elapsed_before = float(values["elapsed_seconds"])
        self._evaluations.take_up(values)
        keep_lines(self._desk.layout.metrics, int(values["metrics_lines"]))
        self._put_back_random(saved)

    def _put_back_random(self, saved: Snapshot) -> None:
        """The global generators go on, or begin anew where a resume was allowed to do without their state."""
        assert self._run.device is not None
        changed = [(each["field"], each["step"]) for each in self._desk.plan.changed]
        if (RANDOM, self._step) in changed:
            seed_globals(self._run.random("train", self._step).seed, self._run.device)
            return
        values: Any = saved.values[RANDOM]
        restore_random(saved.section(RANDOM), values, self._run.device)

    def _tell(self, info: StepInfo) -> None:
        now = self._desk.clock()
        last = self._desk.plan.updates
        if now - self._said < PROGRESS_SECONDS and info.step != last:
            return
        self._said = now
        self._metrics.flush()
        latest = self._metrics.latest
        spreads, nonfinite = self._metrics.take_spreads()
        assert self._run.device is not None
        self._desk.channel.say(
            "progress", step=self._step, total=last, **self._pace.facts(now, self._step),
            metrics={name: latest.get(name) for name in ("loss", "learning_rate", "gradient_norm")},
            spreads=spreads, nonfinite=nonfinite, seconds=latest.get("seconds"),
            data_seconds=latest.get("data_seconds"), memory=told_memory(self._run.device),
        )  # fmt: skip


def _number(plan: Plan, name: str) -> int:
    value = plan.settings[name].effective
    assert isinstance(value, int)
    return value


def _refuse_gap(before: int, step: int) -> None:
    if step != before + 1:
        raise InternalError(
            f"training_steps told of update {step} after update {before}", expected=f"{before + 1}",
            setting="StepInfo.step, or what begin takes up from a snapshot",
        )  # fmt: skip


def _refuse_nonfinite(snapshot: Snapshot, step: int) -> None:
    """Weights that are not finite never become a checkpoint: the last finite one stays the newest."""
    for name, tensor in snapshot.section("model").items():
        narrow = tensor.is_floating_point() and tensor.element_size() == 1  # torch cannot ask eight bits
        if not bool(torch.isfinite(tensor.float() if narrow else tensor).all()):
            raise Diverged(
                f"after update {step} the weight {name} is not finite", expected="finite weights",
                setting="/hyperparameters/learning_rate",
            )  # fmt: skip
