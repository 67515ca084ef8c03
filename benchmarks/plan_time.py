"""Measures how long ``plan`` takes for language models of one and eight billion parameters.

::

    python benchmarks/plan_time.py [CASE ...]

A case is a new process that does what ``app-trainer plan`` asks its planning process: imports, a plan, an
answer. Printed are seconds of processor time, that of a second process included, seconds on the clock, the
largest resident size, and what was chosen (rows of a microbatch, ``r`` with recomputation, ``8`` with 8-bit
state, ``f`` in fp32). Needs no GPU, no network and no weights: the architectures are published ones that no
catalog has. Bounds: 15 s for one billion and 30 s for eight on two cores, and 2 GiB of host memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import subprocess
import sys
import time
from typing import Any

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.gpus import CARDS, find_card
from app_trainer_sdk.planning.process import QUIET
from app_trainer_sdk.training import planning
from trainer_images.text.trainer import TextTrainer

GIB = 1 << 30
LENGTH, GLOBAL_BATCH = 1024, 16


def _llama(name: str, parameters: int, **sizes: Any) -> ModelRow:
    shared = {"model_type": "llama", "vocab_size": 128_256, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    shared |= {"max_position_embeddings": 8192, "num_attention_heads": 32}
    return ModelRow(name=name, title=name, parameters=parameters, architecture={**shared, **sizes})


#: Llama 3.2 1B and Llama 3.1 8B.
MODELS = (
    _llama(
        "1B", 1_235_814_400, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
        tie_word_embeddings=True,
    ),
    _llama(
        "8B", 8_030_261_248, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, head_dim=128,
        tie_word_embeddings=False,
    ),
)  # fmt: skip
#: Beside two real sizes: cards on which nothing but the leanest way in bf16 fits, by model and method.
LEANEST = {
    ("1B", "lora"): "4.85GiB", ("1B", "full"): "17.9GiB", ("8B", "lora"): "19.65GiB", ("8B", "full"): "104GiB",
}  # fmt: skip
CASES = {
    f"{model} {method} on {where or 'all cards'}": (model, method, [where] if where else [])
    for model in ("1B", "8B")
    for method in ("lora", "full")
    for where in ("24GiB", "H200", LEANEST[model, method], "")
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time and memory of planning.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only these; all when left out")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        TextTrainer.models = MODELS
        sys.stdin = io.StringIO(json.dumps(request(*CASES[chosen.inside])))
        planning.main()
        return
    for name in chosen.cases or CASES:
        print(measure(name), flush=True)


def measure(name: str) -> str:
    """One case as a line of text."""
    started = time.perf_counter()
    command = [sys.executable, __file__, "--inside", name]
    quiet = {**os.environ, **QUIET}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=quiet)
    assert process.stdout is not None
    answer = json.load(process.stdout)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, processor = time.perf_counter() - started, used.ru_utime + used.ru_stime
    resident = used.ru_maxrss * 1024 / GIB
    return f"{name:24} processor {processor:5.1f} s  clock {seconds:5.1f} s  {resident:.2f} GiB  {told(answer)}"


def request(model: str, method: str, cards: list[str]) -> dict[str, Any]:
    """What the planning process is asked."""
    found = [find_card(word) for word in cards] or CARDS
    job = {
        "trainer": "trainer_images.text.trainer:TextTrainer", "model": model, "method": method,
        "inputs": {"dataset": {"url": "/nowhere"}},
        "hyperparameters": {"global_batch": GLOBAL_BATCH, "max_length": LENGTH},
    }  # fmt: skip
    return {"job": job, "replicas": 1, "cards": [dataclasses.asdict(each) for each in found]}


def told(answer: dict[str, Any]) -> str:
    """What came out, in a few words."""
    if "error" in answer:
        return str(answer["error"]["message"])
    ways = []
    for each in answer["cards"]:
        knobs = each["chosen"]
        if knobs is None:
            ways.append("none")
        else:
            lean = "r" * knobs["gradient_checkpointing"] + "8" * knobs["optim_8bit"]
            lean += "f" * (knobs["mixed_precision"] == "no")
            ways.append(f"{knobs['microbatch']}{lean}")
    tried = {str(way) for each in answer["cards"] for way in each["considered"] if way["needed_bytes"]}
    residuals = [each["prediction"]["residual"] for each in answer["cards"]]
    return f"{' '.join(ways)}  ({len(tried)} ways known, residual at most {max(residuals):.2%})"


if __name__ == "__main__":
    main()
