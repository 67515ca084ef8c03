"""Owns a node's place among several, as torchrun tells it, and what the nodes other than the first do.

``torchrun --nproc-per-node 1 --max-restarts 0 -m app_trainer_sdk.run --ranks N`` begins one supervisor on each
node; each begins its own ranks, and keeps their exit codes. The job's directory is shared by all nodes. Node 0
runs the job: it alone fetches, says events and writes results. The others begin their ranks from its
``start.json``, pass on signals, and leave outcomes where node 0 finds them. This file must not know torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from app_trainer_sdk.console import Console
from app_trainer_sdk.descendants import adopting_orphans
from app_trainer_sdk.errors import BadJob, ExitCode, PeerFailed, StopRequested
from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.limits import MemoryWatch
from app_trainer_sdk.paths import PREFIX, JobDirectory
from app_trainer_sdk.ranks import LISTEN_SECONDS, PROGRAM, Ranks
from app_trainer_sdk.start import START
from app_trainer_sdk.stops import Stops
from app_trainer_sdk.watch import Watch

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Place:
    """Which node this is.

    Attributes:
        node: its number.
        nodes: how many there are.
    """

    node: int = 0
    nodes: int = 1


def place_from_environment() -> Place:
    """The place that torchrun gave this process; alone without torchrun.

    Raises:
        BadJob: torchrun was asked for more than one process on a node, or attempts are not counted for all.
    """
    told = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    if "TORCHELASTIC_RUN_ID" not in os.environ or told["WORLD_SIZE"] in ("", "1"):
        return Place()
    if told["LOCAL_WORLD_SIZE"] != "1":
        raise BadJob(
            f"torchrun began {told['LOCAL_WORLD_SIZE']} processes on this node",
            expected="one for each node, which begins its ranks itself",
            setting="torchrun's --nproc-per-node to 1, and --ranks of run",
        )  # fmt: skip
    if not os.environ.get(PREFIX + "ATTEMPT", "").isdecimal():
        raise BadJob(
            f"several nodes and no {PREFIX}ATTEMPT", expected="the same number on all of them",
            setting=PREFIX + "ATTEMPT",
        )  # fmt: skip
    return Place(int(told["RANK"]), int(told["WORLD_SIZE"]))


def help_out(
    layout: JobDirectory, place: Place, count: int, console: Console, *, program: Sequence[str] = PROGRAM
) -> ExitCode:
    """Run the ranks of a node that is not the first, as long as the job goes.

    Args:
        layout: the job's directory.
        place: which node this is.
        count: ranks here.
        console: what a person sees.
        program: what each rank runs.
    """
    folder = layout.attempt(layout.next_attempt())
    ranks = Ranks(folder, count, program=program, node=place.node, nodes=place.nodes)
    begun = False

    def pass_on(stop: StopRequested) -> None:
        if begun:
            ranks.tell(stop)

    stops = Stops(pass_on)
    with adopting_orphans(), stops.listening():
        try:
            with stops.interruptible():
                _wait_for_start(layout)
            ranks.begin()
            begun = True
            if stops.asked is not None:
                ranks.tell(stops.asked)
            watch = Watch(ranks, MemoryWatch())
            while ranks.working and not stops.overdue:
                ranks.listen(LISTEN_SECONDS)
                ranks.mind_failures(stops.asked)
                ranks.bury_orphans()
                if isinstance(found := watch.look(), Exception):
                    ranks.give_up(found)
        except (StopRequested, PeerFailed) as ended:
            console.lines([f"node {place.node}: {ended}"])
            return ended.code
        finally:
            ranks.close()
    outcome = watch.explained(ranks.outcome(stops.asked, phase="", step=None))
    place_of_first = folder / f"outcome-{place.node * count}.json"
    if not place_of_first.exists():  # it ended without a word; node 0 has to know why
        write_json(place_of_first, outcome)
    code = ExitCode(outcome["exit_code"])
    console.lines([f"node {place.node}: {code.name.lower()} (exit code {int(code)})"])
    return code


def _wait_for_start(layout: JobDirectory) -> None:
    """Wait until node 0 has fetched what ranks need.

    Raises:
        PeerFailed: node 0 ended before.
    """
    attempt, since = layout.next_attempt(), time.time()
    while not (layout.attempt(attempt) / START).exists():
        with contextlib.suppress(OSError, ValueError, KeyError):
            if layout.result.stat().st_mtime >= since and read_json(layout.result)["attempt"] == attempt:
                raise PeerFailed("node 0 ended before there was anything to train")
        time.sleep(POLL_SECONDS)
