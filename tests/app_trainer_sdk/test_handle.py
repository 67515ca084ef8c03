"""The ``run`` handle: randomness by position, tracked work, and inputs that stay inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.errors import BadJob, InputMissing, InternalError, StopRequested
from app_trainer_sdk.handle import Run
from app_trainer_sdk.hyperparameters import Hyperparameters


def a_run(tmp_path, **options):
    return Run(
        settings=Hyperparameters(seed=options.pop("seed", 3)), model=ModelRow("m", "A model", parameters=1),
        method="full", directory=tmp_path, cache=tmp_path, **options,
    )  # fmt: skip


def test_randomness_follows_seed_and_key(tmp_path):
    """N4: equal seeds and keys draw equally, another seed or key does not."""
    draws = [
        a_run(tmp_path, seed=seed).random(*key).python.random()
        for seed, key in ((3, ("caption", 1)), (3, ("caption", 1)), (4, ("caption", 1)), (3, ("caption", 2)))
    ]

    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_tracked_work_reports(tmp_path):
    """Every item is told with the total, and comes out as it is."""
    told = []
    run = a_run(tmp_path, progress=lambda *facts: told.append(facts))

    assert [*run.track("abc", "reading")] == ["a", "b", "c"]
    assert told == [("reading", 0, 3), ("reading", 1, 3), ("reading", 2, 3)]
    assert [*run.track(iter("ab"), "reading")] == ["a", "b"]
    assert told[-1] == ("reading", 1, None)
    assert [*run.track(iter("a"), "reading", total=9)] == ["a"]
    assert told[-1] == ("reading", 0, 9)


def test_tracked_work_stops(tmp_path):
    """L4: a wish to stop is noticed before the next item, and after the last."""
    asked = iter([False, False, True])

    def check():
        if next(asked):
            raise StopRequested("canceled")

    done = []
    with pytest.raises(StopRequested):
        done += a_run(tmp_path, check=check).track(range(5), "reading")

    asked = iter([False, True])
    with pytest.raises(StopRequested):
        [*a_run(tmp_path, check=check).track([1], "reading")]


def test_input_files(tmp_path):
    """An input that is a file is itself; inside a folder files are named."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_text("{}")
    run = a_run(tmp_path, inputs={"folder": tmp_path / "data", "file": tmp_path / "data" / "rows.jsonl"})

    assert run.input_file("folder", "rows.jsonl") == tmp_path / "data" / "rows.jsonl"
    assert run.input_file("file") == run.input_file("file", "ignored") == tmp_path / "data" / "rows.jsonl"


@pytest.mark.parametrize("file", ["../secret", "link", "/etc/passwd", "a\0b"])
def test_nothing_outside_an_input(tmp_path, file):
    """A path that leads outside its input, by dots, a link or the root, is refused."""
    (tmp_path / "data").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")

    with pytest.raises(BadJob, match="leads outside the input 'folder'"):
        a_run(tmp_path, inputs={"folder": tmp_path / "data"}).input_file("folder", file)


def test_missing_inputs(tmp_path):
    """An input or file that is not there is named with the setting to change."""
    run = a_run(tmp_path, inputs={"folder": tmp_path})

    with pytest.raises(InputMissing, match=r"no input 'images'.*change /inputs/images"):
        run.input_file("images")
    with pytest.raises(InputMissing, match=r"no file .*rows"):
        run.input_file("folder", "rows")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    """A file inside a folder is looked at like the input itself: without the right to read it is missing."""
    (tmp_path / "rows").write_text("{}")
    monkeypatch.setattr("os.access", lambda path, mode: False)

    with pytest.raises(InputMissing, match=r"rows cannot be read.*change /inputs/folder"):
        a_run(tmp_path, inputs={"folder": tmp_path}).input_file("folder", "rows")


def test_a_run_cannot_be_changed(tmp_path):
    """A trainer keeps nothing on the handle."""
    with pytest.raises(AttributeError):
        a_run(tmp_path).method = "lora"

    assert isinstance(a_run(tmp_path).directory, Path)


def test_a_scope_where_nothing_is_measured(tmp_path):
    """A trainer's scopes work without a ledger: what is handed over is given back as it is."""
    with a_run(tmp_path).phase("encode") as row:
        taken = row.hand_over([1, 2])

    assert taken == [1, 2]


def test_a_phase_that_has_not_finished_is_told_by_name(tmp_path):
    """A dataset that reads a phase's files cannot count rows for the plan: the words say who must."""
    run = a_run(tmp_path)
    with pytest.raises(
        InternalError, match="'tokens' was asked for, and no phase has finished so far; expected"
    ):
        run.store["tokens"]
    run.facts["weights"] = {"bytes": 1}
    with pytest.raises(InternalError, match=r"weights has finished so far; .* change who asks: examine comes"):
        run.facts["tokens"]

    assert run.facts["weights"] == {"bytes": 1}
    assert "tokens" not in run.store
