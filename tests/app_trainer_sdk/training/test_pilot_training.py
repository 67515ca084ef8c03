"""What training takes in a pilot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_helpers import StillProbe, make_trainer, run_of, squares

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.pilot_training import (
    EVALUATED_BATCHES,
    MOST_UPDATES,
    Places,
    compare_prediction,
    measure_evaluation,
    measure_longest,
    measure_updates,
)
from app_trainer_sdk.training.team import Team

ROWS = [[float(number)] for number in range(8)]


class Rank:
    """As a pilot's rank looks from here."""

    team = Team()

    def __init__(self):
        self.places = []

    def enter(self, place):
        self.places.append(place)


def made(tmp_path, *, loss=squares, validation=(), **settings):
    trainer = make_trainer(lambda run: nn.Linear(1, 1), loss, ROWS, validation=validation)()
    run, rows = run_of(trainer, tmp_path, dataloader_workers=0, **settings), []
    opened = SimpleNamespace(trainer=trainer, run=run)
    ready = SimpleNamespace(opened=opened, ledger=Ledger(StillProbe(), rows.append, policy="report"))
    return trainer, run, Rank(), ready, rows


def test_the_longest_rows_leave_a_row_for_each_place_and_no_count(tmp_path):
    """Two updates and an evaluation; what follows begins where a run begins."""
    trainer, run, rank, ready, rows = made(tmp_path)
    state, measured = trainer.begin(run, None), {}
    seconds = measure_longest(rank, ready, trainer, run, state, measured)
    names = [row.phase for row in rows]

    assert seconds > 0
    assert measured["longest_peak_bytes"] > 0
    assert names[0] == "longest update 1"
    assert {"longest update 2", "longest evaluate"} <= set(names)
    assert set(names) == set(rank.places)
    assert (state.counters.updates, state.counters.position) == (0, 0)


def test_updates_are_those_of_a_run_and_have_an_end(tmp_path):
    """Their rows are the order's; a run that ends before is measured as far as it came."""
    for updates, made_updates in ((3, 3), (1000, MOST_UPDATES)):
        trainer, run, rank, ready, _ = made(tmp_path, updates=updates)
        told = measure_updates(rank, ready, run, trainer.begin(run, None), None)

        assert told["measured"] == made_updates
        assert told["ids_right"]
        assert told["longest_seconds"] >= told["seconds"] > 0
        assert told["communication_seconds"] is None


def test_not_one_update_is_a_failure(tmp_path):
    """Whatever else was fine."""
    trainer, run, rank, ready, _ = made(tmp_path)
    trainer.training_steps = lambda run, state: iter(())
    with pytest.raises(InternalError, match="not one update was made"):
        measure_updates(rank, ready, run, None, None)


def test_an_evaluation_is_measured_at_its_beginning(tmp_path):
    """And told for the whole split; without one there is nothing to tell."""
    trainer, run, rank, ready, _ = made(tmp_path, validation=ROWS * 10)
    told = measure_evaluation(rank, ready, run, trainer.begin(run, None))
    nothing = made(tmp_path)

    assert (told["measured"], told["batches"]) == (EVALUATED_BATCHES, 40)
    assert told["seconds"] > 0
    assert measure_evaluation(nothing[2], nothing[3], nothing[1], nothing[0].begin(nothing[1], None)) is None


def test_a_loss_that_needs_data_is_no_failed_pilot(tmp_path):
    """The prediction stands beside the measurement, or why there is none."""
    good = made(tmp_path)[3]
    measured = {"longest_peak_bytes": 1000}
    compare_prediction(good, measured)

    def asks(modules, values, random):
        if torch.is_grad_enabled():
            raise ValueError("no data")
        return squares(modules, values, random)

    failed = {"longest_peak_bytes": 1000}
    compare_prediction(made(tmp_path, loss=asks)[3], failed)

    assert measured["predicted"]["measured_bytes"] == 1000
    assert measured["predicted"]["ratio"] == round(1000 / measured["predicted"]["rehearsed_bytes"], 4)
    assert failed["predicted"] == {"failed": "ValueError: no data"}
    assert "longest_peak_bytes" not in measured


class CardLike(StillProbe):
    """One counter of the peak, which every reset begins anew; work may go on after it was asked for."""

    device = "cuda"

    def __init__(self):
        super().__init__()
        self.highest = self.now = self.late = 0

    def hold(self, count):
        self.highest = max(self.highest, count)

    def peak(self):
        self.now += self.late  # waits for the device
        self.late = 0
        return self.highest

    def reset(self):
        self.highest = 0


def test_the_peak_of_the_longest_rows_is_that_of_their_fullest_part():
    """The ledger resets the card's only counter with each part: it tells nothing of those before the last."""
    probe, entered = CardLike(), []
    ledger = Ledger(probe, lambda row: None, policy="report")
    places = Places(lambda place: ledger.phase(place, releases=False), entered.append)
    with places:
        for place, count in (("update 1", 100), ("update 2", 900), ("evaluate", 300)):
            places.mark(place)
            probe.hold(count)

    assert places.peak == 900
    assert entered == ["longest update 1", "longest update 2", "longest evaluate"]


def test_a_part_lasts_until_the_device_is_done():
    """What was launched and has not run yet belongs to the part that launched it."""
    probe = CardLike()
    ledger = Ledger(probe, lambda row: None, policy="report", clock=lambda: probe.now)
    places = Places(lambda place: ledger.phase(place, releases=False), lambda place: None)
    with places:
        places.mark("update 1")
        probe.late = 5
        places.mark("update 2")

    assert places.rows["update 1"].seconds == 5
    assert places.rows["update 2"].seconds == 0
