"""Whole jobs as processes of their own: where they look for modules, and what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app_trainer_sdk.testing import processes


def test_a_child_finds_the_same_modules_outside_of_any_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing of a job around reaches it but where the cache is."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", "/there")
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "7")
    (tmp_path / "of_the_author.py").write_text("WORD = 'found'")
    told = processes.environment()
    code = "import of_the_author; print(of_the_author.WORD)"
    said = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True)

    assert said.stdout == "found\n"
    assert told["APP_TRAINER_CACHE_DIR"] == "/there"
    assert "APP_TRAINER_ATTEMPT" not in told


def test_a_kill_ends_children_first_and_is_waited_for():
    """As a machine that dies would: nothing of the job writes on."""
    sleeps = "import time; time.sleep(600)"
    code = f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', '{sleeps}']); "
    code += f"print(c.pid, flush=True); {sleeps}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    alive = processes._alive(child)
    processes._kill(process)
    process.stdout.close()

    assert alive
    assert not processes._alive(child)
    assert process.returncode == -9


def test_what_a_job_left(tmp_path: Path):
    """Its result, its console, where the last attempt went on; of a job that left nothing, the code."""
    (tmp_path / "console").write_text("error: no such thing\n")
    first = processes._told(tmp_path, 64)
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "events.jsonl").write_text(json.dumps({"type": "job.plan", "resumed": 8}) + "\n")
    (tmp_path / "result.json").write_text(json.dumps({"status": "interrupted"}))
    second = processes._told(tmp_path, 75, step=8)

    assert (first.code, first.result, first.resumed) == (64, {}, None)
    assert "no such thing" in first.tail()
    assert second.resumed == 8
    assert processes.interrupted_well(second)
    assert not processes.interrupted_well(first)
