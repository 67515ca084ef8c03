"""What training takes in a pilot, as a card's counters tell it."""

from __future__ import annotations

from torch_helpers import StillProbe

from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.pilot_training import Places


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
