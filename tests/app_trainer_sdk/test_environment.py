"""What is wrong in the environment is refused by every command that begins work, before anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app_trainer_sdk import pilot, run
from app_trainer_sdk.outputs import command as upload
from app_trainer_sdk.preflight import command as preflight

ROOT = Path(__file__).parents[2]
#: The ways in which code names a variable.
NAMED = re.compile(
    r"""(?:PREFIX \+ "|_environment\(\s*"|\{PREFIX\}|APP_TRAINER_)([A-Z][A-Z_]*[A-Z])(?![A-Z_])"""
)
WRONG = {
    "ATTEMPT": "0", "MIN_EVENT_INTERVAL": "abc", "GRACE_SECONDS": "-4", "STALL_SECONDS": "0",
    "HEARTBEAT_SECONDS": "1m", "UPLOAD_WAIT_SECONDS": "-1", "UPLOAD_BYTES_PER_SECOND": "fast",
    "CALLBACK_SECRET": "xyz", "ALLOW_HOSTS": "http://127.0.0.1:1", "DEADLINE": "soon", "LOG_FORMAT": "xml",
}  # fmt: skip
MAINS = {"run": run.main, "preflight": preflight.main, "pilot": pilot.main}


@pytest.mark.parametrize("main", MAINS.values(), ids=MAINS)
@pytest.mark.parametrize("name", WRONG)
def test_every_command_says_the_variable_and_ends_with_64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str,
    main: Callable[[list[str]], int],
):  # fmt: skip
    """Found, expected, which variable; nothing was made in the directory, and no secret is printed."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}))
    monkeypatch.setenv("APP_TRAINER_" + name, WRONG[name])

    assert main(["--job", str(job), "--job-dir", str(tmp_path / "job")]) == 64
    said = "".join(capsys.readouterr())
    assert f"APP_TRAINER_{name}" in said
    assert "expected" in said
    assert (WRONG[name] in said) == (name != "CALLBACK_SECRET")
    assert not (tmp_path / "job").exists()


def test_upload_says_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The attempt that only uploads is fenced by the same number."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "abc")

    assert upload.main([str(tmp_path)]) == 64
    assert "APP_TRAINER_ATTEMPT is 'abc'" in capsys.readouterr().err


def test_the_reference_lists_every_variable_of_the_code_and_no_other():
    """docs/reference/environment.md, whose names are whole: what is written there can be copied."""
    code = "".join(path.read_text() for path in (ROOT / "app_trainer_sdk").rglob("*.py"))
    used = set(NAMED.findall(code)) | {"CALLBACK_TOKEN_FILE", "CALLBACK_SECRET_FILE"}
    page = (ROOT / "docs/reference/environment.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]

    assert used == set(re.findall(r"`APP_TRAINER_([A-Z_]+)`", "".join(rows)))


def test_no_page_names_a_variable_without_its_prefix():
    """A reader copies it from the page that he reads."""
    bare = re.compile(
        r"`(?:MAX_RUNTIME_SECONDS|DEADLINE|[A-Z]+_SECONDS|ATTEMPT|CACHE_DIR|JOB_DIR|ALLOW_HOSTS)\b"
    )
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]

    assert {page.name: bare.findall(page.read_text()) for page in pages if bare.search(page.read_text())} == {}
