"""The two ready streams, over sources that know nothing of the SDK."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from app_trainer_sdk import IterableStream, StatefulStream, Stream
from app_trainer_sdk.testing.toys import ToyReader


def count_by_tens(epoch):
    yield from range(10 * epoch, 10 * epoch + 5)


def test_an_iterable_is_read_again_for_each_pass():
    """Each pass opens the source anew with its number; there is no state to keep."""
    stream = IterableStream(count_by_tens, item=lambda record, random: -record)

    assert isinstance(stream, Stream)
    assert [*stream.begin(0, None)] == [0, 1, 2, 3, 4]
    assert [*stream.begin(2, None)] == [20, 21, 22, 23, 24]
    assert (stream.resume, stream.state(), stream.item(7, None)) == ("by replay", None, -7)


def test_a_source_that_is_never_the_same_says_so():
    """What is not repeatable cannot be replayed."""
    assert IterableStream(count_by_tens, repeatable=False).resume == "not exact"


@pytest.mark.parametrize("read", range(6))
def test_a_stateful_source_goes_on_from_its_state(read):
    """The rest of a pass follows from the state alone, which passes through JSON."""
    stream, other = (StatefulStream(lambda epoch: ToyReader(5, epoch)) for _ in range(2))
    records = stream.begin(3, None)
    before = [*itertools.islice(records, read)]
    state = json.loads(json.dumps(stream.state()))

    assert isinstance(stream, Stream)
    assert (stream.resume, stream.item("as it is", None)) == ("exact", "as it is")
    assert [*before, *other.begin(3, state)] == [*stream.begin(3, None)]


def test_a_stream_that_was_not_begun_has_no_state():
    """Asking early is no error."""
    assert StatefulStream(lambda epoch: ToyReader(5, epoch)).state() is None


def test_streams_import_no_torch():
    """A trainer's own file may name them at its top."""
    code = "import sys; from app_trainer_sdk import IterableStream; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
