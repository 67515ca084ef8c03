"""Knobs: fit first, then the fastest that fits, at a constant global batch."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies

from app_trainer_sdk.choice import (
    KNOBS,
    MOST_ROWS,
    Candidate,
    changes,
    choose,
    describe,
    freed,
    list_candidates,
)
from app_trainer_sdk.hyperparameters import Hyperparameters

MIB = 1 << 20


def settings_of(**values):
    return Hyperparameters.read(values)


def bytes_of(candidate, *, state=1_000, rows=100):
    """A model's memory: state that 8 bits shrink, and activations that recomputing shrinks."""
    held = state * (0.6 if candidate.optim_8bit else 1.0)
    held *= 0.8 if candidate.mixed_precision == "no" else 1.0  # no weights beside those that train
    return int((held + rows * candidate.microbatch * (0.3 if candidate.gradient_checkpointing else 1.0)) * MIB)


def test_a_large_card_gets_the_fastest_way():
    """Nothing is saved where nothing is short: one large microbatch, and one prediction."""
    candidates = list_candidates(settings_of(), 16)

    chosen, considered = choose(candidates, bytes_of, 10_000 * MIB)

    assert chosen == Candidate(16, 1, False, False)
    assert [each.verdict for each in considered] == ["fits, and is the fastest that does"]


def test_the_update_stays_the_same_whatever_is_chosen():
    for candidate in list_candidates(settings_of(), 48):
        assert candidate.microbatch * candidate.gradient_accumulation_steps == 48


def test_every_way_that_was_considered_is_told_with_its_verdict():
    """The smallest microbatch of a kind speaks for the larger ones."""
    chosen, considered = choose(list_candidates(settings_of(), 4), bytes_of, 1_050 * MIB)

    assert chosen == Candidate(4, 1, False, True)
    assert [(describe(each.candidate), each.needed // MIB) for each in considered] == [
        ("4 × 1", 1_400), ("4 × 1 and 8-bit state", 1_000),
    ]  # fmt: skip
    chosen, considered = choose(list_candidates(settings_of(optim_8bit=False), 4), bytes_of, 1_050 * MIB)
    told = {describe(each.candidate): each for each in considered}

    assert chosen == Candidate(1, 4, True, False)
    assert told["2 × 2"].at_least
    assert told["2 × 2"].needed == told["1 × 4"].needed
    assert told["2 × 2"].verdict == "does not fit, since 1 × 4 does not"


@pytest.mark.parametrize(
    "asked",
    [{"microbatch": 2}, {"gradient_accumulation_steps": 4}, {"gradient_checkpointing": False},
     {"optim_8bit": False}, {"gradient_checkpointing": True, "optim_8bit": True}, {"microbatch": 8},
     {"mixed_precision": "no"}, {"mixed_precision": "fp16"}],
    ids=str,
)  # fmt: skip
def test_nothing_asked_for_is_changed(asked):
    candidates = list_candidates(settings_of(global_batch=16, **asked), 16)

    assert candidates
    for candidate in candidates:
        assert {name: candidate.knobs()[name] for name in asked} == asked


def test_a_refusal_can_name_the_settings_that_would_fit():
    """What was asked for stands in the way: only that is told as to be changed."""
    settings = settings_of(global_batch=16, microbatch=16, gradient_checkpointing=False)
    none, _ = choose(list_candidates(settings, 16), bytes_of, 1_100 * MIB)
    chosen, _ = choose(list_candidates(freed(settings), 16), bytes_of, 1_100 * MIB)

    assert none is None
    assert changes(settings, chosen) == {"microbatch": 4}
    assert all(getattr(freed(settings), name) == "auto" for name in KNOBS)


def test_fp32_is_looked_at_last_and_taken_where_nothing_else_fits():
    """It keeps no copies of the weights in 16 bits, and takes several times as long."""
    candidates = list_candidates(settings_of(), 4, precision="fp16")

    chosen, considered = choose(candidates, bytes_of, 500 * MIB)

    assert {each.mixed_precision for each in candidates} == {"fp16", "no"}
    assert [each.mixed_precision for each in candidates] == ["fp16"] * 12 + ["no"] * 12
    assert chosen is None
    assert sum(not each.at_least for each in considered[12:]) == 2  # split and whole
    assert considered[12].verdict.endswith("since 4 × 1 with recomputation and 8-bit state in fp32 does not")
    chosen, _ = choose(candidates, bytes_of, 600 * MIB)

    assert chosen == Candidate(4, 1, True, True, "no")


def test_one_microbatch_may_fit_where_smaller_ones_do_not():
    """It meets no gradients of another, which are as large as the weights."""

    def needs(candidate):
        return bytes_of(candidate) + (0 if candidate.gradient_accumulation_steps == 1 else 900 * MIB)

    chosen, _ = choose(list_candidates(settings_of(), 4), needs, 1_050 * MIB)

    assert chosen == Candidate(4, 1, False, True)
    asked = settings_of(optim_8bit=False, mixed_precision="bf16")
    chosen, _ = choose(list_candidates(asked, 4), needs, 1_150 * MIB)

    assert chosen == Candidate(4, 1, True, False)


def test_rows_that_see_each_other_are_never_split():
    assert {each.microbatch for each in list_candidates(settings_of(), 24, coupled_rows=True)} == {24}


def test_microbatches_keep_their_bounds():
    """Batch norm asks for two rows at least, and beyond some size nothing is gained."""
    assert min(each.microbatch for each in list_candidates(settings_of(), 64, minimum_rows=2)) == 2
    assert max(each.microbatch for each in list_candidates(settings_of(), 4_096)) == MOST_ROWS
    assert {each.microbatch for each in list_candidates(settings_of(), 127)} == {1}


def test_impossible_ways_are_not_considered():
    candidates = list_candidates(settings_of(), 4, can_recompute=False, can_shrink_state=False)

    assert {(each.gradient_checkpointing, each.optim_8bit) for each in candidates} == {(False, False)}


@hypothesis.given(
    share=strategies.integers(1, 96), state=strategies.integers(1, 5_000), rows=strategies.integers(1, 500),
    small=strategies.integers(1, 10_000), more=strategies.integers(0, 10_000),
)  # fmt: skip
def test_a_choice_fits_and_a_larger_card_is_never_slower(share, state, rows, small, more):
    def needs(candidate):
        return bytes_of(candidate, state=state, rows=rows)

    candidates = list_candidates(settings_of(), share)
    on_small, considered = choose(candidates, needs, small * MIB)
    on_large, _ = choose(candidates, needs, (small + more) * MIB)
    fitting = [each for each in candidates if needs(each) <= small * MIB]

    assert on_small == (fitting[0] if fitting else None)
    assert len(considered) == (candidates.index(on_small) + 1 if on_small else len(candidates))
    if on_small is not None:
        assert needs(on_small) <= small * MIB
        assert on_large is not None
        assert on_large.relative_time <= on_small.relative_time
