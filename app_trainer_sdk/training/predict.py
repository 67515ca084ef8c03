"""Owns the prediction of one configuration's memory: its peak by owner and by phase, from dry runs.

Where a trainer says how to shorten its model, one, two and three blocks are rehearsed and the rest follows by
the line through two and three; one block tells how far that line is off. This file must not know which
configurations are compared, nor any card.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.training.allocations import Held
from app_trainer_sdk.training.dry_run import Rehearsed, Size, build_shapes, dry_run
from app_trainer_sdk.training.rehearsal import UPDATES
from app_trainer_sdk.training.second_process import both

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

GRADE = "predicted, CPU kernels"
#: The phases a peak is told for, in the order they happen.
PHASES = ("load", "forward", "backward", "step", "evaluate", "export")
#: What a preparation phase's name has before it, beside those.
PREPARE = "prepare "
#: A model of at most this many blocks is rehearsed whole.
WHOLE = 4


@dataclass(frozen=True)
class Prediction:
    """What one configuration will hold, in bytes.

    Attributes:
        phases: the fullest instant of each phase, by the phase's name.
        size: of the whole model.
        snapshot_bytes: what a checkpoint holds; as much lies in host memory while it is written.
        rehearsed: what it follows from: the rehearsals of two and three blocks, or the one of a model that was
            rehearsed whole.
        kind: the type of device it was made for.
        residual: how far the line is off at one block, as a share; None where that was not looked at.
    """

    phases: Mapping[str, Held]
    size: Size
    snapshot_bytes: int
    rehearsed: Sequence[Rehearsed]
    kind: str
    residual: float | None = None

    @property
    def extrapolated(self) -> bool:
        """Whether the depth follows from two and three blocks."""
        return len(self.rehearsed) > 1

    def after(self, preparation: Mapping[str, Held]) -> Prediction:
        """The same with the preparation phases that come before, by their names."""
        before = {PREPARE + name: held for name, held in preparation.items()}
        return dataclasses.replace(self, phases={**before, **self.phases})

    def beside(self, there: Held) -> Prediction:
        """The same with something else there all the while."""
        phases = {name: _summed([(1, held), (1, there)]) for name, held in self.phases.items()}
        return dataclasses.replace(self, phases=phases)

    @property
    def at(self) -> str:
        """The phase that holds most."""
        return max(self.phases, key=lambda phase: self.phases[phase].total)

    @property
    def peak(self) -> Held:
        """What is held at the fullest instant of all."""
        return self.phases[self.at]

    def document(self) -> dict[str, Any]:
        """The prediction as JSON."""
        return {
            "peak_bytes": self.peak.total, "peak_in": self.at,
            "by_owner": {owner: count for owner, count in self.peak.by_owner.items() if count},
            "phases": {name: self.phases[name].total for name in PHASES if name in self.phases},
            "preparation": {
                name.removeprefix(PREPARE): held.total
                for name, held in self.phases.items() if name.startswith(PREPARE)
            },
            "rounding_bytes": self.peak.rounding, "checkpoint_bytes": self.snapshot_bytes,
            "extrapolated": self.extrapolated,
            "residual": None if self.residual is None else round(self.residual, 6), "grade": GRADE,
        }  # fmt: skip


def predict(
    trainer: SupervisedTrainer, run: Run, *, kind: str = "cpu", size: Size | None = None,
    updates: int = UPDATES,
) -> Prediction:  # fmt: skip
    """Predict the memory of a resolved configuration.

    Args:
        trainer: the trainer.
        run: its handle; see :func:`~app_trainer_sdk.training.dry_run.dry_run`.
        kind: the type of device that is planned for.
        size: of the whole model, when it is known already.
        updates: how many are rehearsed; 0 predicts the forward pass alone.
    """
    size = size or Size.of(build_shapes(trainer, run))
    whole = not trainer.depth_setting or size.blocks <= WHOLE
    if whole:
        return _prediction([dry_run(trainer, run, kind=kind, updates=updates)], size, kind)
    rehearse = functools.partial(dry_run, trainer, kind=kind, updates=updates)
    two, three = (_shortened(trainer, run, depth) for depth in (2, 3))
    return _prediction(both(functools.partial(rehearse, two), functools.partial(rehearse, three)), size, kind)


def with_residual(prediction: Prediction, trainer: SupervisedTrainer, run: Run) -> Prediction:
    """The same prediction, its line checked against one block; nothing to check for a model rehearsed whole."""
    if not prediction.extrapolated:
        return prediction
    one = dry_run(trainer, _shortened(trainer, run, 1), kind=prediction.kind)
    two, three = prediction.rehearsed
    by_line = max(each.total for each in _extrapolated(two, three, 1)[0].values())
    seen = max(each.total for each in one.places.values())
    return dataclasses.replace(prediction, residual=abs(by_line - seen) / seen)


def combined(parts: Sequence[tuple[float, Prediction]]) -> Prediction | None:
    """The sum of predictions of the same model, each times its factor; None where their places differ.

    Every place is summed by itself. That is the prediction of a configuration that was not rehearsed, where
    what moves a place moves it by the same bytes whatever else is set, or by bytes in proportion to rows.
    """
    first = parts[0][1]
    rehearsed = []
    for number in range(len(first.rehearsed)):
        pieces = [(factor, each.rehearsed[number]) for factor, each in parts]
        names = pieces[0][1].places.keys()
        if any(each.places.keys() != names for _, each in pieces):
            return None
        places = {name: _summed([(factor, each.places[name]) for factor, each in pieces]) for name in names}
        saved = round(sum(factor * each.snapshot_bytes for factor, each in pieces))
        rehearsed.append(Rehearsed(places, pieces[0][1].size, saved))
    return _prediction(rehearsed, first.size, first.kind)


def _summed(parts: Sequence[tuple[float, Held]]) -> Held:
    owners = parts[0][1].by_owner
    by_owner = {name: round(sum(factor * held.by_owner[name] for factor, held in parts)) for name in owners}
    return Held(by_owner, round(sum(factor * held.rounding for factor, held in parts)))


def _shortened(trainer: SupervisedTrainer, run: Run, blocks: int) -> Run:
    return dataclasses.replace(run, settings=run.settings.model_copy(update={trainer.depth_setting: blocks}))


def _extrapolated(two: Rehearsed, three: Rehearsed, blocks: int) -> tuple[dict[str, Held], int]:
    """Every place of a model of ``blocks`` blocks, by the line through two and three.

    A place's instants all move by the same bytes for each further block, so that its fullest instant stays the
    same one. What is held in a block between the first and the last lies between theirs, apart from the block's
    own course: it moves as the faster of the two.
    """
    more = blocks - 3
    places = {
        name: _moved(three.places[name], two.places[name], three.places[name], more)
        for name in two.places.keys() & three.places.keys()
    }
    for name in three.places.keys() - two.places.keys():
        if blocks < 3:
            continue
        before, _, part = name.partition("/")
        ends = [f"{before}/{part.replace('blocks', which, 1)}" for which in ("first block", "last block")]
        moves = [_moved(three.places[name], two.places[end], three.places[end], more) for end in ends]
        places[name] = max(moves, key=lambda held: held.total)
    saved = three.snapshot_bytes + more * (three.snapshot_bytes - two.snapshot_bytes)
    return places, saved


def _moved(start: Held, two: Held, three: Held, more: int) -> Held:
    by_owner = {
        owner: start.by_owner[owner] + more * (three.by_owner[owner] - two.by_owner[owner])
        for owner in start.by_owner
    }
    return Held(by_owner, start.rounding + more * (three.rounding - two.rounding))


def _prediction(rehearsed: Sequence[Rehearsed], size: Size, kind: str) -> Prediction:
    if len(rehearsed) > 1:
        places, saved = _extrapolated(rehearsed[0], rehearsed[1], size.blocks)
    else:
        places, saved = dict(rehearsed[0].places), rehearsed[0].snapshot_bytes
    phases: dict[str, Held] = {}
    for place, held in places.items():
        phase = _phase(place)
        if phase not in phases or held.total > phases[phase].total:
            phases[phase] = held
    phases["export"] = _export(phases["load"], saved if kind == "cpu" else 0)
    return Prediction(phases, size, saved, rehearsed, kind)


def _phase(place: str) -> str:
    before, _, part = place.partition("/")
    if not before.startswith("update"):
        return before
    return "step" if part == "step" else "backward" if "backward" in place else "forward"


def _export(loaded: Held, snapshot_bytes: int) -> Held:
    """At most the model once more, and on the CPU the checkpoint it is made from; training's state is gone."""
    kept = {
        owner: count if owner in ("parameters", "buffers") else 0 for owner, count in loaded.by_owner.items()
    }
    return Held({**kept, "temporaries": snapshot_bytes}, loaded.rounding)
