"""The command ``run``, from a job file to a finished directory, in processes as a user starts them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import held_trainers
import pytest
from held_trainers import holding
from jsonschema import Draft202012Validator
from loopback import reply

from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.console import Console
from app_trainer_sdk.data_wait import LEAST_WAIT_SECONDS, PARTS
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.run import main
from app_trainer_sdk.schemas.command import schema_of
from app_trainer_sdk.time_split import ACTIVITIES
from app_trainer_sdk.training.order import Order

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
TIMES = {"seconds", "data_seconds", "data_parts"}


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_process(document: Any, folder: Path, directory: Path) -> tuple[ExitCode, str]:
    job = folder / "a-job.json"
    job.write_text(json.dumps(document))
    told = io.StringIO()
    return run_job(job, directory, console=Console(told)), told.getvalue()


def test_a_finished_job_leaves_what_the_contract_says(finished: Any):
    """Exit code 0, and every file of the layout where a control plane looks for it."""
    there = {path.relative_to(finished.directory).as_posix() for path in finished.directory.rglob("*")}

    assert {
        "job.json",
        "plan.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "phases.jsonl",
        "result.json",
        "report.md",
        "artifacts/weights/model.safetensors",
        "checkpoints/step-00000012/manifest.json",
        "attempts/1/events.jsonl",
        "attempts/1/terminal.json",
        "attempts/1/outcome-0.json",
        "attempts/1/logs/rank-0.log",
    } <= there
    assert not [name for name in there if name.endswith(".tmp")]


def test_the_result_says_status_code_counters_and_outputs(finished: Any):
    """Outputs with size and digest; the artifact was loaded again in a new process and answered the same."""
    result = finished.result()
    weights = finished.directory / "artifacts" / "weights" / "model.safetensors"

    assert tuple(result[name] for name in ("status", "exit_code", "attempt", "step")) == ("succeeded", 0, 1, 12)
    assert (result["counters"]["updates"], result["counters"]["examples"]) == (12, 96)
    (output,) = result["outputs"]
    assert ("artifacts/weights", weights.stat().st_size) == (output["path"], output["bytes"])
    assert re.fullmatch("[0-9a-f]{64}", output["sha256"])
    assert result["replay"] == {"asked": 2, "same": True}


def test_one_metrics_line_for_each_update(finished: Any):
    """Step, loss, learning rate, norm, units, examples, both times, the digest of the ids; floats read back."""
    lines = rows(finished.directory / "metrics.jsonl")

    assert list(range(1, 13)) == [line["step"] for line in lines]
    for line in lines:
        assert {
            "step",
            "loss",
            "learning_rate",
            "gradient_norm",
            "units",
            "examples",
            "seconds",
            "data_seconds",
            "ids",
        } <= line.keys()
        assert (line["examples"], line["units"], line["applied"]) == (8, 8.0, True)
        assert line["loss"] == float(repr(line["loss"]))


def test_waiting_for_data_is_told_by_part(finished: Any):
    """In each line, in progress, and over all updates in the result: the parts are the wait."""
    lines = rows(finished.directory / "metrics.jsonl")
    wait = json.loads((finished.directory / "result.json").read_text())["data_wait"]
    performance = [event["perf"] for event in finished.events() if event["type"] == "job.progress"]

    for line in lines:
        told = line.get("data_parts")
        assert (told is not None) == (line["data_seconds"] >= LEAST_WAIT_SECONDS)
        assert told is None or sum(told.values()) == pytest.approx(line["data_seconds"], abs=1e-5)
    assert sum(wait["parts"].values()) == pytest.approx(wait["waited_seconds"], abs=1e-3)
    assert 0 < wait["share"] < 1
    assert wait["most"] in (*PARTS, "untold")
    assert all(0 <= each["data_wait_frac"] <= 1 for each in performance)


def test_progress_tells_pace_and_memory(finished: Any):
    """A4, A11: percentiles of an update, examples a second, resident memory; nothing of a card without one."""
    told = [event for event in finished.events() if event["type"] == "job.progress"][-1]
    lines = rows(finished.directory / "metrics.jsonl")

    assert (
        0 < told["perf"]["step_s_p50"] <= told["perf"]["step_s_p95"] <= max(line["seconds"] for line in lines)
    )
    assert told["perf"]["examples_s"] == pytest.approx(
        sum(line["examples"] for line in lines) / sum(line["seconds"] for line in lines), rel=0.01
    )
    assert told["memory"].keys() == {"rss_mib"}
    assert 50 < told["memory"]["rss_mib"] < 4000


def test_the_wall_time_is_split_into_activities(finished: Any):
    """All of it: parts that are measured apart add up, to a millisecond each; little belongs to nothing."""
    split = json.loads((finished.directory / "result.json").read_text())["time_split"]
    seconds = split["seconds"]

    assert tuple(seconds) == ACTIVITIES
    assert all(value >= -0.001 for value in seconds.values())
    assert sum(seconds.values()) == pytest.approx(split["wall_seconds"], abs=0.001 * len(ACTIVITIES))
    for name in (
        "start",
        "prepare",
        "load",
        "compute",
        "data_wait",
        "evaluation",
        "checkpoint",
        "export",
        "replay",
    ):
        assert seconds[name] > 0, name
    assert seconds["idle"] < 0.5 * split["wall_seconds"]


def test_who_reads_is_measured(finished: Any):
    """The toy's rows lie in memory: the training process reads them, and the plan says by which numbers."""
    plan = json.loads((finished.directory / "plan.json").read_text())
    knob = plan["settings"]["dataloader_workers"]

    assert (knob["requested"], knob["effective"]) == ("auto", 0)
    assert "rows measured here" in knob["why"]
    assert plan["reading"]["rows"] > 0
    assert f"dataloader_workers           0              (asked auto) {knob['why']}" in finished.told()


def test_one_row_for_each_phase(finished: Any):
    """Inputs, memory before, after and at the peak, seconds, verdict."""
    lines = rows(finished.directory / "phases.jsonl")

    assert [line["phase"] for line in lines] == ["examine", "train", "export", "replay"]
    for line in lines:
        assert {"attempt", "inputs", "before", "after", "peak", "seconds", "verdict"} <= line.keys()
        assert {"allocated", "reserved", "resident"} <= line["before"].keys() & line["after"].keys()


def test_events_of_a_job_that_went_well(finished: Any):
    """CASES J4: accepted first, progress before the end, the one terminal event last, kept by itself."""
    events = finished.events()
    kinds = [event["type"] for event in events]

    assert (kinds[0], kinds[-1]) == ("job.accepted", "job.succeeded")
    assert {"job.phase", "job.plan", "job.progress", "job.evaluation", "job.checkpoint", "job.artifact"} <= set(
        kinds
    )
    assert list(range(1, len(events) + 1)) == [event["seq"] for event in events]
    assert sum(kind in ("job.succeeded", "job.failed", "job.canceled") for kind in kinds) == 1
    last_progress = [event for event in events if event["type"] == "job.progress"][-1]
    assert (last_progress["progress"]["step"], events[-1]["progress"]["step"]) == (12, 12)
    assert last_progress["progress"]["fraction"] < events[-1]["progress"]["fraction"] == 1.0
    assert 12 >= last_progress["metrics"]["loss"]["n"] > 0
    log = (finished.directory / "attempts" / "1" / "events.jsonl").read_bytes()
    assert (finished.directory / "attempts" / "1" / "terminal.json").read_bytes() == log.splitlines()[-1]
    assert all(len(line) <= 4096 for line in log.splitlines())


def test_the_plan_is_saved_and_printed(finished: Any):
    """What is in plan.json is what the person saw: updates, examples, and each knob with its reason."""
    plan = json.loads((finished.directory / "plan.json").read_text())

    assert (plan["updates"], plan["examples_per_update"], plan["examples_seen"]) == (12, 8, 96)
    assert "12 updates × 8 = 96 examples seen of 40 rows (5 updates a pass)" in finished.told()
    assert plan["settings"]["updates"] == {"requested": 12, "effective": 12, "why": "asked for"}
    assert plan["settings"]["checkpoint_every"]["requested"] == "auto"


def test_without_a_terminal_there_are_plain_lines(finished: Any):
    """No control characters in a log; the first progress and the last are there."""
    assert "\x1b" not in finished.told()
    assert "\r" not in finished.told()
    assert re.search(r"^update 12/12  loss \S+  \S+ updates/s  0 s left$", finished.told(), re.MULTILINE)
    assert "succeeded (exit code 0)" in finished.told()


def test_a_second_call_says_so_and_changes_nothing(finished: Any, tmp_path: Path):
    """CASES B2: already complete, exit code 0, not a byte or a time changed."""
    before = tree(finished.directory)
    code, told = in_process(json.loads(finished.job.read_text()), tmp_path, finished.directory)

    assert code is ExitCode.SUCCEEDED
    assert "is already complete" in told
    assert "nothing was changed" in told
    assert before == tree(finished.directory)


def test_a_directory_belongs_to_one_job(finished: Any, tmp_path: Path):
    """Another job in the same directory is 64 and changes nothing; callbacks do not make another job."""
    before = tree(finished.directory)
    document = json.loads(finished.job.read_text())
    code, told = in_process({**document, "hyperparameters": {"updates": 13}}, tmp_path, finished.directory)

    assert code is ExitCode.BAD_JOB
    assert "belongs to job" in told
    assert "/hyperparameters/updates: found 13; expected" in told
    assert "--allow-change" not in told  # which a job that is finished has no use for
    assert (
        in_process({**document, "callbacks": "http://h/"}, tmp_path, finished.directory)[0]
        is ExitCode.SUCCEEDED
    )
    assert before == tree(finished.directory)


def test_a_name_of_its_own_does_not_hide_a_change(tmp_path: Path):
    """A finished job_id asked with other hyperparameters is refused: it is not complete."""
    directory = tmp_path / "dir"
    directory.mkdir()
    (directory / "job.json").write_text(
        json.dumps({**TOY, "job_id": "mine", "hyperparameters": {"updates": 3}})
    )
    (directory / "result.json").write_text('{"status": "succeeded"}')
    asked = {**TOY, "job_id": "mine", "hyperparameters": {"updates": 3}}

    assert in_process(asked, tmp_path, directory)[0] is ExitCode.SUCCEEDED
    code, told = in_process({**asked, "hyperparameters": {"updates": 4}}, tmp_path, directory)
    assert code is ExitCode.BAD_JOB
    assert "finished as another job" in told
    assert "/hyperparameters/updates: found 4; expected 3, as in the directory" in told


def test_a_start_that_trained_nothing_keeps_no_other_job_out(tmp_path: Path):
    """A missing input is told with 66; the mended job then runs in the same directory, without any option."""
    directory = tmp_path / "dir"
    wrong = {**TOY, "inputs": {"dataset": str(tmp_path / "nope.jsonl")}, "hyperparameters": {"updates": 2}}
    code, _ = in_process(wrong, tmp_path, directory)
    mended = {**TOY, "hyperparameters": {"updates": 2}}
    again, told = in_process(mended, tmp_path, directory)

    assert (code, again) == (ExitCode.INPUT_MISSING, ExitCode.SUCCEEDED), told
    assert json.loads((directory / "job.json").read_text())["hyperparameters"] == {"updates": 2}
    assert json.loads((directory / "attempts" / "1" / "result.json").read_text())["exit_code"] == 66
    assert json.loads((directory / "result.json").read_text())["attempt"] == 2


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({**TOY, "trainer": "txt"}, "/trainer: found 'txt'"),
        ({**TOY, "trainer": "app_trainer_sdk.testing.toys:ToyTrainr"}, "did you mean 'ToyTrainer'?"),
        ({**TOY, "model": "toy"}, "did you mean 'toy-mlp'?"),
        ({**TOY, "method": "lora"}, "/method: found 'lora'; expected a method of the trainer (known: full)"),
        ({**TOY, "hyperparameters": {"updates": 0}}, "/hyperparameters/updates: found 0"),
        ({**TOY, "outputs": {"required": ["adapter"]}}, "/outputs/required/0"),
        ([], "a job that is []"),
    ],
)
def test_a_bad_job_begins_nothing(tmp_path: Path, document: Any, told: str):
    """Exit code 64, what was meant, and no directory made."""
    code, text = in_process(document, tmp_path, tmp_path / "dir")

    assert code is ExitCode.BAD_JOB
    assert told in text
    assert not (tmp_path / "dir").exists()


def test_a_missing_job_file(tmp_path: Path):
    """64 as well, with the path."""
    told = io.StringIO()

    assert run_job(tmp_path / "none.json", tmp_path / "dir", console=Console(told)) is ExitCode.BAD_JOB
    assert f"nothing at {tmp_path}/none.json" in told.getvalue()


def test_a_wrong_option_is_a_bad_job(capsys: pytest.CaptureFixture[str]):
    """Never 1 or 2, which mean nothing to a control plane; the usage is shown."""
    with pytest.raises(SystemExit) as caught:
        main(["--jop", "a"])

    assert caught.value.code == 64
    assert "usage: app-trainer run" in capsys.readouterr().err


def test_a_change_nobody_knows_is_a_bad_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """--allow-change with a misspelt field is 64 with what was meant, and begins nothing."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps(TOY))
    words = ["--job", str(job), "--job-dir", str(tmp_path / "dir"), "--allow-change", "thread"]

    assert main(words) == 64
    assert "did you mean 'threads' or" in capsys.readouterr().err
    assert not (tmp_path / "dir").exists()


def test_a_changed_job_goes_on_when_it_is_told_to(start_toy: Any):
    """H2: another rate and a second rank in the middle of a job: the same rows in the same order, the new rate
    from there on, and result, report and plan say what was changed when.
    """  # fmt: skip
    asked = {
        "updates": 40, "global_batch": 8, "sleep_seconds": 0.05, "schedule": "constant", "warmup_updates": 0,
    }  # fmt: skip
    toy = start_toy(document={"trainer": held_trainers.TOY}, environment=holding(4), **asked)
    toy.wait_for("job.progress")
    os.kill(toy.process.pid, signal.SIGTERM)
    assert toy.end() == 75, toy.told()
    made = len(rows(toy.directory / "metrics.jsonl"))
    changed = {"hyperparameters": {**asked, "learning_rate": 0.5, "sleep_seconds": 0.0}}
    refused = start_toy(again=toy, document=changed)
    assert refused.end() == 64
    fields = [
        "settings/learning_rate", "settings/sleep_seconds", "settings/microbatch", "replicas", "threads",
    ]  # fmt: skip
    options = ["--ranks=2", *(f"--allow-change={field}" for field in fields)]
    again = start_toy(again=toy, document=changed, options=options)

    assert again.end() == 0, again.told()
    lines, order = rows(toy.directory / "metrics.jsonl"), Order(40, 8, seed=42)
    assert [line["ids"] for line in lines] == [order.window(8 * number).digest() for number in range(40)]
    assert (lines[made - 1]["learning_rate"], lines[made]["learning_rate"]) == (0.001, 0.5)
    told = {each["field"]: each for each in again.result()["changed"]}
    assert told["settings/learning_rate"] == {
        "field": "settings/learning_rate", "saved": 0.001, "now": 0.5, "step": made,
    }  # fmt: skip
    assert (told["replicas"]["saved"], told["replicas"]["now"]) == (1, 2)
    line = f"changed on resume after update {made}: settings/learning_rate was 0.001, is 0.5"
    assert f"* {line}" in (toy.directory / "report.md").read_text().splitlines()
    assert line in again.told()
    after = start_toy(again=toy)
    assert (after.end(), "already complete" in after.told()) == (0, True)


@pytest.mark.parametrize("ranks", ["0", "-1", "two", "1e9"])
def test_a_number_of_ranks_that_is_none(ranks: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    """64 from the option and from the environment, with what was found."""
    monkeypatch.setenv("APP_TRAINER_RANKS", ranks)
    for arguments in ([], [f"--ranks={ranks}"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)

        assert caught.value.code == 64
        assert f"found {ranks!r}; expected a number from 1" in capsys.readouterr().err


def test_the_command_starts_without_torch_and_survives_a_reader_who_leaves(tmp_path: Path):
    """A bad job is told in a moment, GPU driver or not; ``run | head`` does not change the exit code."""
    words = ["-m", "app_trainer_sdk.run", "--job", str(tmp_path / "none"), "--job-dir", str(tmp_path / "dir")]
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen([sys.executable, "-X", "importtime", *words], stderr=subprocess.PIPE)
    imported = process.communicate(timeout=120)[1].decode()

    assert process.returncode == 64
    assert not re.search(r"\| +(torch|numpy|transformers|huggingface_hub)$", imported, re.MULTILINE)
    gone = subprocess.run([sys.executable, *words], stdout=writing, stderr=writing, timeout=120, check=False)
    os.close(writing)
    assert gone.returncode == 64


class Screen:
    """A terminal of 100 columns that remembers what was drawn."""

    def __init__(self) -> None:
        import fcntl
        import termios

        self.keyboard, self.inner = pty.openpty()
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.drawn = b""
        self.watching = threading.Thread(target=self._watch, daemon=True)
        self.watching.start()

    def _watch(self) -> None:
        while True:
            try:
                self.drawn += os.read(self.keyboard, 4096)
            except OSError:
                return

    def wait_for(self, text: bytes, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.drawn:
            assert time.monotonic() < deadline, self.drawn.decode()
            time.sleep(0.02)


@pytest.fixture(scope="module")
def interrupted(start_toy: Any) -> tuple[Any, str]:
    """The finished job once more, slower, on a terminal, ended by Ctrl-C in the middle."""
    screen = Screen()
    toy = start_toy(
        terminal=screen.inner, document={"trainer": held_trainers.TOY}, environment=holding(8), updates=12,
        learning_rate=0.01, noise=0.01, sleep_seconds=0.2,
    )  # fmt: skip
    os.close(screen.inner)
    screen.wait_for(b"updates/s")
    screen.wait_for(b" left")
    os.write(screen.keyboard, b"\x03")
    toy.end()
    screen.watching.join(60.0)
    return toy, screen.drawn.decode()


def test_a_terminal_shows_a_bar_with_rate_time_left_and_loss(interrupted: tuple[Any, str]):
    """Redrawn in place."""
    _, drawn = interrupted

    assert re.search(r"\r\x1b\[2K\[#*-+\] update \d+/12  loss \S+  \S+ (updates/s|s/update)  \d+ s left", drawn)
    assert "stopping after a checkpoint" in drawn


def test_ctrl_c_keeps_a_checkpoint_and_is_no_success(interrupted: tuple[Any, str]):
    """CASES L3, L4: exit code 75; one event says interrupted and it is not terminal; a checkpoint is there."""
    toy, drawn = interrupted
    events = toy.events()

    assert toy.code == 75, drawn
    assert (events[-1]["type"], events[-1]["code"]) == ("job.interrupted", 75)
    assert sum(event["type"] == "job.interrupted" for event in events) == 1
    assert not (toy.directory / "attempts" / "1" / "terminal.json").exists()
    assert (toy.result()["status"], toy.result()["exit_code"]) == ("interrupted", 75)
    assert toy.result()["failure"]["retry"] == "resume"
    assert "run the same command again" in drawn
    steps = [event["checkpoint"]["step"] for event in events if event["type"] == "job.checkpoint"]
    assert 0 < steps[-1] < 12
    assert rows(toy.directory / "metrics.jsonl")[-1]["step"] == steps[-1]


def test_the_same_command_goes_on_to_the_same_end(
    interrupted: tuple[Any, str], finished: Any, run_toy: Any, serve: Any
):
    """CASES B2, J4: bit for bit the uninterrupted run; callbacks hear accepted < progress < succeeded."""
    toy, _ = interrupted

    def answer(handler: Any, request: Any) -> None:
        time.sleep(0.3 if len(server.received) == 1 else 0.0)
        reply(handler, body=b'{"cancel": true}')

    server = serve(answer)
    waits = {"APP_TRAINER_UPLOAD_WAIT_SECONDS": "60", "APP_TRAINER_MIN_EVENT_INTERVAL": "0.1"}
    again = run_toy(again=toy, document={"callbacks": {"url": f"{server.url}/hook"}}, environment=waits)

    assert again.code == 0, again.told()
    assert re.search(r"resuming after update \d+", again.told())
    assert again.result()["attempt"] == 2
    assert finished.result()["outputs"] == again.result()["outputs"]
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        one, two = (
            [
                {key: value for key, value in row.items() if key not in TIMES}
                for row in rows(each.directory / name)
            ]
            for each in (finished, again)
        )
        assert one == two

    heard = [json.loads(request.body) for request in server.received]
    kinds = [event["type"] for event in heard]
    assert (kinds[0], kinds[-1]) == ("job.accepted", "job.succeeded")
    assert kinds.index("job.progress") < kinds.index("job.artifact")
    assert [event["seq"] for event in heard] == sorted({event["seq"] for event in heard})
    said = {event["id"]: event for event in again.events(2)}
    assert all(event == said[event["id"]] for event in heard)
    unheard = [said[name]["type"] for name in said.keys() - {event["id"] for event in heard}]
    assert set(unheard) <= {"job.progress"}


def test_everything_published_is_as_its_schema_says(finished: Any, interrupted: tuple[Any, str]):
    """An independent validator reads every event, job, result and manifest of real runs, one cut short."""
    for toy in (finished, interrupted[0]):
        folder = toy.directory
        for name in ("job", "result", "manifest"):
            validate(name, json.loads((folder / f"{name}.json").read_text()))
        for attempt in (folder / "attempts").iterdir():
            for line in (attempt / "events.jsonl").read_text().splitlines():
                validate("event", json.loads(line))


def validate(name: str, document: Any) -> None:
    """Raise where a document is not as its published schema says."""
    Draft202012Validator(schema_of(name)).validate(document)


def test_the_finished_report_is_for_people(finished: Any):
    """Status, training, evaluation, phases and outputs in one page."""
    text = (finished.directory / "report.md").read_text()

    for heading in ("succeeded", "## Training", "## Evaluation", "## Phases", "## Outputs"):
        assert heading in text
