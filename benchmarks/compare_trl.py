"""The text image beside TRL's SFTTrainer: supervised tokens a second, peak memory, and losses step by step.

SmolLM2-135M in fp32 with LoRA r=8 over the Devil's Dictionary, 8 rows a step, both sides on the same rows in
the same order and each at its defaults: TRL with ``completion_only_loss`` (it recomputes activations by
default; bf16 is off because the comparison is in fp32), the text image under the SDK's own loop. Each side
runs in a process of its own, sides alternate, and the first steps are not timed.

    python benchmarks/compare_trl.py --steps 8 --pairs 3

It installs nothing: the interpreter needs the extras ``text`` and ``bench``. Memory is measured in runs of
their own, as bytes that torch's CPU allocator had handed out at once (the profiler's memory events over the
loaded model): what ``max_memory_allocated`` would tell on a card. The peak of resident memory is told beside
it; on the CPU it holds what glibc's heap kept besides, which depends on the order of frees.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # The checkout itself: the benchmark needs no installation.
DICTIONARY = ROOT / "trainer_images/text/examples/devils_dictionary.jsonl"
BATCH, WARM_UP, RATE, SEED = 8, 2, 2e-4, 42
MEMORY_STEPS = 3
MIB = 1 << 20
TARGETS = {"tokens_per_second": 3.0, "allocated": 0.40, "loss": 1e-3}


def main() -> None:
    """Run both sides in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8, help="timed and untimed steps of each side")
    parser.add_argument("--pairs", type=int, default=3, help="how often both sides run")
    parser.add_argument(
        "--weights", type=Path, help="transformers folder; made from the GGUF package otherwise"
    )
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing on our side too")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    with tempfile.TemporaryDirectory() as directory:
        weights = options.weights or converted_weights()
        memory = {side: measure_memory(side, weights, options, Path(directory)) for side in SIDES}
        results: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
        for pair in range(options.pairs):
            for side in ("ours", "trl") if pair % 2 == 0 else ("trl", "ours"):
                results[side].append(run_side(side, weights, options, Path(directory) / f"{side}-{pair}"))
                print(f"pair {pair + 1} {side:4} {describe(results[side][-1])}", flush=True)
    report(results, memory)


def measure_memory(side: str, weights: Path, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """A short run under the profiler, which slows it: its speed is not told."""
    few = argparse.Namespace(**{**vars(options), "steps": MEMORY_STEPS, "memory": True})
    measured = run_side(side, weights, few, directory / f"{side}-memory")
    print(f"memory {side:4} {measured['allocated_mib']:6.0f} MiB allocated at the peak", flush=True)
    return measured


def report(results: dict[str, list[dict[str, Any]]], memory: dict[str, dict[str, Any]]) -> None:
    """Print medians, paired ratios and the largest difference between losses of the same step."""
    pairs = list(zip(results["ours"], results["trl"], strict=True))
    for side, runs in results.items():
        middle = {name: statistics.median(run[name] for run in runs) for name in NUMBERS}
        print(f"median {side:4} {describe(middle)}")
    for name in NUMBERS:
        ratio = statistics.median(ours[name] / trl[name] for ours, trl in pairs)
        print(f"ratio {name}: {ratio:.3f}")
    apart = max(abs(a - b) for ours, trl in pairs for a, b in zip(ours["losses"], trl["losses"], strict=True))
    print(f"largest difference of a step's loss: {apart:.2e}")
    speed = statistics.median(ours["tokens_per_second"] / trl["tokens_per_second"] for ours, trl in pairs)
    share = memory["ours"]["allocated_mib"] / memory["trl"]["allocated_mib"]
    print(
        f"targets: speed {speed:.2f}x (at least {TARGETS['tokens_per_second']}x), peak memory {share:.0%} "
        f"(at most {TARGETS['allocated']:.0%}), losses {apart:.1e} (at most {TARGETS['loss']:.0e})"
    )


NUMBERS = ("tokens_per_second", "tokens_per_cpu_second", "peak_mib", "rise_mib", "loaded_mib")


def describe(run: dict[str, Any]) -> str:
    return (
        f"{run['tokens_per_second']:7.1f} supervised tokens/s "
        f"({run['tokens_per_cpu_second']:5.1f} a CPU second), peak {run['peak_mib']:6.0f} MiB "
        f"= loaded {run['loaded_mib']:5.0f} + {run['rise_mib']:6.0f}"
    )


def run_side(side: str, weights: Path, options: argparse.Namespace, job: Path) -> dict[str, Any]:
    job.mkdir()
    command = [sys.executable, __file__, "--side", side, "--weights", weights, "--job", job]
    command += ["--steps", options.steps, *(["--recompute"] if options.recompute else [])]
    command += ["--memory"] if options.memory else []
    environment = {
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "TOKENIZERS_PARALLELISM": "0",
    }
    done = subprocess.run([str(each) for each in command], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Memory:
    """Peak of resident memory, read from the kernel, counted from the moment the model is loaded."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # Sets the peak back to what is resident now.
        self.loaded_mib = self._read("VmRSS")

    def numbers(self) -> dict[str, float]:
        peak = self._read("VmHWM")
        return {"peak_mib": peak, "loaded_mib": self.loaded_mib, "rise_mib": peak - self.loaded_mib}

    @staticmethod
    def _read(name: str) -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0]) / 1024


@contextlib.contextmanager
def allocations(model: Any, *, wanted: bool) -> Iterator[dict[str, float]]:
    """Counts bytes handed out by torch's CPU allocator inside, over those of ``model``; in MiB, at the peak."""
    from torch.profiler import ProfilerActivity, profile

    told: dict[str, float] = {}
    if not wanted:
        yield told
        return
    storages = {each.untyped_storage() for each in [*model.parameters(), *model.buffers()]}
    loaded = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield told
    now = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    told["allocated_mib"] = (loaded + peak) / MIB


def draw_adapters(model: Any) -> None:
    """Draw the new LoRA matrices again, the same on both sides: each seeds its model in its own way."""
    import torch

    torch.manual_seed(SEED)
    for module in model.modules():
        if hasattr(module, "reset_lora_parameters"):
            module.reset_lora_parameters("default", True)


def rows(steps: int) -> list[dict[str, str]]:
    """The rows both sides train on; those of a memory run have the longest one of the epoch among them.

    A peak is made by the longest row that training meets, and three steps are all the profiler can bear.
    """
    lines = DICTIONARY.read_text(encoding="utf-8").splitlines()
    random.Random(SEED).shuffle(lines)  # neighbours in the dictionary have like lengths
    longest = max(range(len(lines) - steps * BATCH), key=lambda index: len(lines[index]))
    first = longest if steps == MEMORY_STEPS else 0
    return [json.loads(line) for line in lines[first : first + steps * BATCH]]


def rows_as_trained(steps: int) -> list[dict[str, str]]:
    """The same rows in the order in which the SDK trains on them."""
    from app_trainer_sdk.training.order import Order

    known = rows(steps)
    return [known[index] for index in Order(len(known), BATCH, seed=SEED).epoch(0).ids]


def text_run(options: argparse.Namespace) -> Any:
    """A run of the text image over the first rows of the dictionary, resolved by the SDK's plan."""
    import torch

    from app_trainer_sdk.data_facts import DataFacts
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.plan import DeviceFacts
    from app_trainer_sdk.planning.resolve import resolve_plan
    from trainer_images.text.models import MODELS
    from trainer_images.text.trainer import TextTrainer

    steps, job = options.steps, options.job
    dataset = job / "rows.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows(steps)), encoding="utf-8")
    asked = {
        "learning_rate": RATE, "schedule": "constant", "warmup_updates": 0, "updates": steps, "seed": SEED,
        "global_batch": BATCH, "microbatch": BATCH, "validation_share": 0.0, "test_share": 0.0,
        "max_length": 1024, "gradient_checkpointing": options.recompute,
    }  # fmt: skip
    settings = TextTrainer.hyperparameters_class.read(asked)
    device = DeviceFacts("cpu", "cpu", bf16=False, cores=os.cpu_count() or 1)
    plan = resolve_plan(
        settings, trainer="text", trainer_version="1", model=MODELS[0].name, method="lora",
        data=DataFacts(rows=steps * BATCH), device=device,
    )  # fmt: skip
    return Run(
        settings=plan.resolved(settings), model=MODELS[0], method="lora", directory=job, cache=job,
        weights={"base": options.weights}, inputs={"dataset": dataset}, store={"tokens": job},
        device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip


def train_ours(options: argparse.Namespace) -> dict[str, Any]:
    """The text image under the SDK's loop."""
    from trainer_images.text import tokens
    from trainer_images.text.trainer import TextTrainer

    run, trainer = text_run(options), TextTrainer()
    tokens.write_tokens(run, options.job)
    state = trainer.begin(run, None)
    draw_adapters(state.modules.root)
    memory, clock, losses = Memory(), Clock(), []
    with allocations(state.modules.root, wanted=options.memory) as allocated:
        for info in trainer.training_steps(run, state):
            losses.append(float(info.loss))
            clock.step(int(info.units))
    return {"losses": losses, **clock.numbers(), **memory.numbers(), **allocated}


class Clock:
    """Supervised tokens a second, without the first steps; by processor time too, for a shared machine."""

    def __init__(self) -> None:
        self.steps = 0
        self.start()

    def start(self) -> None:
        self.tokens, self.started, self.used = 0, time.perf_counter(), time.process_time()

    def step(self, tokens: int) -> None:
        self.steps += 1
        self.tokens += tokens
        if self.steps == WARM_UP:
            self.start()

    def numbers(self) -> dict[str, float]:
        return {
            "tokens_per_second": self.tokens / (time.perf_counter() - self.started),
            "tokens_per_cpu_second": self.tokens / (time.process_time() - self.used),
        }


def train_trl(options: argparse.Namespace) -> dict[str, Any]:
    """TRL's SFTTrainer at its defaults over the same rows, as conversations so that it uses the template."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    steps = options.steps
    data = Dataset.from_list([
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
        }
        for row in rows_as_trained(steps)
    ])  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(options.weights)
    model = AutoModelForCausalLM.from_pretrained(options.weights, dtype=torch.float32)
    clock = Clock()

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            clock.step(units.pop(0))

    config = SFTConfig(
        output_dir=str(options.job), completion_only_loss=True, max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE, lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[],
        bf16=False, use_cpu=True, seed=SEED, train_sampling_strategy="sequential", disable_tqdm=True,
        max_length=1024,
    )  # fmt: skip
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")
    trainer = SFTTrainer(
        model=model, args=config, train_dataset=data, processing_class=tokenizer, peft_config=lora,
        callbacks=[Watch()],
    )  # fmt: skip
    draw_adapters(trainer.model)
    labels = trainer.train_dataset["labels"]
    trained = [sum(label != -100 for label in row[1:]) for row in labels]
    units = [sum(trained[step * BATCH : (step + 1) * BATCH]) for step in range(steps)]
    memory = Memory()
    clock.start()
    with allocations(trainer.model, wanted=options.memory) as allocated:
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, **clock.numbers(), **memory.numbers(), **allocated}


def converted_weights() -> Path:
    """The GGUF package as a transformers folder, made once."""
    from app_trainer_sdk.handle import Run
    from trainer_images.text import weights
    from trainer_images.text.models import MODELS

    source = MODELS[0].weights["base"]
    spec = importlib.util.find_spec(source.package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise importlib.metadata.PackageNotFoundError(source.package)
    folder = ROOT / ".cache/benchmarks" / source.sha256[:16]
    if not folder.is_dir():
        beside = folder.with_name(f"{folder.name}.{os.getpid()}")
        beside.mkdir(parents=True)
        file = Path(spec.submodule_search_locations[0]) / source.file
        run = Run(
            settings=None,
            model=MODELS[0],
            method="lora",
            directory=beside,
            cache=beside,
            weights={"base": file},
        )
        weights.convert(run, beside)
        beside.rename(folder)
    return folder


SIDES = {"ours": train_ours, "trl": train_trl}

if __name__ == "__main__":
    main()
