"""What a computation really allocates at once."""

from __future__ import annotations

import pytest
import torch

from app_trainer_sdk.training.allocated import allocated_peak

MILLION = 1_000_000


def test_the_peak_is_what_lives_at_once():
    """Not the sum of all there was, nor what is left at the end."""

    def work():
        for _ in range(3):
            one = torch.ones(MILLION)
            two = one + 1
            del one, two

    assert allocated_peak([], work) == pytest.approx(2 * 4 * MILLION, abs=64)  # and a number or two


def test_what_lived_before_counts_once():
    """Views share their memory."""
    held = torch.ones(MILLION)

    assert allocated_peak([held, held[:10]], lambda: None) == 4 * MILLION
    assert allocated_peak([held], lambda: torch.ones(MILLION).sum().item()) >= 8 * MILLION
