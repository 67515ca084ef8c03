"""Owns the conformance kit: the promises in order, what each needs, and judging them one by one.

A promise is one short function in ``promises.py``, ``supervised_promises.py`` or ``lives.py``; its docstring
is what it promises. What a trainer may draw from: items from ``random`` alone (or from the global generators,
when the dataset says ``uses_global_random``); a loss from ``random`` and from torch's own generator, which the
SDK seeds for each microbatch. This file must not know how a promise is judged, and importing it does not
import torch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app_trainer_sdk.errors import BadJob, did_you_mean
from app_trainer_sdk.testing import lives, promises, supervised_promises
from app_trainer_sdk.testing.subject import Asked, Subject
from app_trainer_sdk.testing.verdict import NotApplicable, Result, reason_of


@dataclass(frozen=True)
class Promise:
    """One promise.

    Attributes:
        name: how ``check`` and pytest call it.
        judge: finds out; returns what it measured or nothing.
        needs: promises without which this one cannot be judged.
    """

    name: str
    judge: Callable[[Subject], str | None]
    needs: Sequence[str] = ()

    @property
    def meaning(self) -> str:
        """What is promised, in words."""
        return (self.judge.__doc__ or "").strip()


#: Every promise, in the order in which breaking one explains breaking the next.
PROMISES = (
    Promise("contract", promises.contract),
    Promise("describe without torch", promises.describe, ("contract",)),
    Promise("plan from defaults", promises.plan, ("contract",)),
    Promise("examine is deterministic", promises.examine, ("plan from defaults",)),
    Promise("items are pure", supervised_promises.items, ("plan from defaults",)),
    Promise("collate counts units", supervised_promises.collate, ("plan from defaults",)),
    Promise("loss is one pure sum", supervised_promises.loss, ("items are pure", "collate counts units")),
    Promise("loss can be split", supervised_promises.splits, ("loss is one pure sum",)),
    Promise("largest batch", supervised_promises.largest_batch, ("collate counts units",)),
    Promise("two updates", promises.two_updates, ("plan from defaults",)),
    Promise("evaluation leaves no trace", promises.evaluation, ("two updates", "loss is one pure sum")),
    Promise("checkpoint holds everything", promises.saves, ("two updates",)),
    Promise("export from a checkpoint", promises.export, ("two updates",)),
    Promise("job runs to its end", lives.whole_run, ("two updates", "checkpoint holds everything")),
    Promise("replay in a new process", lives.replayed, ("job runs to its end", "export from a checkpoint")),
    Promise(
        "killed and resumed bit-identical",
        lives.killed_and_resumed,
        ("replay in a new process", "evaluation leaves no trace"),
    ),
    Promise("stopped with a checkpoint", lives.stopped, ("job runs to its end",)),
)


class Conformance:
    """Judges promises about one trainer; each once, and what it needs before it.

    Args:
        asked: the trainer, and the job to check it with.
        folder: where jobs may be written.
    """

    def __init__(self, asked: Asked, folder: Path) -> None:
        self._subject = Subject(asked, folder)
        self._results: dict[str, Result] = {}

    def result(self, promise: Promise) -> Result:
        """What becomes of one promise; those it needs are judged first."""
        if promise.name not in self._results:
            failed = [each for each in map(promise_named, promise.needs) if not self._is_kept(each)]
            self._results[promise.name] = (
                Result(promise.name, "skip", f"not judged, since {failed[0].name!r} does not hold")
                if failed
                else self._judge(promise)
            )
        return self._results[promise.name]

    def close(self) -> None:
        """End what still runs."""
        self._subject.close()

    def _is_kept(self, promise: Promise) -> bool:
        """Whether a promise holds as far as others build on it: one that does not apply is no obstacle."""
        result = self.result(promise)
        return result.passed and not result.reason.startswith("not judged")

    def _judge(self, promise: Promise) -> Result:
        started = time.perf_counter()
        try:
            measured = promise.judge(self._subject)
        except NotApplicable as reason:
            return Result(promise.name, "skip", str(reason), time.perf_counter() - started)
        except Exception as error:  # noqa: BLE001 - whatever an author's code raises breaks the promise
            return Result(promise.name, "fail", reason_of(error), time.perf_counter() - started)
        return Result(promise.name, "pass", measured or "", time.perf_counter() - started)


def check_trainer(asked: Asked, *, only: Sequence[str] = (), folder: Path | None = None) -> Iterator[Result]:
    """Judge every promise, or ``only`` some, in order; results come as they are known.

    Args:
        asked: the trainer, and the job to check it with.
        only: names of promises; what they need is judged too and not told.
        folder: where jobs are written and kept; a temporary folder when left out.

    Raises:
        BadJob: there is no promise of a name in ``only``.
    """
    chosen = [promise_named(name) for name in only] or list(PROMISES)
    with opened(asked, folder) as conformance:
        for promise in chosen:
            yield conformance.result(promise)


def promise_named(name: str) -> Promise:
    """The promise of that name.

    Raises:
        BadJob: there is none.
    """
    names = {promise.name: promise for promise in PROMISES}
    if name not in names:
        raise BadJob(
            f"no promise {name!r}", expected=f"a word of --list ({did_you_mean(name, names)})", setting="--only"
        )
    return names[name]


@contextmanager
def opened(asked: Asked, folder: Path | None = None) -> Iterator[Conformance]:
    """A kit in ``folder``, or in a temporary one that is removed afterwards; processes end with it."""
    with tempfile.TemporaryDirectory(prefix="app-trainer-check-") as temporary:
        conformance = Conformance(asked, (folder or Path(temporary)).resolve())
        try:
            yield conformance
        finally:
            conformance.close()
