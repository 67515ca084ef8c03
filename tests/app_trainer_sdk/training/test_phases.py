"""Preparation phases: each made once, found again by its key, never half."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy
import pytest
import torch
from torch_helpers import StillProbe, make_trainer, open_training

from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.phases import phase_key, run_phases
from app_trainer_sdk.values import Phase


def trainer_with(*phases, preparation=("one", "two")):
    return make_trainer(
        lambda run: None, None, [1.0] * 4, preparation=preparation, phases=lambda self, run: list(phases)
    )


def write(text="data", **facts):
    def work(run, directory):
        calls.append(directory)
        (directory / "part").mkdir()
        (directory / "part" / "file").write_text(text)
        return facts

    calls = []
    work.calls = calls
    return work


def opened(tmp_path, *phases, **options):
    return open_training(trainer_with(*phases, **options), tmp_path / "job", updates=1, global_batch=1,
                         cache=tmp_path / "cache")  # fmt: skip


def test_results_are_files_and_facts(tmp_path):
    """A later phase and the trainer find an earlier one's directory and facts under its name."""
    seen = []

    def second(run, directory):
        seen.append((run.store["one"] / "part" / "file").read_text())
        return {"rows": run.facts["one"]["rows"] + 1}

    run = opened(tmp_path, Phase("one", write("encoded", rows=3)), Phase("two", second)).run

    assert seen == ["encoded"]
    assert (run.facts["one"], run.facts["two"]) == ({"rows": 3}, {"rows": 4})


def test_a_finished_phase_is_skipped(tmp_path):
    """I6: an equal key finds the result again, the row says so, and another key or trainer version does not."""
    work = write()
    phase = Phase("one", work, key={"encoder": "a"})
    rows = [opened(tmp_path, phase).rows[-1] for _ in range(2)]
    opened(tmp_path, Phase("one", work, key={"encoder": "b"}))
    run = opened(tmp_path, phase).run
    trainer = trainer_with(phase)()
    newer = make_trainer(lambda run: None, None, [1.0], version="2", preparation=("one",))()

    assert [row.reused for row in rows] == [False, True]
    assert len(work.calls) == 2
    assert phase_key(trainer, phase, run) != phase_key(newer, phase, run)


def test_what_a_result_depends_on(tmp_path):
    """I6: weights, data, earlier phases, precision and seed count without being named in the key."""
    (tmp_path / "rows.txt").write_text("one")
    run = dataclasses.replace(
        opened(tmp_path, Phase("one", write())).run, inputs={"dataset": tmp_path / "rows.txt"},
        identity={"weights/base": "hub@1"}, weights={"base": tmp_path},
    )  # fmt: skip
    phase, trainer = Phase("two", write()), trainer_with()()
    settings = run.settings.model_copy(update={"seed": 7})
    others = [
        dataclasses.replace(run, identity={"weights/base": "hub@2"}),
        dataclasses.replace(run, identity={**run.identity, "data": "fingerprint"}),
        dataclasses.replace(run, store={}), dataclasses.replace(run, dtype=torch.bfloat16),
        dataclasses.replace(run, settings=settings),
    ]  # fmt: skip
    keys = [phase_key(trainer, phase, each) for each in (run, *others)]
    narrow = [phase_key(trainer, Phase("two", write(), uses=()), each) for each in (run, *others)]
    (tmp_path / "rows.txt").write_text("two")
    changed = phase_key(trainer, phase, run)

    assert len({*keys, changed}) == 7
    assert len({*narrow}) == 1


@pytest.mark.parametrize("error", [ValueError("broken"), StopRequested("interrupted")])
def test_half_a_phase_is_nothing(tmp_path, error):
    """I6: a phase that failed or was stopped at half leaves nothing, and is made whole the next time."""

    def fails(run, directory):
        (directory / "half").write_text("half")
        raise error

    with pytest.raises(type(error)):
        opened(tmp_path, Phase("one", fails))

    assert [*(tmp_path / "cache" / "features").iterdir()] == []

    run = opened(tmp_path, Phase("one", write(rows=1))).run

    assert not (run.store["one"] / "half").exists()


def test_a_folder_without_facts_is_not_a_result(tmp_path):
    """I6: what a kill left in place of a result is not used and gives way."""
    phase = Phase("one", write())
    trainer = trainer_with(phase)()
    run = open_training(trainer_with(), tmp_path / "other", updates=1, global_batch=1).run
    folder = tmp_path / "cache" / "features" / phase_key(trainer, phase, run)
    folder.mkdir(parents=True)
    (folder / "half").write_text("half")
    run = opened(tmp_path, phase).run

    assert (run.store["one"] / "part" / "file").read_text() == "data"
    assert not (run.store["one"] / "half").exists()


def test_two_jobs_at_once(tmp_path):
    """Two jobs that make one phase at the same time both end with the result that was there first."""

    def slow(run, directory):
        (directory / "file").write_text("second")
        other = opened(tmp_path, Phase("one", write("first")))
        assert other.run.store["one"].is_dir()
        return {}

    run = opened(tmp_path, Phase("one", slow)).run

    assert (run.store["one"] / "part" / "file").read_text() == "first"


def test_draws_in_a_phase_are_its_own(tmp_path):
    """N4: a phase draws the same whatever ran before it, and leaves the generators as they were."""

    def draw(run, directory):
        return {"torch": float(torch.rand(())), "numpy": float(numpy.random.rand())}

    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    first = opened(tmp_path / "1", Phase("one", draw)).run.facts["one"]
    left = torch.rand(2)
    numpy.random.rand(7)
    second = opened(tmp_path / "2", Phase("one", draw)).run.facts["one"]

    assert first == second
    assert torch.equal(left, expected)


def test_an_undeclared_phase(tmp_path):
    """A phase that ``describe`` does not know is refused with the nearest name."""
    with pytest.raises(InternalError, match=r"phases\(\) returned 'latent'.*did you mean 'latents'"):
        opened(tmp_path, Phase("latent", write()), preparation=("latents",))


def test_every_phase_has_a_row(tmp_path):
    """Each phase is measured under its name with its key as inputs."""
    trainer = trainer_with(Phase("one", write(), key={"a": 1}), Phase("two", write()))()
    rows = []
    run = opened(tmp_path).run
    run_phases(trainer, run, Ledger(StillProbe(), rows.append))

    assert [(row.phase, dict(row.inputs)) for row in rows] == [("one", {"a": 1}), ("two", {})]
    assert isinstance(run.store["two"], Path)


def test_work_that_returns_nothing(tmp_path):
    """It has no facts, and its result is found again like any other."""
    phase = Phase("one", lambda run, directory: None)
    first, second = opened(tmp_path, phase), opened(tmp_path, phase)

    assert first.run.facts["one"] == {}
    assert second.rows[-1].reused


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"work": lambda run, directory: {"path": directory}},
            "the facts of the phase one cannot be kept: Object",
        ),
        ({"work": lambda run, directory: [1]}, r"the facts of the phase one is \[1\]; expected a mapping"),
        ({"key": {"encoder": Path("a")}}, "the key of the phase one cannot be kept: Object of type PosixPath"),
        (
            {"uses": ("weight",)},
            r"the phase one uses \('weight',\); expected a tuple of weights, inputs, phases",
        ),
        ({"uses": "seed"}, "the phase one uses 'seed'; expected a tuple of weights"),
    ],
)
def test_what_cannot_be_kept_is_told_by_the_phase(tmp_path, options, told):
    """What is wrong with a phase itself is told before its work."""
    with pytest.raises(InternalError, match=told):
        opened(tmp_path, Phase("one", **{"work": write(), **options}))
