"""Owns the catalog of cards that planning knows: memory as torch sees it, architecture, bf16, fixed costs.

Facts and names alone. A card that is not here is named by its memory, such as ``24GiB``. This file must not
know models or prices, and asks no device.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from app_trainer_sdk.errors import BadJob, Problem, did_you_mean
from app_trainer_sdk.quantities import GIB, MIB

#: Memory that torch's allocator may hold without having handed it out: blocks that fit nobody.
HEADROOM_SHARE, HEADROOM_LEAST = 0.05, 256 * MIB


@dataclass(frozen=True)
class Card:
    """One kind of accelerator.

    Attributes:
        name: the word a person uses.
        title: the name its maker uses.
        memory_bytes: what torch reports as the total, which is less than is printed on the box.
        architecture: CUDA compute capability, such as ``9.0``, or AMD's ``gfx942``; empty when not known.
        bf16: whether it computes in bf16.
        context_bytes: taken by the driver's context and loaded kernels, outside torch's allocator.
        library_bytes: workspaces of cuBLAS, which torch's allocator hands out: one for each of the two threads
            that multiply, forward's and backward's.
    """

    name: str
    title: str
    memory_bytes: int
    architecture: str
    bf16: bool
    context_bytes: int
    library_bytes: int

    def headroom(self, needed: int) -> int:
        """Bytes to leave for the allocator's gaps beside ``needed``."""
        return max(HEADROOM_LEAST, math.ceil(needed * HEADROOM_SHARE))


def _card(
    name: str, title: str, gib: float, architecture: str, *, bf16: bool = True, context: int = 600,
    library: int = 17,
) -> Card:  # fmt: skip
    return Card(name, title, int(gib * GIB), architecture, bf16, context * MIB, library * MIB)


#: All declared: a pilot on the card measures them. Totals of H200, RTX 4090 and L40S are those that published
#: out-of-memory messages of torch tell; the others and contexts are estimates on the safe side. Workspaces are
#: those of torch 2.13's source, for each thread: 8.1 MiB, 32 from Hopper on, and on the MI300X 128 for hipBLAS
#: and 76 for hipBLASLt.
CARDS = (
    _card("T4", "NVIDIA T4 16 GB", 14.5, "7.5", bf16=False, context=400),
    _card("L4", "NVIDIA L4 24 GB", 21.9, "8.9", context=400),
    _card("RTX-4090", "NVIDIA GeForce RTX 4090 24 GB", 23.5, "8.9", context=500),
    _card("RTX-5090", "NVIDIA GeForce RTX 5090 32 GB", 31.3, "12.0", library=64),
    _card("A100-40", "NVIDIA A100 40 GB", 39.3, "8.0", context=500),
    _card("L40S", "NVIDIA L40S 48 GB", 44.3, "8.9", context=500),
    _card("A100-80", "NVIDIA A100 80 GB", 79.1, "8.0", context=500),
    _card("H100-80", "NVIDIA H100 80 GB", 79.1, "9.0", context=650, library=64),
    _card("H200", "NVIDIA H200 141 GB", 139.7, "9.0", context=650, library=64),
    _card("B200", "NVIDIA B200 180 GB", 178.3, "10.0", context=750, library=64),
    _card("MI300X", "AMD Instinct MI300X 192 GB", 191.5, "gfx942", context=1000, library=408),
)


def find_card(word: str, setting: str = "--gpu") -> Card:
    """The card a person means: its name in any case, without its memory where one has it, or just a memory.

    ``GiB`` are 2**30 bytes and ``GB`` 10**9, as on the box.

    Raises:
        BadJob: no card is called so, or several.
    """
    plain = _plain(word)
    exact = [card for card in CARDS if _plain(card.name) == plain]
    near = exact or [card for card in CARDS if _plain(card.name.rsplit("-", 1)[0]) == plain]
    if len(near) == 1:
        return near[0]
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gi?b)", word.strip(), re.IGNORECASE)
    if size and float(size[1]) > 0:
        unit = GIB if size[2].lower() == "gib" else 10**9
        title = f"a card of {size[1]} {'GiB' if unit == GIB else 'GB'}"
        return Card(word.strip(), title, int(float(size[1]) * unit), "", True, 600 * MIB, 64 * MIB)
    names = [card.name for card in near or CARDS]
    hint = did_you_mean(word, names)
    expected = "one of them" if near else "a card of the catalog, or its memory such as 24GiB"
    raise BadJob("the card is not known:", problems=[Problem(setting, repr(word), expected, hint)])


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())
