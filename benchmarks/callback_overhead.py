"""What a sick control plane costs a run: 200 updates of 5 ms, without callbacks and with one that is sick.

Four endpoints: one refuses connections, one answers 500, one accepts and never answers, one is 200 ms away.
Each round runs the toy trainer as ``app-trainer run`` once without callbacks and once with each endpoint, in
turn. Compared is the time of the training phase, as the rank measured it; the whole command is told beside it,
with the second that it waits at its end for a control plane that is away. Prints medians of paired ratios, and
what the slowest of a hundred updates took, of all rounds together: five make a thousand updates.

Run: ``python benchmarks/callback_overhead.py [ROUNDS] [ENDPOINT ...] [--updates N]``, such as
``2 'never answers' --updates 1000``. Exits 1 when a ratio is above 1.05. The slowest should be within 1 ms of
those without callbacks, which a machine with busy neighbours does not show.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app_trainer_sdk.listener import Desk, Fault, Listener

SECONDS, LIMIT = 0.005, 1.05
JOB = {
    "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp",
    "hyperparameters": {"sleep_seconds": SECONDS, "evaluate_every": 20, "checkpoint_every": 100},
}  # fmt: skip
ENVIRONMENT = {"APP_TRAINER_UPLOAD_WAIT_SECONDS": "1", "APP_TRAINER_MIN_EVENT_INTERVAL": "0"}
FAULTS = {"answers 500": "500", "never answers": "hang", "200 ms away": "delay=0.2"}


@contextmanager
def endpoint(name: str, folder: Path) -> Iterator[str | None]:
    """The callback URL of one endpoint."""
    if name == "no callbacks":
        yield None
    elif name == "refuses":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{closed.getsockname()[1]}/"
    else:
        desk = Desk(folder / "desk")
        desk.always = Fault.parse(FAULTS[name])
        with Listener(desk) as listener:
            yield f"{listener.url}/events"


def run(name: str, updates: int) -> tuple[float, float, list[float]]:
    """Seconds of the training phase, of the whole command, and of each update."""
    with tempfile.TemporaryDirectory() as place, endpoint(name, Path(place)) as url:
        folder = Path(place)
        callbacks = {} if url is None else {"callbacks": {"url": url, "mode": "control"}}
        settings = {**JOB["hyperparameters"], "updates": updates}
        (folder / "job.json").write_text(json.dumps({**JOB, "hyperparameters": settings, **callbacks}))
        words = ["--job", str(folder / "job.json"), "--job-dir", str(folder / "dir"), "--quiet"]
        environment = {**os.environ, **ENVIRONMENT, "APP_TRAINER_CACHE_DIR": str(folder / "cache")}
        started = time.perf_counter()
        command = [sys.executable, "-m", "app_trainer_sdk.run", *words]
        done = subprocess.run(command, env=environment, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        assert done.returncode == 0, f"{name}: exit {done.returncode}"
        rows = [json.loads(line) for line in (folder / "dir" / "phases.jsonl").read_text().splitlines()]
        lines = [json.loads(line) for line in (folder / "dir" / "metrics.jsonl").read_text().splitlines()]
        training = next(row["seconds"] for row in rows if row["phase"] == "train")
        return training, seconds, [line["seconds"] for line in lines if "seconds" in line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("endpoints", nargs="*", default=["refuses", *FAULTS])
    parser.add_argument("--updates", type=int, default=200)
    asked = parser.parse_args()
    names = ["no callbacks", *asked.endpoints]
    times: dict[str, list[tuple[float, float, list[float]]]] = {name: [] for name in names}
    for _ in range(asked.rounds):
        for name in names:
            times[name].append(run(name, asked.updates))
    print(f"{asked.updates} updates of {1000 * SECONDS:.0f} ms, {asked.rounds} rounds, medians")
    print(f"{'':<16}{'training s':>12}{'command s':>12}{'ratio of training':>20}{'p50, p99 of updates ms':>24}")
    worst = 0.0
    for name in names:
        training, whole = (statistics.median(each[place] for each in times[name]) for place in (0, 1))
        ratios = [a[0] / b[0] for a, b in zip(times[name], times["no callbacks"], strict=True)]
        ratio = statistics.median(ratios)
        worst = max(worst, ratio)
        updates = [each for _, _, all_of in times[name] for each in all_of]
        cuts = [1000 * each for each in statistics.quantiles(updates, n=100)]
        print(f"{name:<16}{training:>12.3f}{whole:>12.2f}{ratio:>20.3f}{cuts[49]:>14.2f}, {cuts[98]:>8.2f}")
    print(f"worst {worst:.3f}, at most {LIMIT} asked for")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
