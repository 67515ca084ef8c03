"""The describe document: valid against its schema, equal bytes, no torch, and told to people as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import empty_hooks
import offered
import pytest
from jsonschema import Draft202012Validator
from offered import DOCUMENT, MEASURED, TOY, Toy

from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.describe import describe_document, main, render
from app_trainer_sdk.describe_schema import DescribeDocument, document_schema
from app_trainer_sdk.describe_table import render_table


def test_the_document_keeps_its_schema():
    """The published schema, as any validator reads it, and the classes it comes from."""
    schema = document_schema()
    Draft202012Validator.check_schema(schema)
    read_back = json.loads(render(DOCUMENT))

    assert list(Draft202012Validator(schema).iter_errors(read_back)) == []
    assert DescribeDocument.model_validate(read_back).version_name == "app.trainer.describe/v1"


def test_every_default_of_every_model_passes_the_schema():
    """What a silent job gets is a job that would be accepted."""
    validator = Draft202012Validator(TOY["hyperparameters"])
    for model in TOY["models"]:
        for method in model["methods"].values():
            assert validator.is_valid(method["defaults"])


def test_defaults_are_complete_and_the_rows_win():
    """Class, then trainer, then model row; every setting is there."""
    tiny, nameless = (model["methods"] for model in TOY["models"])

    assert set(TOY["hyperparameters"]["properties"]) == set(tiny["lora"]["defaults"])
    assert {"learning_rate": 3e-4, "weight_decay": 0.1, "max_length": 64}.items() <= tiny["lora"][
        "defaults"
    ].items()
    assert nameless["lora"]["defaults"]["learning_rate"] == 1e-4
    assert tuple(tiny["full"]["defaults"][name] for name in ("learning_rate", "weight_decay")) == (1e-3, 0.0)


def test_floors_carry_their_grade():
    """Each method and inference; without evidence a floor is declared, and a missing one is null."""
    assert TOY["models"][0]["floors"] == {
        "lora": {"gib": 1.5, "grade": "measured", "evidence": MEASURED},
        "full": {"gib": 2.25, "grade": "declared", "evidence": {}},
        "inference": {"gib": None, "grade": None, "evidence": {}},
    }


def test_weights_say_what_and_from_where():
    """Sources in the order they are tried, and the bytes of all roles."""
    tiny, nameless = TOY["models"]

    assert tiny["weights"]["base"] == {
        "revision": "abc123",
        "size_bytes": 1_000,
        "sources": [
            {"kind": "package", "package": "tiny-weights", "file": "tiny.gguf", "sha256": "00ff"},
            {"kind": "hub", "repository": "owner/tiny"},
        ],
    }
    assert tiny["weights_bytes"] == 2_000
    assert (nameless["weights_bytes"], nameless["weights"]["base"]["size_bytes"]) == (None, None)


def test_phases_stand_in_order():
    """The trainer's preparation stands between reading the data and loading the model."""
    phases = [(phase["name"], phase["kind"]) for phase in TOY["phases"]]

    assert [name for name, _ in phases] == [
        "inputs",
        "examine",
        "encode",
        "load",
        "train",
        "evaluate",
        "export",
        "replay",
    ]
    assert [phase for phase in phases if phase[1] != "built_in"] == [("encode", "preparation")]


def test_facts_of_a_trainer():
    """Inputs, artifacts by method and requirements, with null where nothing is stated."""
    assert (TOY["name"], TOY["version"], TOY["methods"]) == ("toy", "3", ["lora", "full"])
    assert TOY["inputs"]["hints"] == {"description": "More.", "required": False}
    assert TOY["artifacts"] == {"lora": ["adapter", "samples"], "full": ["weights"]}
    assert TOY["requirements"] == {
        "host_memory_gib": 8,
        "disk_gib": None,
        "shared_memory_mib": None,
        "compute_capability": "8.0",
        "driver": None,
    }


def test_trainers_are_sorted_and_each_keeps_its_schema_once():
    """The order of the argument does not matter, and models do not repeat the settings."""
    other = type("Other", (SupervisedTrainer,), {**_facts_of(Toy), "name": "another"})

    assert describe_document([Toy, other]) == describe_document([other, Toy])
    assert [each["name"] for each in describe_document([Toy, other])["trainers"]] == ["another", "toy"]
    assert render(DOCUMENT).count('"$schema"') == 1


def _facts_of(trainer: type) -> dict:
    return {name: value for name, value in vars(trainer).items() if name != "__dict__" and name[:2] != "_a"}


def test_the_bytes_are_ascii_and_end_a_line():
    """Equal in any locale, fit for a label, and a text file."""
    text = render(DOCUMENT)

    assert text.isascii()
    assert text.endswith("}\n")
    with pytest.raises(ValueError, match="JSON compliant"):
        render({"gib": float("nan")})


def test_an_unknown_trainer_ends_with_64(capsys: pytest.CaptureFixture[str]):
    """Nothing on the output, the problem and a hint beside it."""
    status = main(["txet"])
    output = capsys.readouterr()

    assert (status, output.out) == (64, "")
    assert "/trainer: found 'txet'" in output.err
    assert "did you mean 'text'?" in output.err


@pytest.mark.parametrize("arguments", [["--nope"], ["--table", "--schema"], ["a", "b"]])
def test_wrong_arguments_end_with_64(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    """Never with 2, which no platform can tell from a shell's mistake."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 64
    assert capsys.readouterr().err.startswith("app-trainer describe: ")


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]):
    """``--schema`` needs no trainer."""
    status = main(["--schema"])

    assert status == 0
    assert document_schema() == json.loads(capsys.readouterr().out)


def describe(*arguments: str, directory: Path) -> bytes:
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONHASHSEED": "random"}
    command = [sys.executable, "-W", "error", "-m", "app_trainer_sdk.describe", *arguments]
    return subprocess.run(command, check=True, capture_output=True, env=environment).stdout


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder that holds the toy's module, beside a torch that cannot be imported."""
    (tmp_path / "toy_desk.py").write_text(Path(offered.__file__).read_text())
    (tmp_path / "empty_hooks.py").write_text(Path(empty_hooks.__file__).read_text())
    for name in ("torch", "numpy", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the driver is broken')")
    return tmp_path


def test_two_processes_print_equal_bytes_without_torch(desk: Path):
    """No clock, no hash seed, no torch: the bytes are the document's."""
    first, second = (describe("toy_desk:Toy", directory=desk) for _ in range(2))

    assert first == second == render(DOCUMENT).encode()


def test_a_process_prints_the_table(desk: Path):
    """The same table as from the document."""
    assert render_table(DOCUMENT) == describe("toy_desk:Toy", "--table", directory=desk).decode()


def test_the_installed_trainers_keep_the_schema(desk: Path):
    """What this installation serves is valid, from a process in which torch cannot be imported."""
    served = json.loads(describe(directory=desk))
    Draft202012Validator(document_schema()).validate(served)

    assert "text" in [trainer["name"] for trainer in served["trainers"]]
    for trainer in served["trainers"]:
        Draft202012Validator.check_schema(trainer["hyperparameters"])
