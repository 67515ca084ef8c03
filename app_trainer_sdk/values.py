"""Owns the plain values that pass between a trainer and the SDK. They hold; they do nothing.

Those with tensors are equal to themselves alone: whether two tensors are equal is not one truth.
This file must not import torch: tensors appear in annotations only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.randomness import Random

#: How a stream goes on after a stop.
Resuming: TypeAlias = Literal["exact", "by replay", "not exact"]
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"


#: Parts of a run that a phase may depend on: base weights, inputs, earlier phases, dtype, the job's seed.
Part = Literal["weights", "inputs", "phases", "precision", "seed"]


@dataclass(frozen=True)
class Input:
    """An input a job gives by name.

    Attributes:
        description: one sentence for people.
        required: whether a job without it is refused.
    """

    description: str
    required: bool = True


@dataclass(frozen=True)
class Phase:
    """A preparation step with its own memory: inputs in, files and JSON facts out.

    Attributes:
        name: how ``run.store`` and ``run.facts`` know it.
        work: called with the run and an empty directory; writes files there and returns facts. Tensors
            leave a phase only as files.
        key: settings and whatever else the result depends on; equal keys share a result. Versions of
            trainer and SDK, and what ``uses`` names, are part of it without being named.
        uses: what of the run the result depends on. All of it is the safe default; a phase that looks at
            less is shared by more jobs.
        own_process: do the work in a process of its own, which takes its memory with it. The trainer must be
            importable by name.
    """

    name: str
    work: Callable[[Run, Path], Mapping[str, JSON]]
    key: Mapping[str, JSON] = field(default_factory=dict)
    uses: Sequence[Part] = ("weights", "inputs", "phases", "precision", "seed")
    own_process: bool = False


@dataclass(frozen=True, eq=False)
class PhaseShapes:
    """What a preparation phase holds on the device at its fullest, told for planning: no weights, no data.

    Attributes:
        build: makes the phase's module in the precision it works in; called on torch's ``meta`` device.
        batch: makes the largest batch the settings admit, tensors by name, as they lie on the device.
        work: called with both; what it allocates is predicted. It should be what the phase itself calls.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], Mapping[str, Tensor]]
    work: Callable[[Any, Mapping[str, Tensor]], object]


@dataclass(frozen=True)
class Examination:
    """What reading the index of the data told.

    Attributes:
        rows: training rows, or None when the trainer's work is not counted in rows.
        fingerprint: digest of the data; a resume with another one is refused.
        facts: JSON for the report: rows of each split, leak check, masked rows.
        group_sizes: training rows of each group in the order of the groups' names; a job with ``batching``
            ``by_group`` needs them, since the number of updates follows from them.
        stream: how the training data resumes when it is a :class:`Stream`, whose ``rows`` are None.
    """

    rows: int | None
    fingerprint: str = ""
    facts: Mapping[str, JSON] = field(default_factory=dict)
    group_sizes: Sequence[int] = ()
    stream: Resuming | Literal[""] = ""


class Dataset(Protocol):
    """A map-style dataset. ``item`` is a pure function of ``index`` and ``random``.

    Where it can, it offers one value for each row as an array: ``weights()`` for ``sampling`` ``weighted``,
    ``lengths()`` for ``batching`` ``by_length``, ``groups()`` (numbers or strings) for ``by_group``. The
    training split is asked once before training; a job whose settings need what it has not is refused.
    """

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def item(self, index: int, random: Random) -> Any:
        """Row ``index``; augmentation draws from ``random`` alone.

        A dataset whose code draws from the global generators of python, numpy or torch says so with a class
        attribute ``uses_global_random = True``; they are then seeded for each item.
        """
        ...


@runtime_checkable
class Stream(Protocol):
    """Training data that can only be read in its own order; ``streams.py`` has two ready ones.

    A pass is one reading from its beginning to its end, if it has one; then the next one begins. Each rank
    reads all records and makes items of its share alone, so every rank must get the same ones.

    Attributes:
        resume: ``exact`` when ``state`` says all that ``begin`` needs to go on; ``by replay`` when a pass has
            the same records each time, so that those already trained can be read again and passed over;
            ``not exact`` when neither holds.
    """

    resume: Resuming

    def begin(self, epoch: int, state: JSON) -> Iterator[Any]:
        """Records of pass ``epoch``, from ``state`` on; from its beginning where that is None."""
        ...

    def state(self) -> JSON:
        """Where reading is, after the last record given. Asked only of an ``exact`` stream."""
        ...

    def item(self, record: Any, random: Random) -> Any:
        """What ``collate`` gets of a record; a pure function, as :meth:`Dataset.item` is."""
        ...


@dataclass(frozen=True, eq=False)
class Batch:
    """One microbatch.

    Attributes:
        tensors: by name; the SDK moves them to the device.
        units: what the loss sum is divided by over the whole update: rows, trained tokens, pixels, or a float
            sum of weights. Counted on the host.
        host: anything the loss needs on the host, such as row lengths as a list.
    """

    tensors: Mapping[str, Tensor]
    units: float
    host: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Modules:
    """What ``build_model`` returns.

    Attributes:
        root: one module that holds everything trainable.
        frozen: helpers that never train (a teacher, a reference model): moved to the device, in evaluation
            mode, never saved and never wrapped.
        blocks: the repeated blocks inside ``root``, the units of recomputation and compilation.
    """

    root: nn.Module
    frozen: Mapping[str, nn.Module] = field(default_factory=dict)
    blocks: Sequence[nn.Module] = ()


@dataclass(frozen=True, eq=False)
class LossTerms:
    """The result of a loss.

    Attributes:
        sum: scalar tensor, summed over the batch's units.
        means: further scalar terms that are means already; averaged over microbatches and ranks and added.
        metrics: by name a pair (sum, count) of scalar tensors or numbers, reported as sum / count.
        recovered: the SDK's: what of an evaluation was tried and did not fit into memory, as JSON.
    """

    sum: Tensor
    means: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    recovered: Sequence[Mapping[str, JSON]] = ()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """State as tensors and JSON.

    Attributes:
        tensors: by canonical name, ``section/name``; the part before the first ``/`` (``model``,
            ``optimizer`` ...) names the file. Names carry no wrapper's prefix.
        values: JSON: counters, positions, the trainer's own numbers.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, JSON] = field(default_factory=dict)

    def section(self, name: str) -> dict[str, Tensor]:
        """The tensors of one section, without its prefix."""
        prefix = name + "/"
        return {key[len(prefix) :]: tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}


@dataclass(frozen=True, eq=False)
class StepInfo:
    """One update, as facts. Tensors stay on the device: nobody reads them step by step.

    Attributes:
        step: updates made so far, this one included when ``applied``.
        loss: mean loss of the update.
        learning_rate: the rate this update used.
        gradient_norm: the norm before clipping, or None.
        units: units of the whole global batch.
        examples: examples of the whole global batch.
        data_seconds: seconds the update waited for data.
        data_parts: those by what was waited for, and ``transfer``, the seconds of handing tensors to the
            device; empty where nobody tells them apart.
        ids_digest: digest of the item ids, in order.
        applied: False when the update was skipped (non-finite, or no unit).
        why: why it was skipped.
        metrics: further pairs (sum, count).
        recovered: what was tried and did not fit into memory before this update was made, as JSON.
    """

    step: int
    loss: Tensor | float
    learning_rate: float = 0.0
    gradient_norm: Tensor | float | None = None
    units: float = 0.0
    examples: int = 0
    data_seconds: float = 0.0
    data_parts: Mapping[str, float] = field(default_factory=dict)
    ids_digest: str = ""
    applied: bool = True
    why: str = ""
    metrics: Mapping[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    recovered: Sequence[Mapping[str, JSON]] = ()


@dataclass(frozen=True)
class Artifact:
    """What ``export`` hands over.

    Attributes:
        name: the folder that ``replay`` loads, one of the trainer's declared artifacts.
        controls: inputs to ask the artifact again in a new process.
        expected: the answers before export, in the recorded precision.
        facts: JSON for the report: precision, before and after, licences.
        reload: lines of Python with which its user loads it; ``folder`` is where it lies.
    """

    name: str
    controls: Sequence[JSON] = ()
    expected: Sequence[JSON] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)
    reload: str = ""
