"""Owns the answer of ``plan`` as tables for people. It knows the document alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app_trainer_sdk.quantities import GIB

SHEET = ("card", "memory", "fits", "needed", "left", "microbatch", "recompute", "8-bit", "precision", "price/h")
#: Against one large microbatch without savings; declared, not seconds.
TIME = "relative time"
LEFT_ALIGNED = frozenset(
    {"card", "fits", "recompute", "8-bit", "precision", "way", "verdict", "setting", "why"}
)


def render(document: Mapping[str, Any], *, details: bool = False) -> str:
    """The selection sheet; with ``details`` also where the bytes go and what was considered, card by card."""
    lines = [*_heading(document), ""]
    cards = document["replicas"]
    lines += _table(SHEET, [_sheet_row(plan, cards) for plan in document["cards"]])
    for plan in document["cards"]:
        lines += _why_not(plan)
    if details:
        for plan in document["cards"]:
            lines += ["", *_details(plan)]
    lines += ["", *_grades(document["cards"], cards)]
    if document["not_predicted"]:
        lines.append(f"not predicted: the phases before training ({', '.join(document['not_predicted'])})")
    return "\n".join(lines) + "\n"


def _heading(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"{document['trainer']} {document['trainer_version']}, {document['model']}, {document['method']}"
    trained = f"{document['trained_parameters']:,} of {document['parameters']:,} parameters train"
    ranks = "" if document["replicas"] == 1 else f", on {document['replicas']} cards"
    yield f"{trained}; {document['global_batch']} examples an update{ranks}"


def _sheet_row(plan: Mapping[str, Any], cards: int) -> list[str]:
    memory, chosen, price = plan["memory"], plan["chosen"], plan["price_per_hour"]
    row = [plan["card"]["name"], _gib(memory["available_bytes"]), "yes" if plan["fits"] else "no"]
    row += [_gib(memory["needed_bytes"]), _gib(memory["left_bytes"])]
    if chosen is None:
        row += ["-"] * 3
    else:
        row.append(f"{chosen['microbatch']} × {chosen['gradient_accumulation_steps']}")
        row += [_yes(chosen["gradient_checkpointing"]), _yes(chosen["optim_8bit"])]
    return [*row, plan["precision"], "" if price is None else f"{price * cards:,.2f}"]


def _why_not(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["fits"]:
        return
    if plan.get("refused"):
        yield plan["refused"]
        return
    yield f"{plan['card']['name']} is too small even at its leanest; it would fit with {ways_that_fit(plan)}"


def ways_that_fit(plan: Mapping[str, Any]) -> str:
    """Of a card that is too small: other settings, another card, several of them."""
    nearest, cards = plan["nearest"], plan["sharding"]["cards"]
    ways = []
    if nearest["settings"]:
        ways.append(", ".join(f"{knob} {_json(value)}" for knob, value in nearest["settings"].items()))
    if nearest["card"]:
        ways.append(f"a {nearest['card']}")
    if cards:
        ways.append(f"its state shared by {cards} such cards")
    return " or ".join(ways) or "nothing that is known"


def _details(plan: Mapping[str, Any]) -> Iterator[str]:
    memory, prediction = plan["memory"], plan["prediction"]
    yield f"{plan['card']['title']}: what it holds at the fullest instant, in {prediction['peak_in']}"
    rows = [[owner.replace("_", " "), _gib(count)] for owner, count in prediction["by_owner"].items()]
    rows.append(["predicted peak", _gib(memory["peak_bytes"])])
    for term in ("rounding", "exchange", "library", "correction", "context", "headroom"):
        rows.append([f"+ {term}", _gib(memory[f"{term}_bytes"])])
    rows += [["needed", _gib(memory["needed_bytes"])], ["of", _gib(memory["available_bytes"])]]
    yield from _table(("what", "GiB"), rows, left=("what",))
    yield ""
    phases = [[f"prepare {phase}", _gib(count)] for phase, count in prediction["preparation"].items()]
    phases += [[phase, _gib(count)] for phase, count in prediction["phases"].items()]
    yield from _table(("phase", "GiB"), phases, left=("phase",))
    yield ""
    told = [each for each in plan["considered"] if not each["at_least"]]
    yield from _table(("way", "needed", TIME, "verdict"), [_way(each) for each in told])
    if len(told) < len(plan["considered"]):
        others = len(plan["considered"]) - len(told)
        yield f"and {others} that cannot fit either: each takes more than one above that does not"
    yield ""
    settings = [[name, _json(knob["effective"]), knob["why"]] for name, knob in plan["settings"].items()]
    yield from _table(("setting", "value", "why"), settings)


def _grades(plans: Sequence[Mapping[str, Any]], cards: int) -> Iterator[str]:
    """How memory is known, once for all cards of which the same is known, and what updates take and cost."""
    names: dict[str, list[str]] = {}
    for plan in plans:
        names.setdefault(plan["grade"], []).append(plan["card"]["name"])
    for grade, titles in names.items():
        yield f"memory: {grade}" if len(names) == 1 else f"memory of {', '.join(titles)}: {grade}"
    for plan in plans:
        if told := plan["update_seconds"]:
            price = plan["price_per_hour"]
            costs = "" if price is None else f", 1,000 cost {told['seconds'] / 3.6 * price * cards:,.2f}"
            yield f"an update on {plan['card']['name']}: {told['seconds']:.3g} s ({told['grade']}){costs}"


def _way(considered: Mapping[str, Any]) -> list[str]:
    words = f"{considered['microbatch']} × {considered['gradient_accumulation_steps']}"
    words += ", recompute" if considered["gradient_checkpointing"] else ""
    words += ", 8-bit state" if considered["optim_8bit"] else ""
    words += ", fp32" if considered["mixed_precision"] == "no" else ""
    needed = ("about " if considered["estimated"] else "") + _gib(considered["needed_bytes"])
    return [words, needed, f"{considered['relative_time']:.2f}", considered["verdict"]]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for cells in (headings, ["-" * width for width in widths], *rows):
        aligned = (
            cell.ljust(width) if heading in LEFT_ALIGNED or heading in left else cell.rjust(width)
            for heading, cell, width in zip(headings, cells, widths, strict=True)
        )
        yield "  ".join(aligned).rstrip()


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
