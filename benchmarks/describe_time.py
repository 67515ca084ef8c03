"""Measures how long ``describe`` takes beside a bare ``import pydantic``: whole processes, taking turns.

::

    python benchmarks/describe_time.py [--pairs 15] [TRAINER]

Prints both medians and their ratio; the bound is 2.5. Installs nothing. Both processes may write bytecode, as
installed code does, and both are warmed up once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

BOUND = 2.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare describe with a bare import of pydantic.")
    parser.add_argument("--pairs", type=int, default=15, help="measured pairs")
    parser.add_argument("trainer", nargs="*", help="describe this trainer instead of all")
    arguments = parser.parse_args()
    commands = {
        "import pydantic": [sys.executable, "-c", "import pydantic"],
        "describe": [sys.executable, "-m", "app_trainer_sdk.describe", *arguments.trainer],
    }
    seconds = measure(commands, pairs=arguments.pairs)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:16} median {medians[name] * 1e3:6.1f} ms   fastest {min(values) * 1e3:6.1f} ms")
    pairs = zip(seconds["describe"], seconds["import pydantic"], strict=True)
    paired = statistics.median(describe / bare for describe, bare in pairs)
    ratio = medians["describe"] / medians["import pydantic"]
    print(f"ratio of medians {ratio:.2f}, median of paired ratios {paired:.2f} (bound {BOUND})")


def measure(commands: dict[str, list[str]], *, pairs: int) -> dict[str, list[float]]:
    """Wall seconds of each command, the commands taking turns so that noise meets all of them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(pairs + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            if round_number > 0:  # the first round writes bytecode and fills the file cache
                seconds[name].append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
