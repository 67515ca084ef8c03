"""Owns what happens before ranks begin: the machine is looked at, memory foreseen, files made local.

What came of it is ``start.json``. It must not know processes, nor how an attempt ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from app_trainer_sdk.attempt.desk import Desk
from app_trainer_sdk.checkpoints import find_checkpoints
from app_trainer_sdk.claim import make_folder
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.files import write_json
from app_trainer_sdk.inputs import fetch_inputs
from app_trainer_sdk.job import check_job
from app_trainer_sdk.outputs.remote import fetch_resume
from app_trainer_sdk.paths import PREFIX, cache_directory
from app_trainer_sdk.planning.fit import Foresight, fit_to_cards, room_for_checkpoints
from app_trainer_sdk.planning.measured import find_measured
from app_trainer_sdk.planning.resumed import refuse_too_small_cards
from app_trainer_sdk.preflight import command as preflight
from app_trainer_sdk.redaction import without_secrets
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.start import START, Start
from app_trainer_sdk.transfers.space import same_disk
from app_trainer_sdk.trust.formats import refuse_untrusted
from app_trainer_sdk.weights import fetch_weights


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What was asked of this start, beside the job.

    Attributes:
        replicas: ranks on all nodes.
        allow_changes: fields of the identity in which a resume may differ from its checkpoint.
        foresight: what memory is planned for.
    """

    replicas: int
    allow_changes: Sequence[str]
    foresight: Foresight


def look_at_machine(desk: Desk, *, ranks: int) -> None:
    """Refuse a machine that cannot do the job before anything is fetched; settle where libraries write."""
    desk.narrator.phase = "preflight"
    report, variables = preflight.look(desk.job, desk.layout.root, ranks=ranks)
    write_json(desk.folder / preflight.FILE, report.document(), lasting=False)
    desk.console.lines(report.doubts())
    if (error := report.error()) is not None:
        raise error
    preflight.apply(variables)
    desk.narrator.phase = "inputs"


def prepare_start(desk: Desk, wishes: Wishes) -> None:
    """Make inputs and weights local; a rank never downloads."""
    trainer = find_trainer(desk.job.trainer)
    settings, row, _ = check_job(desk.job, trainer)
    cache = cache_directory()
    make_folder(cache, setting=PREFIX + "CACHE_DIR")
    (desk.folder / START).unlink(missing_ok=True)  # of an earlier start: other nodes wait for this one's
    check = desk.stops.check
    with desk.stops.interruptible():  # a silent server must not use up the grace
        with desk.activities.on("download"):
            fetch_resume(desk.job, desk.layout, check, told=desk.narrator)
        with desk.activities.on("start"):
            foreseen = _foresee(desk, wishes, trainer)
        reserve = room_for_checkpoints(foreseen.get("fit", {}), settings.checkpoints_kept)
        with desk.activities.on("download"):
            inputs = fetch_inputs(desk.job, desk.layout.inputs, check, told=desk.narrator, reserve=reserve)
            reserve = reserve if same_disk(cache, desk.layout.root) else 0
            weights, identities = fetch_weights(
                desk.job, row, cache, check, told=desk.narrator, reserve=reserve
            )
            refuse_untrusted(weights, desk.job.allowed)
    start = Start(
        directory=str(desk.layout.root), attempt=desk.attempt, cache=str(cache),
        job=without_secrets(desk.job.document()),
        inputs={name: str(path) for name, path in inputs.items()},
        weights={role: str(path) for role, path in weights.items()}, weights_identity=identities,
        ranks=wishes.replicas, allow_changes=list(wishes.allow_changes), **foreseen,
    )  # fmt: skip
    start.save()


def _foresee(desk: Desk, wishes: Wishes, trainer: type[Trainer]) -> dict[str, Any]:
    """What a pilot measured, and knobs for the card that is there.

    A checkpoint has a plan, which is never made again; whether it fits the card that is there now is asked.
    """
    if find_checkpoints(desk.layout.checkpoints):
        measured, _ = find_measured(None, desk.layout.root, desk.job, trainer)
        refuse_too_small_cards(
            desk.layout.checkpoints, desk.job, trainer, wishes.foresight.cards(), replicas=wishes.replicas,
            changes=bool(wishes.allow_changes), measured=measured,
        )  # fmt: skip
        return {}
    measured, why_not = find_measured(wishes.foresight.pilot, desk.layout.root, desk.job, trainer)
    desk.console.lines([f"the pilot is not used: {why_not}"] if why_not else [])
    told = {} if measured is None else {"measured": dataclasses.asdict(measured)}
    if cards := wishes.foresight.cards():
        desk.narrator.hear({"kind": "phase", "name": "plan"})
        told["fit"] = fit_to_cards(desk.job, trainer, cards, replicas=wishes.replicas, measured=measured)
        desk.narrator.hear({"kind": "phase", "name": "inputs"})
    return told
