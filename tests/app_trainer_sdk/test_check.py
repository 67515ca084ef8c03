"""The command: one line for each promise, and an exit code that tells kept, broken and unaskable apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.check import main
from app_trainer_sdk.testing.conformance import PROMISES

TOY = "app_trainer_sdk.testing.toys:ToyTrainer"
BROKEN = Path(__file__).parent / "testing"


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN))
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def test_kept_promises_end_with_0(capsys):
    """Each promise is a line, with what was measured, and a sum at the end."""
    code = main([TOY, "--only", "contract", "--only", "plan from defaults", "--set", "updates=12"])

    assert code == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "pass  contract"
    assert second == "pass  plan from defaults  (12 updates × 8 examples)"
    assert last.startswith("2 kept, 0 broken, 0 skipped in ")


def test_a_broken_promise_ends_with_70(capsys):
    """The line says which promise, what was found, what was expected and what to change."""
    code = main(["broken_trainers:MeanLoss", "--only", "loss can be split"])

    assert code == 70
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("FAIL  loss can be split: cut into microbatches of 4 + 4 rows")
    assert "; expected at most 0.1%; change loss to return the sum" in line


def test_settings_are_json_or_words(capsys):
    """``--set`` reads numbers as numbers and leaves words as they are."""
    code = main([TOY, "--only", "two updates", "--set", "noise=0.0", "--set", "schedule=constant"])

    assert code == 0
    assert capsys.readouterr().out.startswith("pass  two updates  (losses ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["app_trainer_sdk.testing.toys:NoTrainer"], "there is no such trainer"),
        ([TOY, "--model", "toy-mpl"], "did you mean 'toy-mlp'?"),
        ([TOY, "--method", "lora"], "--method: found 'lora'"),
        ([TOY, "--input", "data=somewhere"], "--input data=PATH: found 'data'"),
        (["trainer_images.text.trainer:TextTrainer"], "--input dataset=PATH: found nothing; expected"),
        ([TOY, "--input", "dataset"], "--input name=value"),
        ([TOY, "--set", "lernrate=1"], "--set lernrate=VALUE: found"),
        ([TOY, "--only", "contrakt"], "did you mean 'contract'?"),
        ([], "expected a trainer's name"),
    ],
)
def test_what_cannot_be_checked_ends_with_64(arguments, told, capsys):
    """A mistake of the caller is no broken promise."""
    code = main(arguments)

    assert code == 64
    assert told in capsys.readouterr().err


def test_a_trainer_that_does_not_import_breaks_the_contract(tmp_path, monkeypatch, capsys):
    """The author's own mistake is the first promise's reason, and the exit code 70."""
    (tmp_path / "half_written.py").write_text(
        "from app_trainer_sdk import SupervisedTrainer\n\nclass Half(SupervisedTrainer):\n    name = 'half'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    code = main(["half_written:Half", "--only", "contract"])

    assert code == 70
    assert "FAIL  contract: " in (line := capsys.readouterr().out)
    assert "Half: does not define" in line


def test_the_list_tells_every_promise(capsys):
    """``--list`` explains the promises without a trainer."""
    code = main(["--list"])

    assert code == 0
    out = capsys.readouterr().out
    assert all(each.name in out and each.meaning in out for each in PROMISES)
