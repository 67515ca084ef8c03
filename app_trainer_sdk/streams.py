"""Owns two ready streams: over any iterable, and over one that can say where it is.

Torch-free, and it imports no library of datasets: both take a function that opens the source. It must not know
what a record is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, final

from app_trainer_sdk.values import JSON, Resuming

if TYPE_CHECKING:
    from app_trainer_sdk.training.randomness import Random

MakeItem = Callable[[Any, "Random"], Any]


def _as_it_is(record: Any, random: Random) -> Any:
    return record


@final
class IterableStream:
    """A stream over any iterable.

    Args:
        source: opens one pass, given its number from 0: shuffle by that number, and by no global generator.
        item: makes an item of a record; by default the record is one.
        repeatable: whether a pass opened again has the same records in the same order. Then a resume reads
            those already trained again and passes them over; else it begins a new pass and says so.
    """

    def __init__(
        self, source: Callable[[int], Iterable[Any]], *, item: MakeItem = _as_it_is, repeatable: bool = True
    ) -> None:
        self.resume: Resuming = "by replay" if repeatable else "not exact"
        self._source = source
        self._item = item

    def begin(self, epoch: int, state: JSON) -> Iterator[Any]:
        """One pass from its beginning."""
        return iter(self._source(epoch))

    def state(self) -> JSON:
        """Nothing: the SDK counts the records."""
        return None

    def item(self, record: Any, random: Random) -> Any:
        """What the function given makes of a record."""
        return self._item(record, random)


class Stateful(Protocol):
    """An iterable that can say where it is, as those of Hugging Face datasets and of torchdata can."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Where reading is, as JSON."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Go on from there with the next ``iter``."""
        ...


@final
class StatefulStream:
    """A stream over an iterable that can say where it is. Its state must be all there is, and JSON.

    A buffer that shuffles is often not part of that state: Hugging Face's documentation says so of
    ``IterableDataset.shuffle``. ``app-trainer check`` finds out; such a source belongs into an
    :class:`IterableStream`.

    Args:
        source: opens one pass, given its number from 0.
        item: makes an item of a record; by default the record is one.
    """

    resume: Resuming = "exact"

    def __init__(self, source: Callable[[int], Stateful], *, item: MakeItem = _as_it_is) -> None:
        self._source = source
        self._item = item
        self._open: Stateful | None = None

    def begin(self, epoch: int, state: JSON) -> Iterator[Any]:
        """One pass, from ``state`` on where it is given."""
        self._open = self._source(epoch)
        if isinstance(state, dict):
            self._open.load_state_dict(state)
        return iter(self._open)

    def state(self) -> JSON:
        """The source's own state."""
        return self._open.state_dict() if self._open is not None else None

    def item(self, record: Any, random: Random) -> Any:
        """What the function given makes of a record."""
        return self._item(record, random)
