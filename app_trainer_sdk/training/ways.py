"""Owns what is predicted for the ways to make one job's updates: few are rehearsed, the others follow.

8-bit state moves every place of a rehearsal by the same bytes at any microbatch, so one pair of ways tells it
for all. Between two microbatches of a kind memory follows a line; that line only rules out what is far from
fitting, and whatever fits was rehearsed. This file must not know cards, or which way is preferred.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.errors import InternalError, TrainerError
from app_trainer_sdk.training.allocations import Held
from app_trainer_sdk.training.phase_rehearsal import rehearse_phases
from app_trainer_sdk.training.predict import Prediction, combined, predict, with_residual

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.dry_run import Size

T = TypeVar("T")

#: What the line says is believed where it is more than this share above what there is.
MARGIN = 0.02


class Ways:
    """Predictions of one trainer's ways, for cards.

    Args:
        trainer: the trainer.
        size: of the whole model.
        run: the handle of a way, every setting decided.
    """

    def __init__(self, trainer: SupervisedTrainer, size: Size, run: Callable[[Candidate], Run]) -> None:
        self._trainer, self._size, self._run = trainer, size, run
        self._known: dict[Candidate, Prediction] = {}
        self._phases: dict[str, Mapping[str, Held]] = {}

    def predict(self, way: Candidate) -> Prediction:
        """What a way holds: known, composed of ways that are, or rehearsed now.

        Raises:
            InternalError: the trainer needs data where there is none.
        """
        if way not in self._known:
            self._known[way] = (self._composed(way) or self._rehearsed(way)).after(self.preparation(way))
        return self._known[way]

    def estimate(self, way: Candidate) -> Prediction | None:
        """What a way is known to hold, or what the line through two known ways of its kind says; else None.

        A single microbatch in an update meets no gradients of another, so that it lies on no line.
        """
        if way in self._known or way.gradient_accumulation_steps == 1:
            return self._known.get(way)
        kind = [
            each for each in filter(way.is_of_the_kind, self._known) if each.gradient_accumulation_steps > 1
        ]
        below = [each for each in kind if each.microbatch < way.microbatch]
        above = [each for each in kind if each.microbatch > way.microbatch]
        if not below or not above:
            return None
        low, high = max(below, key=_rows), min(above, key=_rows)
        share = (way.microbatch - low.microbatch) / (high.microbatch - low.microbatch)
        estimated = combined([(1 - share, self._known[low]), (share, self._known[high])])
        return None if estimated is None else estimated.after(self.preparation(way))

    def preparation(self, way: Candidate) -> Mapping[str, Held]:
        """What the phases before training hold, by name; a way's precision is all that moves it."""
        precision = way.mixed_precision
        if precision not in self._phases:
            self._phases[precision] = self._without_data(
                lambda: rehearse_phases(self._trainer, self._run(way), kind="cuda")
            )
        return self._phases[precision]

    def is_known(self, way: Candidate) -> bool:
        """Whether its prediction needs no estimate."""
        return way in self._known

    def with_residual(self, way: Candidate) -> Prediction:
        """The prediction of a way, its depth checked against one block."""
        prediction = self.predict(way)
        if prediction.residual is None and prediction.extrapolated:
            self._known[way] = with_residual(prediction, self._trainer, self._run(way))
        return self._known[way]

    def _composed(self, way: Candidate) -> Prediction | None:
        """The same way with the other bits of state, and what the bits changed in a pair of known ways."""
        other = way.with_other_state()
        if other not in self._known:
            return None
        for same in self._known:
            pair = same.with_other_state()
            if same.optim_8bit != way.optim_8bit or same.mixed_precision != way.mixed_precision:
                continue
            if pair in self._known:
                return combined([(1, self._known[other]), (1, self._known[same]), (-1, self._known[pair])])
        return None

    def _rehearsed(self, way: Candidate) -> Prediction:
        return self._without_data(lambda: predict(self._trainer, self._run(way), kind="cuda", size=self._size))

    def _without_data(self, rehearse: Callable[[], T]) -> T:
        try:
            return rehearse()
        except TrainerError:
            raise
        except Exception as error:
            raise InternalError(
                f"{self._trainer.name} cannot be rehearsed without data: {type(error).__name__}: {error}",
                expected="build_model(weights=False), largest_batch, loss, phase_shapes to need shapes alone",
            ) from error
        finally:
            gc.collect(1)  # a rehearsal leaves cycles behind, all of them young: none was looked for meanwhile


def _rows(way: Candidate) -> int:
    return way.microbatch
