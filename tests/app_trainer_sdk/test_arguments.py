"""What every command says to a wrong request, and to a path that is not what was meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.arguments import existing, existing_file, existing_folder, write_document
from app_trainer_sdk.cli import VERBS, main
from app_trainer_sdk.errors import BadJob

JOB = {"trainer": "text", "model": "smollm2-135m-instruct", "inputs": {"dataset": "rows.jsonl"}}

#: What each command is given a path for, by the argument its message must name.
WANT_A_FOLDER = {
    "upload": ("DIR", ["upload", "PATH"]),
    "events": ("DIR", ["events", "flush", "PATH"]),
    "health": ("DIR", ["health", "PATH"]),
    "checkpoints": ("DIR", ["checkpoints", "PATH"]),
    "cache": ("--cache-dir", ["cache", "verify", "--cache-dir", "PATH"]),
    "mirror": ("SOURCE", ["mirror", "PATH", "--base-url", "https://host/weights"]),
}
WANT_A_FILE = {
    "run": ("--job", ["run", "--job", "PATH", "--job-dir", "out"]),
    "pilot": ("--job", ["pilot", "--job", "PATH", "--job-dir", "out"]),
    "preflight": ("--job", ["preflight", "--job", "PATH", "--job-dir", "out"]),
    "plan": ("--job", ["plan", "--job", "PATH"]),
    "plan, prices": ("--prices", ["plan", "--job", "job.json", "--gpu", "L4", "--prices", "PATH"]),
    "plan, pilot": ("--pilot", ["plan", "--job", "job.json", "--gpu", "L4", "--pilot", "PATH"]),
    "reproduce": ("MANIFEST", ["reproduce", "PATH"]),
    "mirror, check": ("SOURCE", ["mirror", "PATH", "--check"]),
}
MAKE_A_FOLDER = {
    "run": ("--job-dir", ["run", "--job", "job.json", "--job-dir", "PATH"]),
    "pilot": ("--job-dir", ["pilot", "--job", "job.json", "--job-dir", "PATH"]),
    "listen": ("FOLDER", ["listen", "PATH", "--port", "0"]),
    "check": ("--keep", ["check", "text", "--input", "dataset=rows.jsonl", "--keep", "PATH"]),
}
#: Commands that are given a name or a number, and no path that must be there.
NO_PATH = {"new", "describe", "floors", "schema"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, and nothing that a command could find elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    return tmp_path


def answer(arguments: list[str], path: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main([path if each == "PATH" else each for each in arguments])
    told = capsys.readouterr()
    return code, told.err + told.out


@pytest.mark.parametrize(("setting", "arguments"), [*WANT_A_FOLDER.values(), *WANT_A_FILE.values()])
def test_a_path_that_is_not_there(
    here: Path, capsys: pytest.CaptureFixture[str], setting: str, arguments: list[str]
):
    """64 from every command, with what was found, what was expected, and which argument; nothing is made."""
    code, told = answer(arguments, "absent", capsys)

    assert code == 64
    assert "nothing at absent; expected " in told
    assert f"; change {setting}" in told
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("given", "setting", "arguments"),
    [
        *(("a file at job.json", *each) for each in WANT_A_FOLDER.values()),
        *(("a folder at folder", *each) for each in WANT_A_FILE.values()),
    ],
)
def test_a_path_of_the_other_kind(
    here: Path, capsys: pytest.CaptureFixture[str], given: str, setting: str, arguments: list[str]
):
    """The same answer to a file for a folder, and to a folder for a file."""
    (here / "folder").mkdir()
    code, told = answer(arguments, given.rpartition(" ")[2], capsys)

    assert code == 64
    assert f"{given}; expected " in told
    assert f"; change {setting}" in told


@pytest.mark.parametrize(("setting", "arguments"), MAKE_A_FOLDER.values())
def test_a_file_where_a_folder_is_made(
    here: Path, capsys: pytest.CaptureFixture[str], setting: str, arguments: list[str]
):
    """A command that makes its folder does not write into a file's place."""
    before = (here / "rows.jsonl").read_text()
    code, told = answer(arguments, "rows.jsonl", capsys)

    assert code == 64
    assert "a file at " in told
    assert f"; change {setting}" in told
    assert (here / "rows.jsonl").read_text() == before


def test_an_input_of_a_check_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]):
    """The caller's mistake, and no broken promise."""
    code, told = answer(["check", "text", "--input", "dataset=PATH", "--only", "contract"], "", capsys)

    assert code == 64
    assert "nothing at " in told
    assert "change --input dataset=PATH" in told


def test_every_command_is_here():
    """A new one says what it does with a path."""
    told = {each.partition(",")[0] for each in (*WANT_A_FOLDER, *WANT_A_FILE, *MAKE_A_FOLDER)}

    assert set(VERBS) == told | NO_PATH


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_that_does_not_exist(verb: str, capsys: pytest.CaptureFixture[str]):
    """64 from the module too, not only through the console script: argparse's own 2 means nothing."""
    module = __import__(f"app_trainer_sdk.{VERBS[verb][0]}", fromlist=["main"])
    with pytest.raises(SystemExit) as ending:
        module.main([*(["flush"] if verb == "events" else []), "--no-such-option"])

    assert ending.value.code == 64
    assert f"app-trainer {verb}" in capsys.readouterr().err


def test_a_link_to_nothing(tmp_path: Path):
    """Is told as one: the link is there, and what it means is not."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")

    for check in (existing, existing_file, existing_folder):
        with pytest.raises(BadJob, match=r"a link to nothing at .*; expected a thing; change DIR"):
            check(link, "a thing", "DIR")


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--job-dir", ["run", "--job", "job.json", "--job-dir", ""]),
        ("--job", ["plan", "--job", ""]),
        ("DIR", ["events", "flush", ""]),
    ],
)
def test_nothing_is_no_path(here: Path, capsys: pytest.CaptureFixture[str], option: str, arguments: list[str]):
    """``--job-dir "$UNSET"`` trains nowhere, and not where one stands."""
    code, told = answer(arguments, "", capsys)

    assert code == 64
    assert f"argument {option}: found ''; expected a path" in told
    assert sorted(each.name for each in here.iterdir()) == ["job.json", "rows.jsonl"]


def test_a_path_that_no_document_can_name(here: Path, capsys: pytest.CaptureFixture[str]):
    """Reports and events are UTF-8, and would fail at a path that is not; nothing has begun."""
    code, told = answer(["run", "--job", "job.json", "--job-dir", "caf\udce9"], "", capsys)

    assert code == 64
    assert r"argument --job-dir: found 'caf\udce9'; expected a path in UTF-8" in told
    assert sorted(each.name for each in here.iterdir()) == ["job.json", "rows.jsonl"]


def test_an_empty_variable_is_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As shells and platforms write one that they do not set."""
    monkeypatch.setenv("APP_TRAINER_JOB_DIR", "")

    assert answer(["health"], "", capsys)[1].startswith("health: nothing at /job")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "--job", "job.json", "--ranks", "0"], "--ranks: found '0'; expected a number from 1 to 1024"),
        (
            ["run", "--job", "job.json", "--ranks", "two"],
            "--ranks: found 'two'; expected a number from 1 to 1024",
        ),
        (["run", "--job", "http://[half/?sig=x"], "--job: found no URL"),
        (["run", "--job", "https:///job.json"], "--job: found no URL"),
        (["listen", "desk", "--port", "99999"], "--port: found '99999'; expected a number from 0 to 65535"),
        (["check", "text", "--only", "contrakt"], "expected a word of --list (did you mean 'contract'?)"),
        (["check", "my_trainer", "--only", "contract"], "installed trainer, or package.module:Class (known: "),
    ],
)
def test_a_value_that_cannot_be(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
):
    """Found, expected, which argument; nothing has begun."""
    code, said = answer(
        [*arguments, *(["--input", "dataset=rows.jsonl"] * (arguments[1] == "text"))], "", capsys
    )

    assert code == 64
    assert told in said


@pytest.mark.parametrize("path", ["x" * 300, "job.json/x"])
def test_a_folder_that_cannot_be_made(here: Path, capsys: pytest.CaptureFixture[str], path: str):
    """A name that is too long, or one below a file."""
    code, told = answer(["run", "--job", "job.json", "--job-dir", "PATH"], path, capsys)

    assert code == 64
    assert "; expected a folder that can be written; change --job-dir" in told


def test_a_path_where_nobody_may_look(monkeypatch: pytest.MonkeyPatch):
    """It may be there, and the message does not say that it is not."""

    def refuse(path: Path, **how: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)

    with pytest.raises(BadJob, match="nothing to be seen at /job; expected a job; change DIR"):
        existing(Path("/job"), "a job", "DIR")


@pytest.mark.parametrize("place", ["rows.jsonl/x.json", "."])
def test_a_document_that_cannot_be_written(here: Path, place: str):
    """Where a command was to write it, and not a traceback."""
    with pytest.raises(BadJob, match=r"; expected a file that can be written; change --write"):
        write_document(Path(place), {}, "--write")

    write_document(here / "new" / "x.json", {"a": 1}, "--write")
    assert json.loads((here / "new" / "x.json").read_text()) == {"a": 1}
