"""What holds for any cut, any split and any history of saves: properties, with inputs that hypothesis finds."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import PLAIN, Scalars
from torch_helpers import ListRows, make_trainer, train

from app_trainer_sdk.training.checkpoint import CheckpointStore
from app_trainer_sdk.training.feed import Feed, Rows
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.values import Snapshot

COUNT = st.integers(1, 4)


@st.composite
def splits(draw):
    """Rows, and a way to cut them: (x, units) of each row, microbatch, accumulation."""
    microbatch, accumulation = draw(COUNT), draw(COUNT)
    least = microbatch * accumulation
    rows = draw(
        st.lists(
            st.tuples(st.floats(-3, 3), st.sampled_from([0.0, 0.25, 1.0, 3.0])), min_size=least,
            max_size=least + 5,
        )
    )  # fmt: skip
    return rows, microbatch, accumulation


@settings(max_examples=40)
@given(asked=splits())
def test_gradients_do_not_depend_on_the_split(tmp_path_factory, asked):
    """A1, A3: two updates over rows of unequal units, tails included, end at one weight in float64 however
    an update is split into microbatches.
    """  # fmt: skip
    rows, microbatch, accumulation = asked

    def loss(modules, values, random):
        x, units = torch.tensor(values, dtype=torch.float64).T
        return ((modules.root.w.double() - x) ** 2 * units).sum()

    def build(run):
        return Scalars(0.0).double()

    trainer = make_trainer(build, loss, rows, units=lambda row: row[1])
    if not any(units for _, units in rows):
        return  # nothing trains, which is an error of its own
    ends = []
    for pieces in ((microbatch, accumulation), (microbatch * accumulation, 1)):
        updates = {"microbatch": pieces[0], "gradient_accumulation_steps": pieces[1]}
        training = train(
            trainer, tmp_path_factory.mktemp("split"), updates=2, **updates, **{**PLAIN, "learning_rate": 0.1}
        )
        ends.append(training.snapshot().tensors["model/w"].item())

    assert ends[0] == pytest.approx(ends[1], rel=1e-12, abs=1e-12)


@given(
    rows=st.integers(1, 40), batch=st.integers(1, 12), microbatch=st.integers(1, 12),
    minimum=st.integers(1, 3), seed=st.integers(0, 2**63 - 1),
    shares=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
)  # fmt: skip
def test_ids_do_not_depend_on_ranks_or_resumes(rows, batch, microbatch, minimum, seed, shares):
    """B1: a job resumed from its position with any number of ranks each time trains the ids of one that ran
    in one go on one rank, each pass every row once.
    """  # fmt: skip
    batch = min(batch, rows)
    if rows < minimum or batch < minimum:
        return
    whole = read(rows, batch, microbatch, minimum, seed, ranks=1, position=0, windows=12)[0]
    joined, position = [], 0
    for ranks, windows in shares:
        ids, position = read(rows, batch, microbatch, minimum, seed, ranks, position, windows)
        joined += ids

    assert joined == whole[: len(joined)]
    assert all(sorted(joined[at : at + rows]) == [*range(rows)] for at in range(0, len(joined) - rows, rows))


def read(rows, batch, microbatch, minimum, seed, ranks, position, windows):
    """Row numbers that all ranks together read in some windows, in order; where they end."""
    trainer = make_trainer(lambda run: None, None, [*range(rows)])
    source = Rows(trainer(), None, ListRows([*range(rows)]), seed)
    order = Order(rows, batch, seed=seed, minimum_rows=minimum)
    feeds = [
        Feed(source, order, position=position, microbatch=microbatch, rank=rank, ranks=ranks).windows()
        for rank in range(ranks)
    ]
    ids = []
    for _ in range(windows):
        loaded = [next(feed) for feed in feeds]
        pieces = sorted((each.number, each.batch.host["ids"]) for one in loaded for each in one.microbatches)
        ids += [row for _, piece in pieces for row in piece]
        position = loaded[0].window.after
    return ids, position


ACTS = st.one_of(
    st.tuples(st.just("save"), st.integers(0, 12)),
    st.tuples(st.just("foreign"), st.integers(0, 12)),
    st.tuples(st.just("damage"), st.integers(0, 12)),
    st.tuples(st.just("retain"), st.integers(1, 3)),
)


@settings(max_examples=40)
@given(acts=st.lists(ACTS, min_size=2, max_size=10), best=st.integers(0, 12))
def test_retention_in_any_history(tmp_path_factory, acts, best):
    """C2: after any saves (of one step again, in any order), damages and another run's saves, retention leaves
    the newest whole checkpoint, the best, the number asked for, and all of the other run's.
    """  # fmt: skip
    directory = tmp_path_factory.mktemp("history")
    store, other = CheckpointStore(directory, "mine"), CheckpointStore(directory, "other")
    for act, number in acts:
        if act in ("save", "foreign"):
            (store if act == "save" else other).save(number, snapshot(number), {})
        elif act == "damage":
            for folder in directory.glob(f"step-{number:08d}*"):
                (folder / "state.json").unlink(missing_ok=True)
            store, other = CheckpointStore(directory, "mine"), CheckpointStore(directory, "other")
        else:
            before, theirs = whole(directory, "mine"), whole(directory, "other")
            store.retain(number, best=best)
            expected = before[:number] + [each for each in before[number:] if each[0] == best]

            assert whole(directory, "mine") == expected
            assert whole(directory, "other") == theirs
    shutil.rmtree(directory)


def whole(directory, run):
    """(step, folder) of a run's valid checkpoints, newest first, read anew."""
    found = CheckpointStore(directory, run).find()
    return [(each.step, each.path.name) for each in found if each.run == run and not each.problem]


def snapshot(value):
    return Snapshot({"model/w": torch.full((4,), float(value))}, {})
