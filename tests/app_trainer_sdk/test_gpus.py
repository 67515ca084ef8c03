"""The catalog of cards, and what people call them."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.gpus import CARDS, find_card
from app_trainer_sdk.quantities import GIB


@pytest.mark.parametrize(
    ("word", "name"),
    [("H200", "H200"), ("h100", "H100-80"), ("a100-80", "A100-80"), ("A100 80", "A100-80"), ("4090", None),
     ("RTX4090", "RTX-4090"), ("rtx 4090", "RTX-4090"), ("L4", "L4"), ("mi300x", "MI300X"),
     ("H20", None), ("L40", None)],
)  # fmt: skip
def test_a_card_is_found_by_what_people_write(word, name):
    """In any case, without the dashes, or without its memory; a mere beginning is another card."""
    if name is None:
        with pytest.raises(BadJob, match="is not known"):
            find_card(word)
    else:
        assert find_card(word).name == name


def test_a_card_is_named_by_its_memory():
    card = find_card("24GiB")

    assert (card.memory_bytes, card.bf16) == (24 * GIB, True)
    assert find_card("24 GB").memory_bytes == 24 * 10**9


@pytest.mark.parametrize(
    ("word", "told"), [("A100", "A100-40"), ("H20O", "H200"), ("", "24GiB"), ("0GiB", "24GiB")]
)
def test_an_unclear_word_is_refused_with_what_it_may_mean(word, told):
    with pytest.raises(BadJob, match=told):
        find_card(word)


def test_facts_of_the_catalog_are_plausible():
    """Torch sees less than is printed on the box; every card says whether it has bf16, and its architecture."""
    assert len({card.name for card in CARDS}) == len(CARDS) >= 8
    for card in CARDS:
        printed = int(card.title.split()[-2])
        assert 0.88 * printed * 10**9 < card.memory_bytes < printed * GIB, card.name
        assert card.architecture
        assert card.headroom(10 * GIB) < GIB
    assert [card.name for card in CARDS if not card.bf16] == ["T4"]
