"""From process start to the first resumed update: ours, accelerate's and transformers' on the same state.

The state is a full fine-tune of SmolLM2-135M in fp32 with AdamW: weights and two moments, 1.5 GiB (fewer with
``--layers 4``). Each side saves it after one update with its own means; then a new process resumes and makes
one more update on a row of the same length. Timed is the whole process until that update is done: imports,
building the model, loading, the update. Ours is the real command ``app-trainer run``, with its supervisor, the
job's checks, and the SHA-256 of every file of the checkpoint, which the others do not compute.

    python benchmarks/first_update.py --pairs 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compare_trl import DICTIONARY, converted_weights

ROOT = Path(__file__).resolve().parents[1]
TOKENS, RATE = 64, 1e-5
DONE = "first update"
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def main() -> None:
    """Save on each side, then resume in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="how often each side resumes")
    parser.add_argument("--layers", type=int, default=0, help="keep this many layers; 0 keeps all")
    parser.add_argument("--side", choices=("accelerate", "transformers"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        PEERS[options.side](options)
        return
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        sides: dict[str, Any] = {name: Peer(name, folder, options) for name in PEERS}
        sides["ours"] = Ours(folder / "ours", options)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.pairs + 1):
            for name, side in sides.items():
                times[name].append(side.resume())
                print(f"{name:13} {times[name][-1]:6.2f} s", flush=True)
    report({name: values[1:] for name, values in times.items()})  # the first round fills the page cache


def report(times: dict[str, list[float]]) -> None:
    for name, values in times.items():
        ratio = statistics.median(value / ours for value, ours in zip(values, times["ours"], strict=True))
        print(f"median {name:13} {statistics.median(values):6.2f} s   {ratio:5.2f} x ours")


class Ours:
    """The text image under ``app-trainer run``; its directory is put back before every resume."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        folder.mkdir()
        self.directory, self.saved = folder / "job", folder / "saved"
        shortest = sorted(DICTIONARY.read_text(encoding="utf-8").splitlines(), key=len)[:8]
        (folder / "rows.jsonl").write_text("\n".join(shortest) + "\n")
        self.job = folder / "job.json"
        self.job.write_text(json.dumps({
            "trainer": "text", "model": "smollm2-135m-instruct", "method": "full",
            "inputs": {"dataset": "rows.jsonl"},
            "hyperparameters": {
                "updates": 3, "global_batch": 1, "checkpoint_every": 1, "checkpoints_kept": 3,
                "evaluate_every": 0, "keep_layers": options.layers, "learning_rate": RATE,
                "validation_share": 0.0, "test_share": 0.0, "held_out_predictions": 0, "control_prompts": 1,
            },
        }))  # fmt: skip
        if self._start().wait():
            sys.exit("ours did not train: run its job by hand to see why")
        self._keep_the_first_checkpoint()

    def resume(self) -> float:
        """Seconds until the first resumed update is told."""
        shutil.rmtree(self.directory)
        shutil.copytree(self.saved, self.directory, copy_function=_link_tensors)
        started = time.perf_counter()
        process = self._start()
        while not self._told(process):
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        process.kill()  # the supervisor; what it started ends with it
        process.wait()
        return seconds

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "app_trainer_sdk.run", "--job", self.job, "--job-dir", self.directory]
        return subprocess.Popen([*map(str, command), "--quiet"], env=environment())

    def _told(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() not in (None, 0):
            sys.exit(f"ours ended with {process.returncode}: {self.directory}")
        metrics = self.directory / "metrics.jsonl"
        return metrics.is_file() and metrics.read_bytes().count(b"\n") > 1

    def _keep_the_first_checkpoint(self) -> None:
        for step in (2, 3):
            shutil.rmtree(self.directory / f"checkpoints/step-{step:08d}")
        for name in ("result.json", "report.md"):
            (self.directory / name).unlink()
        first = (self.directory / "metrics.jsonl").read_text().splitlines()[0]
        (self.directory / "metrics.jsonl").write_text(first + "\n")
        for name in ("artifacts", "attempts"):
            shutil.rmtree(self.directory / name)
        self.directory.rename(self.saved)
        self.directory.mkdir()


class Peer:
    """A short script around another library, in a process of its own."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        arguments = ["--side", name, "--folder", folder / name, "--layers", options.layers]
        self._command = [str(each) for each in (sys.executable, __file__, *arguments)]
        subprocess.run(self._command, check=True, env=environment(), **SILENT)

    def resume(self) -> float:
        """Seconds until it says that its update is done."""
        started = time.perf_counter()
        with subprocess.Popen(
            [*self._command, "--resume"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(DONE):
                    seconds = time.perf_counter() - started
                    process.kill()
                    return seconds
        sys.exit(f"{self._command} made no update")


def environment() -> dict[str, str]:
    return {
        "OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "0",
    }  # fmt: skip


def _link_tensors(source: str, target: str) -> None:
    """Large files are only read: a link is enough. The others are appended to."""
    (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)


def model(layers: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    few = {"num_hidden_layers": layers} if layers else {}
    return AutoModelForCausalLM.from_pretrained(converted_weights(), dtype=torch.float32, **few)


def resume_accelerate(options: argparse.Namespace) -> None:
    """accelerate's ``save_state`` and ``load_state`` around a loop of one's own."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    network = model(options.layers)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, fused=True)
    network, optimizer = accelerator.prepare(network, optimizer)
    if options.resume:
        accelerator.load_state(str(options.folder))
    ids = torch.randint(0, 49_152, (1, TOKENS))
    accelerator.backward(network(input_ids=ids, labels=ids).loss)
    optimizer.step()
    print(DONE, flush=True)
    if not options.resume:
        accelerator.save_state(str(options.folder))


def resume_transformers(options: argparse.Namespace) -> None:
    """transformers' Trainer with ``resume_from_checkpoint``."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Tell(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            print(DONE, flush=True)

    ids = torch.randint(0, 49_152, (TOKENS,))
    arguments = TrainingArguments(
        output_dir=str(options.folder), max_steps=2 if options.resume else 1, per_device_train_batch_size=1,
        learning_rate=RATE, use_cpu=True, save_steps=1, save_strategy="no" if options.resume else "steps",
        report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    rows = [{"input_ids": ids, "labels": ids}] * 4
    trainer = Trainer(model=model(options.layers), args=arguments, train_dataset=rows, callbacks=[Tell()])
    trainer.train(resume_from_checkpoint=str(options.folder / "checkpoint-1") if options.resume else None)


PEERS = {"accelerate": resume_accelerate, "transformers": resume_transformers}

if __name__ == "__main__":
    main()
