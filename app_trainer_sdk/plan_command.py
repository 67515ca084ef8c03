"""Owns the command ``plan``: will a job fit, on which cards, with which settings.

Torch-free: predictions are made by another process. It needs no GPU, downloads nothing and reads no data. This
file must not know how memory is predicted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.arguments import Parser, existing_file, rank_count, write_document
from app_trainer_sdk.errors import BadJob, ExitCode, Problem, TrainerError
from app_trainer_sdk.files import read_json
from app_trainer_sdk.gpus import CARDS, Card, find_card
from app_trainer_sdk.job import Job, check_job, load_job
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.planning.measured import Measured, find_measured
from app_trainer_sdk.planning.process import GRADE, ask
from app_trainer_sdk.registry import find_trainer

SCHEMA = "app.trainer.fit/v1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan a job; the exit code is 78 when it fits none of the cards asked about."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.schema:
        from app_trainer_sdk.plan_schema import document_schema

        sys.stdout.write(json.dumps(document_schema(), indent=2) + "\n")
        return int(ExitCode.SUCCEEDED)
    if chosen.job is None:
        parser.error("the following arguments are required: --job")
    try:
        cards = [find_card(word) for word in chosen.gpu] or list(CARDS)
        prices = read_prices(chosen.prices, chosen.price, cards)
        job = load_job(chosen.job)
        trainer = find_trainer(job.trainer)
        check_job(job, trainer)
        measured, why_not = find_measured(chosen.pilot, chosen.job_dir, job, trainer)
        sys.stderr.write(why_not and f"plan: the pilot is not used: {why_not}\n")
        sys.stderr.write(_work_line(job, cards))
        document = plan_document(job, cards, replicas=chosen.ranks, prices=prices, measured=measured)
        if chosen.write_job and document["cards"][0]["fits"]:
            write_document(chosen.write_job, with_choice(job, document["cards"][0]), "--write-job")
    except TrainerError as error:
        sys.stderr.write(f"plan: {error}\n")
        return int(error.code)
    if chosen.json:
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    else:
        from app_trainer_sdk.plan_table import render

        sys.stdout.write(render(document, details=bool(chosen.gpu)))
    return int(ExitCode.SUCCEEDED if document["fits"] else ExitCode.HARDWARE_UNFIT)


def plan_document(
    job: Job, cards: Sequence[Card], *, replicas: int = 1, prices: Mapping[str, float] | None = None,
    measured: Measured | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The plan of ``job`` on ``cards``, as JSON.

    Raises:
        BadJob: the job, or what it asks of its trainer, cannot be planned.
        InternalError: the planning process did not answer.
    """
    request = {
        "job": job.document(),
        "replicas": replicas,
        "cards": [dataclasses.asdict(each) for each in cards],
    }
    if measured is not None:
        request["measured"] = dataclasses.asdict(measured)
    found = ask(request)
    for plan in found["cards"]:
        plan["price_per_hour"] = (prices or {}).get(plan["card"]["name"])
    fits = any(plan["fits"] for plan in found["cards"])
    pilot = None if measured is None else {"source": measured.source, "device": measured.device["name"]}
    head = {"schema": SCHEMA, "sdk_version": __version__, "grade": GRADE, "fits": fits}
    return {**head, **found, "pilot": pilot}


def with_choice(job: Job, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The job with every knob of memory and speed said as ``plan`` chose it, so that a run makes the same."""
    knobs = {**plan["chosen"], "global_batch": plan["settings"]["global_batch"]["effective"]}
    document = job.document()
    if re.fullmatch("j_[0-9a-f]{16}", document.get("job_id", "")):
        del document["job_id"]  # it was made from what the other job asks for
    return {**document, "hyperparameters": {**document.get("hyperparameters", {}), **knobs}}


def _work_line(job: Job, cards: Sequence[Card]) -> str:
    """Said at once, beside the answer: a large model takes a while."""
    names = ", ".join(card.name for card in cards)
    return f"plan: rehearsing {job.model} without weights, for {names} ...\n"


def read_prices(file: Path | None, words: Sequence[str], cards: Sequence[Card] = CARDS) -> dict[str, float]:
    """Prices an hour by the card's name, from a JSON object and from words such as ``L4=0.80``.

    A file is a list of prices and may have more cards than are asked about; a word may not.

    Raises:
        BadJob: a card that is not known or not asked about, or no number.
    """
    told: dict[str, Any] = {}
    if file is not None:
        existing_file(file, "a JSON file of prices", "--prices")
        try:
            read = read_json(file)
        except (OSError, ValueError) as error:
            raise BadJob(f"cannot read {file}: {error}", expected="a JSON object", setting="--prices") from None
        if not isinstance(read, dict):
            raise BadJob(f"{file} is no object", expected='{"L4": 0.8}', setting="--prices")
        told |= read
    for word in words:
        name, _, price = word.partition("=")
        if (card := find_card(name, "--price").name) not in [each.name for each in cards]:
            asked = ", ".join(each.name for each in cards)
            wrong = Problem("--price", card, f"one of the cards asked about: {asked}")
            raise BadJob("a price for a card that nobody asked about:", problems=[wrong])
        told[name] = price
    return {find_card(name, "--prices").name: _price(name, value) for name, value in told.items()}


def _price(name: str, value: Any) -> float:
    try:
        price = float(value)
    except (TypeError, ValueError):
        price = -1.0
    if not 0 <= price < 1e6:
        raise BadJob(f"the price {value!r} of {name}", expected="a number of at least 0", setting="--price")
    return price


def _parser() -> Parser:
    parser = Parser(
        prog="app-trainer plan",
        description="Tell whether a job fits, on which cards and with which settings. Needs no GPU or weights.",
    )
    parser.add_argument("--job", type=Path, help="job document, JSON or YAML")
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="CARD",
        help="a card such as H200, A100-80 or 24GiB; may be repeated; all of the catalog when left out",
    )  # fmt: skip
    parser.add_argument(
        "--pilot", type=Path, metavar="FILE", help="pilot.json of the job, whose numbers are used"
    )
    parser.add_argument(
        "--job-dir",
        type=Path,
        default=os.environ.get(PREFIX + "JOB_DIR") or None,
        help="the job's directory: its pilot",
    )
    parser.add_argument("--ranks", type=rank_count, default=1, help="cards that train together (1)")
    parser.add_argument("--price", action="append", default=[], metavar="CARD=NUMBER", help="price of an hour")
    parser.add_argument("--prices", type=Path, help="JSON object of prices an hour by card")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_true", help="print tables for people, as without an option")
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--schema", action="store_true", help="print the JSON Schema of the document")
    parser.add_argument(
        "--write-job",
        type=Path,
        metavar="FILE",
        help="write the job as chosen for the first card",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
