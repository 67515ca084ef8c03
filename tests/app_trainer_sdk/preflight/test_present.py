"""The cards a process would see."""

from __future__ import annotations

from fake_drivers import machine

from app_trainer_sdk.preflight.devices import FixedProbe
from app_trainer_sdk.preflight.image import TorchBuild
from app_trainer_sdk.preflight.present import present_cards


def test_present_cards_are_the_visible_ones():
    """As far as the installed torch was built for them."""
    given = {"CUDA_VISIBLE_DEVICES": "3,1"}, [FixedProbe(machine(names=("A", "B", "C", "D")))]

    assert [card.name for card in present_cards(*given, TorchBuild(cuda="13.0"))] == ["D", "B"]
    assert present_cards(*given, TorchBuild(hip="7.0")) == []
