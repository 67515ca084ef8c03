"""Owns what a pilot's measurements mean: what the whole run would take, go or no-go, and which knob to turn.

Pure functions over ``pilot.json``. This file must not know how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app_trainer_sdk.quantities import gib_text
from app_trainer_sdk.tradeoffs import CompileTimes, choose_compile

PILOT_SCHEMA = "app.trainer.pilot/v1"

#: A handful of rows, trained on again and again, must lower their own loss at least to this share.
LEARNED_FACTOR = 0.9
#: Evaluation in a new process may differ from the one before the save by this share.
RESTORED_TOLERANCE = 1e-5
#: More of the card than this is taken: allocators fragment, and the next row may be longer.
CARD_SHARE = 0.95
#: From here on a share of an update's time is worth a word.
WAIT_SHARE, SAVE_SHARE, IDLE_SHARE = 0.10, 0.05, 0.50


def estimate(measured: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the whole run by part, and their ``total``; parts that were not measured are left out.

    Args:
        measured: the document without its verdict.
    """
    run, updates = measured["run"], measured["updates"]
    parts: dict[str, float] = {
        row["phase"]: row["seconds"] for row in measured["phases"] if row["phase"] in measured["preparation"]
    }
    parts |= {row["phase"]: row["seconds"] for row in measured["phases"] if row["phase"] in _ONCE}
    parts["updates"] = updates["seconds"] * run["updates"]
    if measured.get("evaluation"):
        parts["evaluations"] = measured["evaluation"]["seconds"] * run["evaluations"]
    if measured.get("checkpoint"):
        parts["checkpoints"] = measured["checkpoint"]["stall_seconds"] * run["checkpoints"]
    return {**parts, "total": sum(parts.values())}


def verdict(measured: Mapping[str, Any]) -> dict[str, Any]:
    """``go``, the ``reasons`` against it, and ``advice``."""
    reasons = [*_against(measured)]
    return {"go": not reasons, "reasons": reasons, "advice": [*_advice(measured)]}


_ONCE = ("load", "export", "replay")


def _against(measured: Mapping[str, Any]) -> Iterator[str]:
    for row in measured["phases"]:
        if row["verdict"].startswith(("kept", "failed")):
            yield f"phase {row['phase']} (rank {row.get('rank', 0)}): {row['verdict']}"
    yield from _memory_against(measured)
    restore = measured.get("restore")
    if restore:
        different = restore["different"]
        if different:
            shown = ", ".join(different[:3]) + (f" and {len(different) - 3} more" if len(different) > 3 else "")
            yield f"restored in a new process, the state differs: {shown}"
        if not restore["evaluation_equal"]:
            yield (
                f"restored in a new process, the longest batch evaluates to {restore['evaluation_there']}, "
                f"not to {restore['evaluation_here']}"
            )
    mechanics = measured.get("mechanics")
    if mechanics and not mechanics["learned"]:
        yield (
            f"mechanics: {mechanics['rows']} rows trained {mechanics['updates']} times went from loss "
            f"{_loss(mechanics['first'])} to {_loss(mechanics['last'])}; expected at most "
            f"{mechanics['factor']:.0%} of the first"
        )
    if not measured["updates"]["ids_right"]:
        yield "the rows that were trained on are not those of the order"


def _memory_against(measured: Mapping[str, Any]) -> Iterator[str]:
    card = measured["device"]["memory_bytes"]
    peak = max((row["peak"] for row in measured["phases"]), default=0)
    if card and peak > CARD_SHARE * card:
        found = f"the peak is {gib_text(peak)} of the card's {gib_text(card)}"
        yield f"{found}; at most {CARD_SHARE:.0%} leaves headroom"


def _advice(measured: Mapping[str, Any]) -> Iterator[str]:
    """Knobs that the measured shares of time and memory speak for, the largest effect first."""
    updates, parts = measured["updates"], measured["estimate"]
    waited = updates["data_seconds"] / max(updates["seconds"], 1e-9)
    if waited > WAIT_SHARE:
        yield f"dataloader_workers up: {waited:.0%} of an update waits for data"
    card = measured["device"]["memory_bytes"]
    peak = max((row["peak"] for row in measured["phases"]), default=0)
    if card and peak < IDLE_SHARE * card:
        yield f"microbatch: the peak is {peak / card:.0%} of the card, larger microbatches may be faster"
    compiled = measured.get("compile")
    if compiled and "failed" not in compiled:
        pays, why = choose_compile(CompileTimes(**compiled, source="this pilot"), measured["run"]["updates"])
        if pays:
            yield f"torch_compile: {why}"
    for name, knob in (("checkpoints", "checkpoint_every"), ("evaluations", "evaluate_every")):
        share = parts.get(name, 0.0) / max(parts["total"], 1e-9)
        if share > SAVE_SHARE:
            yield f"{knob}: {name} take {share:.0%} of the run"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
