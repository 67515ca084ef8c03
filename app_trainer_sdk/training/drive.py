"""Owns what happens between two updates: metrics, evaluation, checkpoints, progress.

It iterates over a trainer's facts and is the same for every trainer, with or without the ordinary loop.
"Every N" is decided in one place, :func:`is_due`. This file must not know losses or optimizers.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from app_trainer_sdk.changes import RANDOM
from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.checkpoints import STATE, Checkpoint, read_document
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import BadJob, Diverged, InternalError, StopRequested
from app_trainer_sdk.handle import Run
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.training.best import Best
from app_trainer_sdk.training.checkpoint import CheckpointStore, copied
from app_trainer_sdk.training.metrics import MetricsWriter, append_line, count_lines, keep_lines, read_numbers
from app_trainer_sdk.training.random_state import capture_random, restore_random
from app_trainer_sdk.training.randomness import CPU, global_seeds, seed_globals
from app_trainer_sdk.training.saver import Saver
from app_trainer_sdk.values import Snapshot, StepInfo

PROGRESS_SECONDS = 0.5
SPLITS_DURING, SPLITS_AT_END = ("validation",), ("validation", "test")


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
        self._paced: tuple[float, int] | None = None
        self._last_seconds = 0.0
        self._pending: list[str] = []
        self._saver = Saver()
        self._best = Best.of(desk.plan)
        self._ended = ""

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
            self._iterate(state)
            self._saver.finish()
        except StopRequested as stop:
            if stop.checkpoint:
                self._saver.finish()
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
                self._last_seconds = now - before
                self._metrics.add(info, self._last_seconds)
                for variant in info.recovered:
                    self._desk.channel.say("recovered", step=info.step, **variant)
                before = now
                self._saver.raise_if_failed()
                if info.applied:
                    self._step = info.step
                    self._between(state, info.step)
                    before = self._desk.clock()
                self._tell(info)
                self._run.check()
                if self._is_over():
                    break
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
        if not resumed and self._every("evaluate_every"):
            self._pending = [*SPLITS_DURING]
        if not self._pending:
            return
        self._evaluate(state)
        if resumed:
            self._end_early(state)
            if self._must_save(self._step):
                self._saved_step = -1  # the one on disk does not know of these evaluations
                self._save(state)

    def _between(self, state: Any, step: int) -> None:
        last = self._desk.plan.updates
        if is_due(step, self._every("evaluate_every"), last):
            self._pending = [*(SPLITS_AT_END if step == last else SPLITS_DURING)]
            self._evaluate(state)
            self._end_early(state)
        if self._must_save(step):
            self._save(state)

    def _is_over(self) -> bool:
        return bool(self._ended)

    def _must_save(self, step: int) -> bool:
        best = self._best.wanted and self._best.step == step
        due = is_due(step, self._every("checkpoint_every"), self._desk.plan.updates)
        return best or due or self._is_over()

    def _end_early(self, state: Any) -> None:
        """Stop asking for updates when patience has run out; what is left is the last evaluation."""
        if self._best.exhausted and self._step < self._desk.plan.updates and not self._ended:
            found = f"{self._best.without_better} evaluations without a better {self._best.metric}"
            self._ended = f"{found} than {self._best.value} after update {self._best.step}"
            self._pending = [split for split in SPLITS_AT_END if split not in SPLITS_DURING]
            self._evaluate(state)

    def _stop(self, state: Any, stop: StopRequested) -> None:
        """Somebody asked to stop: keep what was done, unless they are in too much of a hurry."""
        if stop.checkpoint and stop.reason != "peer":
            self._desk.token.begin_saving()
            self._save(state)

    def _every(self, name: str) -> int:
        value = self._desk.plan.settings[name].effective
        assert isinstance(value, int)
        return value

    def _evaluate(self, state: Any) -> None:
        """Evaluate what is pending. A stop leaves the rest pending, and the checkpoint says so."""
        while self._pending:
            split = self._pending[0]
            started = self._desk.clock()
            # A trainer's own loop may draw from the global generators: looking more often moves no number.
            with global_seeds(self._run.random("evaluate", split).seed, self._run.device or CPU):
                sums = self._sum_up(state, split)
            if sums:
                self._write_evaluation(split, sums, self._desk.clock() - started)
            del self._pending[0]

    def _write_evaluation(self, split: str, sums: Mapping[str, tuple[float, float]], seconds: float) -> None:
        numbers = {name: _ratio(*pair) for name, pair in sums.items()}
        row = {"step": self._step, "split": split, "seconds": seconds, **numbers}
        append_line(self._desk.layout.evaluations, row)
        if split in SPLITS_DURING and self._step > 0:
            self._best.take(self._step, numbers)
        self._desk.channel.say("evaluation", **row)

    def _sum_up(self, state: Any, split: str) -> dict[str, tuple[float, float]]:
        """Totals over the split, reduced batch by batch: no prediction is kept."""
        sums: dict[str, tuple[float, float]] = {}
        batches = self._trainer.evaluate(self._run, state, split)
        try:
            for terms in batches:
                values = read_numbers([number for pair in terms.metrics.values() for number in pair])
                for name in terms.metrics:
                    before = sums.get(name, (0.0, 0.0))
                    sums[name] = (before[0] + next(values), before[1] + next(values))
                self._run.check()
        finally:
            end_iterator(batches)  # a stop must find the modes and weights of training, not of evaluation
        return sums

    def _save(self, state: Any) -> None:
        if self._step == self._saved_step:
            return
        if not self._desk.saves:
            self._saved_step = self._step
            return
        assert self._run.device is not None
        self._metrics.flush(sync=True)
        taken = self._trainer.snapshot(state)
        tensors, random_values = capture_random(self._run.device)
        named = {f"{RANDOM}/{name}": tensor for name, tensor in tensors.items()}
        values = {**taken.values, RANDOM: random_values, "driver": self._driver_values()}
        snapshot = copied(Snapshot({**taken.tensors, **named}, values))
        self._saver.start(functools.partial(self._write, self._step, snapshot, self._best.step))
        self._saved_step = self._step

    def _write(self, step: int, snapshot: Snapshot, best: int | None) -> None:
        """Write one checkpoint, in the saver's thread; afterwards older ones may go."""
        desk = self._desk
        started = desk.clock()
        _refuse_nonfinite(snapshot, step)
        documents = {"plan.json": desk.plan.document(), "identity.json": dict(desk.identity)}
        saved = desk.store.save(step, snapshot, documents)
        desk.store.retain(self._every("checkpoints_kept"), best=best)
        seconds = desk.clock() - started
        desk.channel.say("checkpoint", step=step, bytes=saved.size_bytes, seconds=seconds, name=saved.path.name)

    def _driver_values(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "metrics_lines": self._metrics.lines,
            "evaluation_lines": count_lines(self._desk.layout.evaluations),
            "evaluations_pending": list(self._pending),
            "best": self._best.document(),
            "ended": self._ended,
            "elapsed_seconds": self._elapsed_before + self._desk.clock() - self._started,
        }

    def _take_up(self, saved: Snapshot) -> None:
        """Continue where a checkpoint left off: cut what was written past it, put the generators back."""
        values: Any = saved.values["driver"]
        self._step = self._saved_step = int(values["step"])
        self._elapsed_before = float(values["elapsed_seconds"])
        self._pending = [str(split) for split in values["evaluations_pending"]]
        self._best.take_up(values["best"])
        self._ended = str(values["ended"])
        keep_lines(self._desk.layout.metrics, int(values["metrics_lines"]))
        keep_lines(self._desk.layout.evaluations, int(values["evaluation_lines"]))
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
        rate, left = self._pace(now)
        self._desk.channel.say(
            "progress", step=self._step, total=last, updates_per_second=rate, eta_seconds=left,
            metrics={name: latest.get(name) for name in ("loss", "learning_rate", "gradient_norm")},
            nonfinite=latest.get("nonfinite", []), seconds=latest.get("seconds"),
            data_seconds=latest.get("data_seconds"),
        )  # fmt: skip

    def _pace(self, now: float) -> tuple[float, float | None]:
        """Updates a second and seconds left, by this attempt's updates after its first, which warms up."""
        if self._paced is None:
            self._paced = now, self._step
            return 1.0 / max(self._last_seconds, 1e-9), None
        since, first = self._paced
        if self._step == first:
            return 0.0, None
        rate = (self._step - first) / max(now - since, 1e-9)
        return rate, (self._desk.plan.updates - self._step) / rate


def is_trained(checkpoint: Checkpoint, plan: Plan) -> bool:
    """Whether nothing is left to do but export: every update made or ended early, and evaluated too."""
    driver = read_document(checkpoint, STATE)["driver"]
    return (checkpoint.step >= plan.updates or bool(driver["ended"])) and not driver["evaluations_pending"]


def pick_for_export(store: CheckpointStore, plan: Plan) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint that artifacts are made from, and what is known of how training ended.

    Raises:
        InternalError: training is not finished, or the best checkpoint is gone.
    """
    last, _ = store.newest()
    if last is None or not is_trained(last, plan):
        raise InternalError("the last checkpoint is gone", expected=f"one of step {plan.updates}")
    driver = read_document(last, STATE)["driver"]
    told = {"last_step": last.step, "best": driver["best"], "ended_early": driver["ended"] or None}
    wanted = last.step
    if plan.settings["export_from"].effective == "best" and driver["best"]["step"] is not None:
        wanted = driver["best"]["step"]
    for checkpoint in store.find():
        if checkpoint.step == wanted and not checkpoint.problem and checkpoint.run == store.run:
            return checkpoint, told
    raise InternalError(f"the best checkpoint, of step {wanted}, is gone", expected="it beside the last one")


def end_iterator(iterator: Iterator[Any]) -> None:
    """End a trainer's generator where it stands; other iterators have nothing to end."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _ratio(total: float, count: float) -> float | None:
    value = total / count if count else math.nan
    return value if math.isfinite(value) else None


def _refuse_nonfinite(snapshot: Snapshot, step: int) -> None:
    """Weights that are not finite never become a checkpoint: the last finite one stays the newest."""
    for name, tensor in snapshot.section("model").items():
        if torch.is_floating_point(tensor) and not bool(torch.isfinite(tensor).all()):
            raise Diverged(
                f"after update {step} the weight {name} is not finite", expected="finite weights",
                setting="/hyperparameters/learning_rate",
            )  # fmt: skip
