"""A new package trains at once, keeps every promise, and is refused where it could not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app_trainer_sdk.new import TEMPLATE, Names, main, write_package

ROOT = Path(__file__).parents[2]


def environment(tmp_path: Path) -> dict[str, str]:
    """A child that finds the SDK and no job of anybody else."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "APP_TRAINER_CACHE_DIR": str(tmp_path / "cache")}


def test_names_follow_from_one():
    """The author chooses one name; package and class follow."""
    assert Names.of("my-digits") == Names("my-digits", "my_digits", "MyDigits")
    assert Names.of("splat_trainer") == Names("splat_trainer", "splat_trainer", "Splat")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My-Trainer", "is no package name"),
        ("1st", "is no package name"),
        ("a b", "is no package name"),
        ("../up", "is no package name"),
        ("", "is no package name"),
        ("class", "is a word of python itself"),
        ("my-", "is no package name"),
        ("my_", "is no package name"),
        ("text", "is that of a trainer that is installed"),
        ("json", "would hide the package json"),
        ("app-trainer-sdk", "would hide the package app_trainer_sdk"),
        ("tests", "would hide the package tests"),
    ],
)
def test_bad_names_are_refused(name, told, tmp_path, capsys):
    """Nothing is written, the exit code is 64, and the message shows a good name."""
    code = main([name, "--directory", str(tmp_path)])

    assert code == 64
    error = capsys.readouterr().err
    assert told in error
    assert "such as my-trainer" in error
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path, capsys):
    """What is there already stays as it is."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work").write_text("precious")

    code = main(["mine", "--directory", str(tmp_path)])

    assert code == 64
    assert f"{tmp_path / 'mine'} exists already" in capsys.readouterr().err
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["work"]


def test_a_place_that_cannot_be_written_is_told(tmp_path, capsys):
    """A file where the directory should be is an error of three parts, not a traceback."""
    (tmp_path / "file").write_text("")

    code = main(["mine", "--directory", str(tmp_path / "file" / "deeper")])

    assert code == 64
    assert "change --directory" in capsys.readouterr().err


def test_a_missing_name_ends_with_64(capsys):
    """argparse's own code never leaves."""
    with pytest.raises(SystemExit) as ending:
        main([])

    assert ending.value.code == 64
    assert "NAME" in capsys.readouterr().err


def test_the_package_carries_its_name_everywhere(tmp_path, capsys):
    """No word of the template is left, and the next steps name the new trainer."""
    code = main(["my-digits", "--directory", str(tmp_path / "new" / "place")])

    folder = tmp_path / "new" / "place" / "my-digits"
    written = {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}
    assert code == 0
    assert sorted(written) == [
        "README.md", "job.json", "my_digits/__init__.py", "my_digits/digits.py", "my_digits/trainer.py",
        "pyproject.toml", "tests/test_trainer.py",
    ]  # fmt: skip
    assert [name for name, text in written.items() if "example" in text.lower()] == []
    assert json.loads(written["job.json"])["trainer"] == "my_digits.trainer:MyDigitsTrainer"
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert project["entry-points"]["app_trainer_sdk.trainers"] == {
        "my-digits": "my_digits.trainer:MyDigitsTrainer"
    }
    assert "app-trainer check my_digits.trainer:MyDigitsTrainer" in capsys.readouterr().out


def test_the_trainer_stays_about_sixty_lines():
    """The example an author copies is short: lines of code, without docstrings and empty lines."""
    text = (TEMPLATE / "example_digits" / "trainer.py").read_text()
    lines = [line.strip() for line in text.splitlines()]

    assert len([line for line in lines if line and not line.startswith(('"""', "#"))]) <= 70


def test_the_package_trains_without_being_installed(tmp_path):
    """``run`` works right after ``new``, and the accuracy on held-out digits rises."""
    folder = write_package("my-digits", tmp_path)
    command = [sys.executable, "-m", "app_trainer_sdk.run", "--job", "job.json", "--job-dir", "out", "--quiet"]

    done = subprocess.run(command, cwd=folder, env=environment(tmp_path), check=False)

    assert done.returncode == 0
    rows = [json.loads(line) for line in (folder / "out" / "evaluations.jsonl").read_text().splitlines()]
    assert rows[0]["accuracy"] < 0.3
    assert rows[-1]["accuracy"] > 0.8
    exported = sorted(each.name for each in (folder / "out" / "artifacts" / "weights").iterdir())
    assert exported == ["classes.json", "head.safetensors"]


def test_the_packages_own_test_passes(tmp_path):
    """Every promise is a test with its name. Those that need whole jobs of their own are the README's to run:
    ``check`` judges all of them there, of the same package.
    """  # fmt: skip
    folder = write_package("glyph-reader", tmp_path)
    quick = ["-k", "not job_runs and not replay and not killed and not stopped"]
    command = [sys.executable, "-m", "pytest", "-v", "-W", "error", "-p", "no:cacheprovider", *quick]

    done = subprocess.run(
        command, cwd=folder, env=environment(tmp_path), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    assert "test_export_from_a_checkpoint PASSED" in done.stdout
    assert "13 passed, 4 deselected" in done.stdout
