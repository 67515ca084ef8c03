"""The documents are true: quoted code is the code, generated pages are fresh, links lead somewhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, train

from app_trainer_sdk.callbacks.signature import secret_bytes, signature_headers
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import CpuProbe
from app_trainer_sdk.values import Batch, Examination

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEMPLATE = ROOT / "app_trainer_sdk" / "templates" / "trainer" / "example_digits"


def test_write_a_trainer_quotes_the_code_that_new_writes():
    """Every Python block of the page stands in the template, and no method of the template is left out."""
    page = (ROOT / "docs" / "write-a-trainer.md").read_text()
    code = (TEMPLATE / "trainer.py").read_text() + (TEMPLATE / "digits.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    told = "".join(blocks)

    assert blocks
    for block in blocks:
        assert block.rstrip() in code
    for method in ("build_model", "dataset", "collate", "loss", "export", "replay"):
        assert f"def {method}(" in told


def test_the_code_of_the_page_on_phases_runs(tmp_path):
    """A trainer with the page's phase and dataset trains on its features; its scope gives back what it made."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "phases.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec("".join(code), names)  # the page itself
    trainer = make_trainer(
        lambda run: nn.Linear(8, 1),
        lambda modules, values, random: modules.root(torch.stack(values)).pow(2).sum(), (),
        preparation=("features",), phases=names["phases"], examine=lambda self, run: Examination(rows=10),
        dataset=lambda self, run, split: names["Encoded"](run) if split == "train" else (),
        collate=lambda self, run, items: Batch({}, len(items), {"ids": [], "values": items}),
    )  # fmt: skip
    training = train(trainer, tmp_path, global_batch=5, microbatch=5, epochs=1)
    rows: list[Any] = []
    run = dataclasses.replace(training.run, phase=Ledger(CpuProbe(), rows.append, policy="raise").phase)
    mean = names["mean_of"](run, nn.Linear(4, 2), [torch.ones(4)] * 3)

    assert training.run.facts["features"]["computed"] == 10
    assert len(training.applied()) == 2
    assert (mean.shape, rows[0].verdict, rows[0].handed) == ((2,), "released", 8)


def test_the_code_of_the_page_on_data_runs(tmp_path):
    """The dataset of the page is drawn by weight and batched by length and by group."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec("".join(code), names)  # the page itself
    sizes = [(1 + row % 5, 1 + row % 3) for row in range(40)]
    pictures = names["Pictures"](sizes, [row % 2 for row in range(40)])
    trainer = make_trainer(
        lambda run: nn.Linear(1, 1, bias=False),
        lambda modules, values, random: modules.root.weight.sum(),
        pictures,
    )
    seen = {}
    for asked in ({"sampling": "weighted"}, {"batching": "by_length"}, {"batching": "by_group"}):
        (name,) = asked.values()
        train(trainer, tmp_path / name, global_batch=2, microbatch=2, epochs=1, **asked)
        seen[name], trainer.trained[:] = list(trainer.trained), []
    lengths, groups = pictures.lengths(), pictures.groups()
    differences = [max(lengths[rows]) - min(lengths[rows]) for rows in seen["by_length"]]

    for name in ("replayed", "exact"):
        streaming = make_trainer(
            lambda run: nn.Linear(1, 1, bias=False), lambda modules, *_: modules.root.weight.sum(), names[name]
        )
        job = {"global_batch": 8, "updates": 16, "checkpoint_every": 1}
        train(streaming, tmp_path / name, stop_at=100, **job)
        seen[name] = train(streaming, tmp_path / name, **job).metrics()
        seen[f"{name} records"] = [row for rows in streaming.trained for row in rows]

    assert len(seen["exact"]) == 16
    assert seen["replayed"] == seen["exact"]
    assert {*range(100)} <= {*seen["exact records"]} == {*seen["replayed records"]}
    assert {row % 2 for rows in seen["weighted"] for row in rows} == {1}
    assert sum(differences) / len(differences) < 2 < max(lengths) - min(lengths)
    assert {len({groups[row] for row in rows}) for rows in seen["by_group"]} == {1}


def test_the_reference_is_generated_from_the_code():
    """The generated pages are what docs/make_reference.py writes."""
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.TARGET.read_text(encoding="utf-8") == module.reference()
    assert module.EVENTS.read_text(encoding="utf-8") == module.events_reference()


def test_the_control_plane_in_the_page_of_callbacks_works():
    """Its last blocks, as they stand; what it verifies is what a run signs."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "callbacks.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code[-2], {})
    exec(code[-1], names)
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b"{}"
    signed = signature_headers([b"other", secret_bytes(secret)], "j.1.1", body, seconds=int(time.time()))
    headers = {"webhook-id": "j.1.1", **signed}

    assert names["verified"](secret, headers, body)
    assert not names["verified"](secret, headers, b"[]")
    assert not names["verified"](secret, {**headers, "webhook-timestamp": "1"}, body)


def test_exit_codes_in_the_documents_are_those_of_the_code():
    """The table names every code with its number."""
    from app_trainer_sdk.errors import ExitCode

    table = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (\w+) \|", table, flags=re.MULTILINE))

    assert rows == {str(int(code)): code.name.lower() for code in ExitCode}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    """A relative link names a file that is there."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_cut_names_every_module_in_its_room():
    """A module that is new, moved or gone shows in the one table of all of them."""
    table = (ROOT / "docs" / "architecture" / "00-the-cut.md").read_text().split("```")[1]
    told: dict[str, set[str]] = {}
    room = ""
    for line in table.strip().splitlines():
        room = line[:14].strip().removeprefix("torch-free").rstrip("/") or (room if line[0] == " " else "")
        told.setdefault(room, set()).update(line[14:88].split())
    package = ROOT / "app_trainer_sdk"
    found = {
        room: {path.stem for path in (package / room).glob("*.py")} - {"__init__"}
        for room in told if room != "testing"
    }  # fmt: skip

    assert {room: told[room] for room in found} == found
    assert {path.parent.name for path in package.glob("*/__init__.py")} == set(told) - {""}
