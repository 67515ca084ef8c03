"""Positional randomness: a draw depends on where it stands and on nothing that ran before."""

from __future__ import annotations

import random

import numpy
import torch
from torch_helpers import CPU, in_new_process

from app_trainer_sdk.training.randomness import Random, derive_seed, global_seeds, seed_globals, seed_torch


def draws(source):
    return (
        source.python.random(),
        float(source.numpy.random()),
        float(torch.rand((), generator=source.torch())),
    )


def global_draws():
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_equal_keys_draw_equally():
    """Two objects for one position draw the same from every generator; another position draws otherwise."""
    one, other, elsewhere = Random(7, "item", 0, 3), Random(7, "item", 0, 3), Random(7, "item", 1, 3)

    assert draws(one) == draws(other) != draws(elsewhere)


def test_generators_go_on():
    """Asked twice, a position's generator is the same one and goes on."""
    source = Random(7, "a")

    assert source.python is source.python
    assert source.torch() is source.torch()
    assert draws(source) != draws(source)


def test_children_are_positions():
    """A child depends on its key alone and not on what its parent drew."""
    drawn = Random(7, "loss", 1)
    draws(drawn)

    assert draws(drawn.child(4)) == draws(Random(7, "loss", 1).child(4)) != draws(Random(7, "loss", 1).child(5))


def test_keys_do_not_run_together():
    """A seed and a key are told apart from another seed and key with the same letters."""
    seeds = {
        derive_seed(1, "a", 23),
        derive_seed(1, "a", 2, 3),
        derive_seed(1, "a2", 3),
        derive_seed(11, "a", 23),
    }

    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_in_every_process():
    """N4: a derived seed is a digest, not a hash that differs between processes; it is the same for ever."""
    assert in_new_process(_seed) == _seed() == 4911535946920100060


def _seed():
    return derive_seed(42, "item", 3, 17)


def test_global_generators_come_back():
    """I1: seeded inside, python, numpy and torch go on afterwards as if nothing had been."""
    seed_globals(1)
    expected = global_draws()
    seed_globals(1)
    with global_seeds(2):
        inside = global_draws()

    assert global_draws() == expected != inside


def test_global_generators_come_back_after_an_error():
    """I1: the same when the code inside fails."""
    seed_globals(1)
    expected = global_draws()
    seed_globals(1)
    try:
        with global_seeds(2):
            global_draws()
            raise ValueError
    except ValueError:
        pass

    assert global_draws() == expected


def test_seeding_torch_is_seeding_torch():
    """The cheap way to seed torch's generator gives the draws of the documented one."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    seed_torch(5, CPU)

    assert torch.equal(torch.rand(3), expected)


def test_a_row_draws_the_same_in_whatever_part_it_comes():
    """Rows 4 and 5 of a window are rows 0 and 1 of its third part; without a whole they are the batch's."""
    window = Random(7, "loss", 16)
    part = Random(7, "loss", 16, 2).part_of(window, 4)
    alone = Random(7, "loss", 16)

    assert part.row(0).seed == alone.row(4).seed != alone.row(0).seed
    assert part.row(1).seed == window.row(5).seed
    assert part.seed == Random(7, "loss", 16, 2).seed
