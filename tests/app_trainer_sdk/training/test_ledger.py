"""The ledger: what a phase held, what it gave back, who holds what it did not, and what happens then."""

from __future__ import annotations

import functools
import gc
import json
import weakref

import pytest
import torch
from torch import nn
from torch_helpers import StillProbe

from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.training.ledger import COLD_TOLERANCE_BYTES, WARM_TOLERANCE_BYTES, Ledger
from app_trainer_sdk.training.memory import CpuProbe

MORE = COLD_TOLERANCE_BYTES + MIB
CACHE = {}


def ledger(*allocated, policy="report"):
    rows, probe = [], StillProbe(*allocated)
    ticks = iter(range(100))
    book = Ledger(probe, rows.append, policy=policy, clock=lambda: float(next(ticks)), warm=set())
    return book, rows, probe


def measured(work, *, policy="report", passes=1):
    """The row of the last of several passes over ``work`` in this process."""
    rows = []
    book = Ledger(CpuProbe(), rows.append, policy=policy, warm=set())
    for _ in range(passes):
        with book.phase("encode"):
            work()
    return rows[-1]


class Encoder(nn.Module):
    """Three layers of 1 MB."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(500, 500) for _ in range(3)])


class Holder:
    """Something with attributes."""


@pytest.fixture(autouse=True)
def empty_cache():
    yield
    CACHE.clear()


def test_a_phase_that_gives_back():
    """D1: growth within the tolerance counts as released; the row tells time, peak and both readings."""
    book, rows, probe = ledger(100, 100 + COLD_TOLERANCE_BYTES)
    with book.phase("encode", inputs={"rows": 3}):
        pass
    document = rows[0].document()

    assert document["verdict"] == "released"
    assert (document["phase"], document["inputs"], document["seconds"], document["peak"]) == (
        "encode", {"rows": 3}, 1.0, 7,
    )  # fmt: skip
    assert (document["before"]["allocated"], document["reused"], document["rank"]) == (100, False, 0)
    assert probe.calls == ["release", "read", "reset", "peak", "release", "read", "reset"]
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("policy", ["report", "warn", "raise"])
def test_a_phase_that_keeps(policy):
    """D1: what no Python object owns is told in bytes, warned of, or refused, as the job asks."""
    book, rows, _ = ledger(100, 100 + MORE, 100 + MORE, policy=policy)
    told = "kept 129.0 MiB that no Python object owns"

    def work():
        with book.phase("encode"):
            pass

    if policy == "report":
        work()
    elif policy == "warn":
        with pytest.warns(UserWarning, match=f"phase encode {told}") as caught:
            work()
        assert caught[0].filename == __file__
    else:
        with pytest.raises(InternalError, match=f"phase encode {told}.*change /hyperparameters/memory_release"):
            work()

    assert rows[0].verdict.startswith(told)
    assert rows[0].unnamed == MORE


def test_the_second_pass_is_judged_closely():
    """The first pass of a phase leaves library state; the next may leave less, and the row says which rule."""
    more = WARM_TOLERANCE_BYTES + 1
    book, rows, _ = ledger(100, 100 + more, 100, 100 + more, 100 + more)
    for _ in range(2):
        with book.phase("encode"):
            pass

    assert [(row.warm, row.tolerance, row.verdict[:4]) for row in rows] == [
        (False, COLD_TOLERANCE_BYTES, "rele"), (True, WARM_TOLERANCE_BYTES, "kept"),
    ]  # fmt: skip


def test_a_result_that_was_found_warms_nothing():
    """A phase that was skipped has not shown what its libraries leave."""
    book, rows, _ = ledger()
    for _ in range(2):
        with book.phase("encode") as row:
            row.reused = True

    assert not rows[1].warm


def test_a_phase_that_holds_on_purpose():
    """A phase that made no promise to release is not blamed."""
    book, rows, _ = ledger(100, 100 + MORE, policy="raise")
    with book.phase("examine", releases=False):
        CACHE["kept"] = torch.ones(3)

    assert rows[0].verdict == "held on purpose"


def test_a_system_that_does_not_count():
    """Where allocated bytes are not counted nothing is proven, and what Python knows is told all the same."""
    book, rows, _ = ledger(0, 0, 0, 0)
    with book.phase("encode"):
        pass
    with book.phase("encode"):
        CACHE["kept"] = torch.ones(3)

    assert rows[0].verdict.startswith("unproven")
    assert "CACHE['kept']" in rows[1].verdict


def test_a_card_on_which_nothing_is_left():
    """Its allocator counts, and says nothing: that is all that can be given back."""
    book, rows, probe = ledger(0, 0)
    probe.device = "cuda"
    with book.phase("encode"):
        pass

    assert rows[0].verdict == "released"


def test_a_phase_that_fails():
    """A phase that raises leaves its row, and its own error instead of a complaint about memory."""
    book, rows, _ = ledger(100, 100 + MORE, policy="raise")
    with pytest.raises(ZeroDivisionError), book.phase("encode"):
        _ = 1 / 0

    assert rows[0].verdict == "failed: ZeroDivisionError"


def test_a_phase_that_is_stopped():
    """Somebody's wish is no failure."""
    book, rows, _ = ledger(100, 100)
    with pytest.raises(StopRequested), book.phase("train"):
        raise StopRequested("deadline")

    assert rows[0].verdict == "stopped: deadline"


def test_three_modules_are_gone():
    """D1: three modules of 20 MB in a list and under three names die with the phase; 60 MB are given back."""

    def work():
        holder = Holder()
        holder.modules = [nn.Linear(2000, 2500) for _ in range(3)]
        holder.a, holder.b, holder.c = holder.modules
        references[:] = [weakref.ref(each.weight) for each in holder.modules]

    references = []
    row = measured(work, policy="raise", passes=2)

    assert [reference() for reference in references] == [None] * 3
    assert row.verdict == "released"
    assert row.warm
    assert row.after.allocated - row.before.allocated <= MIB
    # The kernel counts resident pages to some hundred KiB.
    assert row.released is None or row.released >= 59_000_000


def test_one_module_in_a_global():
    """D1: one module kept in a module's global is told by name, with its largest tensors, and refused."""

    def work():
        CACHE["encoder"] = Encoder()

    with pytest.raises(
        InternalError, match=r"test_ledger\.CACHE\['encoder'\] \(Encoder of 6 tensors, 2.9 MiB\)"
    ):
        measured(work, policy="raise")
    row = measured(work)
    (held,) = row.survivors

    assert held.examples[0] == {
        "path": f"{__name__}.CACHE['encoder'].layers[0].weight", "shape": [500, 500], "dtype": "float32",
        "device": "cpu", "bytes": 1_000_000,
    }  # fmt: skip
    assert (held.tensors, held.bytes) == (6, 3_006_000)
    assert row.unnamed < MIB


class Cache:
    """What a phase returns: a result, and whatever keeps the encoder alive."""


def returned_cache(kind):
    encoder, cache = Encoder(), Cache()
    cache.result = [0.5, 0.25]
    if kind == "encoder":
        cache.encoder = encoder
    elif kind == "partial":
        cache.encode = functools.partial(lambda module, value: module(value), encoder)
    elif kind == "hook":
        cache.probe = nn.Identity()
        cache.probe.register_forward_hook(lambda *_: encoder)
    elif kind == "list":
        cache.seen = [0.5, encoder]
    elif kind == "exception":
        try:
            encode_nothing(encoder)
        except ValueError as error:
            cache.error = error
    return cache


def encode_nothing(module):
    raise ValueError("no rows")


@pytest.mark.parametrize(
    ("kind", "path"),
    [("encoder", r"\.encoder \("), ("partial", r"\.encode\.args\[0\] \("), ("list", r"\.seen\[1\] \("),
     ("exception", r"\.error → traceback"),
     ("hook", r"\.probe\._forward_hooks\[\d+\] → closure variable `encoder` of returned_cache\.")],
)  # fmt: skip
def test_a_cache_object_keeps_the_encoder(kind, path):
    """D2: a returned object that still leads to the encoder is no success: the path to it is told."""

    def phase():
        CACHE["first"] = returned_cache(kind)

    with pytest.raises(InternalError, match=rf"CACHE\['first'\]{path}.*Encoder of 6 tensors"):
        measured(phase, policy="raise")


def test_plain_data_crosses_a_border():
    """D2: values, and tensors that were handed over, pass; they own just their bytes and carry no graph."""
    rows = []
    book = Ledger(CpuProbe(), rows.append, policy="raise", warm={"encode"})
    with book.phase("encode") as row:
        encoder = Encoder()
        encoded = encoder.layers[0](torch.ones(100, 500))
        features = row.hand_over({"rows": [encoded[:10], 3], "pair": (encoded.sum(), None)})
        del encoder, encoded

    assert rows[0].verdict == "released"
    assert rows[0].handed == 10 * 500 * 4 + 4
    assert features["rows"][0].untyped_storage().nbytes() == 10 * 500 * 4
    assert not features["rows"][0].requires_grad
    with pytest.raises(InternalError, match="a Encoder was handed over"):
        row.hand_over([Encoder()])


def test_losses_that_hold_their_graphs():
    """A list of losses is told with the memory that their graphs hold, which no Python object refers to."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    losses = []

    def work():
        for _ in range(5):
            losses.append(model(torch.randn(512, 256)).pow(2).sum())

    row = measured(work)
    by_graphs = sum(held.bytes for held in row.survivors if held.owner.startswith("autograd")) + row.unnamed

    assert "losses" in row.survivors[0].owner
    assert (row.survivors[0].kind, row.survivors[0].tensors, row.survivors[0].graphs) == ("list", 5, 5)
    assert by_graphs >= 5 * 4 * 512 * 256 * 4


def test_scopes_inside_scopes():
    """Each scope has a row that names what it is in; what leaves an inner one belongs to the outer one."""
    rows = []
    book = Ledger(CpuProbe(), rows.append, policy="report", warm=set())
    with book.phase("outer"):
        with book.phase("inner"):
            block = torch.ones(1 << 20)
        with book.phase("last"):
            del block
        CACHE["late"] = torch.ones(2)
    told = {row.phase: (row.within, row.verdict) for row in rows}

    assert [row.phase for row in rows] == ["inner", "last", "outer"]
    assert told["inner"][0] == told["last"][0] == "outer"
    assert told["inner"][1].startswith("kept 4.0 MiB: local `block` in test_scopes_inside_scopes() at")
    assert told["last"][1] == "released"
    assert told["outer"][0] == ""
    assert told["outer"][1].startswith("kept 8 bytes: ")
    assert "CACHE['late']" in told["outer"][1]
    assert rows[-1].peak >= rows[0].peak


def test_the_collector_is_left_as_it_was():
    """Nothing stays set aside after a scope: what was there before can be collected again."""

    def make_garbage():
        one, other = Holder(), Holder()
        one.other, other.one = other, one
        return weakref.ref(one)

    book, _, _ = ledger()
    with book.phase("encode"), book.phase("inside"):
        reference = make_garbage()
    gc.collect()

    assert reference() is None
    assert gc.get_freeze_count() == 0


def test_garbage_from_before_is_no_leak():
    """A cycle that lived before the scope and was dropped inside is collected before anybody is blamed."""
    first, second = Encoder(), Encoder()
    first.partner, second.partner = [second], [first]
    rows = []
    book = Ledger(CpuProbe(), rows.append, policy="raise", warm={"drop"})
    with book.phase("drop"):
        first.late = nn.Parameter(torch.ones(1 << 20))
        del first, second

    assert rows[0].verdict == "released"


def test_everything_is_collected_only_where_no_name_says_who_holds():
    """Looking through a million old objects takes longer than finding the name."""
    collected = []

    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            collected.append(info)

    def keep_nothing(old):
        pass

    def keep_by_name(old):
        CACHE["encoder"] = Encoder()

    def keep_by_garbage(old):
        old.value = Encoder()
        old.itself = old

    counts = []
    gc.callbacks.append(note)
    gc.disable()  # it would collect by itself, too, whenever its counters say so
    try:
        for work in (keep_nothing, keep_by_name, keep_by_garbage):
            old = Holder()
            book, rows, _ = ledger(100, 100)
            with book.phase("work"):
                work(old)
                del old
                collected.clear()
            counts.append((len(collected), rows[0].verdict.split()[0]))
    finally:
        gc.enable()
        gc.callbacks.remove(note)

    assert counts == [(1, "released"), (1, "kept"), (2, "released")]


@pytest.mark.parametrize(("numbers", "kept"), [(100, False), (1_000_000, True)])
def test_constants_of_a_module_imported_inside(tmp_path, monkeypatch, numbers, kept):
    """Small constants of a library that the phase imported are its own; they stand in the row."""
    (tmp_path / f"tables_{numbers}.py").write_text(
        f"import torch\nTABLE = torch.ones({numbers})\ndef work(value=torch.ones(2)): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    row = measured(lambda: __import__(f"tables_{numbers}"))

    assert row.verdict.startswith("kept 3.8 MiB: tables_1000000.TABLE") == kept
    assert (row.verdict == "released") != kept
    assert {held.owner for held in row.survivors} == {
        f"tables_{numbers}.TABLE", f"tables_{numbers}.work → default of work()[0]",
    }  # fmt: skip
