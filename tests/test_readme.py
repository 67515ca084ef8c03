"""The README's commands work as written, in order, in a new folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app_trainer_sdk.testing.conformance import PROMISES

ROOT = Path(__file__).parent.parent
FINISHED = "is already complete"


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Run every ``bash`` block of the README in one shell; the folder and what it printed."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "trainer_images").symlink_to(ROOT / "trainer_images")
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    script = "set -e\n" + "".join(blocks)
    # The first block puts .venv on the path; here it is wherever these tests run.
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    assert shutil.which("app-trainer", path=environment["PATH"])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder, done.stdout + done.stderr


def test_describe_writes_what_it_says(read):
    """models.json names the text trainer."""
    folder, _ = read

    assert json.loads((folder / "models.json").read_text())["trainers"][0]["name"] == "text"


def test_the_job_leaves_the_files_in_the_table(read):
    """Every file the README lists is there."""
    folder, _ = read
    for name in ("plan.json", "metrics.jsonl", "evaluations.jsonl", "phases.jsonl", "result.json", "report.md"):
        assert (folder / "out" / name).stat().st_size > 0

    assert (folder / "out" / "artifacts" / "adapter" / "adapter_config.json").is_file()
    assert list((folder / "out" / "checkpoints").glob("step-*"))


def test_the_second_run_says_so(read):
    """A finished directory is left as it is."""
    assert FINISHED in read[1]


def test_the_new_trainer_keeps_every_promise(read):
    """check prints no failure, and a line for each promise, those of whole jobs too."""
    assert "FAIL" not in read[1]
    for promise in PROMISES:
        assert f"pass  {promise.name}" in read[1]


def test_the_interrupted_run_goes_on(read):
    """The scaffold's run is stopped with exit code 75, and the last command completes it."""
    folder, told = read
    result = json.loads((folder / "my-digits" / "out" / "result.json").read_text())

    assert result["status"] == "succeeded"
    assert "exit code 75" in told
