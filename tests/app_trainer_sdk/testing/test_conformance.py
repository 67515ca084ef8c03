"""The kit can fail: each broken trainer breaks exactly its promise, with a reason an author can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.testing import Asked, check_trainer
from app_trainer_sdk.testing.conformance import PROMISES

HERE = Path(__file__).parent
IN_PROCESSES = {"describe without torch", "job runs to its end", "replay in a new process",
                "killed and resumed bit-identical", "stopped with a checkpoint"}  # fmt: skip
QUICK = [each.name for each in PROMISES if each.name not in IN_PROCESSES]


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def judge(name: str, only=QUICK, **settings):
    """Every quick promise of a trainer, by name."""
    asked = Asked(f"broken_trainers:{name}", hyperparameters=settings)
    return {each.name: each for each in check_trainer(asked, only=only)}


def failures(results) -> dict[str, str]:
    return {name: each.reason for name, each in results.items() if each.status == "fail"}


@pytest.mark.parametrize(
    ("trainer", "promise", "told"),
    [
        ("MeanLoss", "loss can be split", ["4 + 4", "the sum over units, never a mean"]),
        ("OneUnit", "loss can be split", ["8 rows have 1 units at once and 2", "what collate counts"]),
        ("NumpyItems", "items are pure", ["item 0 moved the global generator of numpy", "uses_global_random"]),
        ("CountingItems", "items are pure", ["when asked again", "keeps state between calls"]),
        ("NumpyLoss", "loss is one pure sum", ["global generator of numpy", "draws from `random`"]),
        ("ShortLargest", "largest batch", ["for 1 and 2 rows x has 8 and 8 values", "change largest_batch"]),
        ("LightLargest", "largest batch", ["2 real rows have 16 values of x", "no real batch to be heavier"]),
        ("RestlessExamine", "examine is deterministic", ["fingerprint", "when asked twice"]),
        ("ForgetfulStream", "items are pure", ["the records", "begun again from {'read': 0}", "'not exact'"]),
        ("RestlessStream", "items are pure", ["the records", "begun again from None", "'not exact'"]),
        ("Misgrouping", "examine is deterministic", ["groups of [40] rows", "[14, 13, 13]"]),
        ("Miscounting", "examine is deterministic", ["41 rows and dataset('train') has 40"]),
        ("TrainingMeasure", "evaluation leaves no trace", ["changed snapshot.tensors['model/0.0.weight']"]),
        ("ExportFromMemory", "export from a checkpoint", ["_modules", "broken_trainers.py, line"]),
        ("ExportOfNothing", "export from a checkpoint", ["two different checkpoints give the same artifact"]),
        ("ExportElsewhere", "export from a checkpoint", ["export wrote nothing to weights"]),
        ("EndlessLoss", "two updates", ["loss inf non-finite loss or gradient"]),
        ("HalfRestored", "checkpoint holds everything", ["['optimizer/momentum'] differs", "begin"]),
    ],
)  # fmt: skip
def test_exactly_the_broken_promise_fails(trainer, promise, told):
    """A broken trainer fails its own promise and no other that can be judged."""
    only = [each for each in QUICK if not (trainer == "EndlessLoss" and each == "loss can be split")]

    found = failures(judge(trainer, only))

    assert list(found) == [promise]
    assert [word for word in told if word not in found[promise]] == [], found[promise]


def test_what_builds_on_a_broken_promise_is_not_judged():
    """Rows without units are told once; the promises about the loss say why they are skipped."""
    results = judge("NoUnits", ["collate counts units", "loss is one pure sum", "loss can be split"])

    assert "the first 32 rows have no unit" in results["collate counts units"].reason
    assert results["loss is one pure sum"].line() == (
        "skip  loss is one pure sum: not judged, since 'collate counts units' does not hold"
    )
    assert results["loss can be split"].status == "skip"


def test_an_exception_of_the_author_is_told_with_its_line():
    """What the trainer raises is the reason, with the author's own line."""
    result = judge("FailingCollate", ["collate counts units"])["collate counts units"]

    assert result.reason.startswith("ValueError: no such column; raised in broken_trainers.py, line ")
    assert result.reason.endswith("failing_collate")


def test_a_phase_that_keeps_its_encoder():
    """D1: an author hears of what a phase keeps, by the name of its holder."""
    result = judge("KeepingPhase", ["collate counts units"])["collate counts units"]

    assert result.status == "fail"
    assert "phase encode kept 39.5 KiB: broken_trainers.ENCODERS['last'] (Linear of 2 tensors" in result.reason


@pytest.mark.parametrize("resume", ["exact", "by replay", "not exact"])
def test_streams_keep_every_promise(resume):
    """The toy as a stream of each kind, one whose place is lost included."""
    asked = Asked("app_trainer_sdk.testing.toys:ToyTrainer", hyperparameters={"stream": resume, "updates": 8})
    results = {each.name: each for each in check_trainer(asked, only=QUICK)}

    assert failures(results) == {}


@pytest.mark.parametrize("trainer", ["TorchNoise", "DeclaredItems"])
def test_allowed_randomness_keeps_every_promise(trainer):
    """torch's generator in a loss, and declared global generators in items, are seeded by the SDK."""
    results = judge(trainer)

    assert failures(results) == {}
    assert all(each.status == "pass" for each in results.values())


def test_a_forgetful_snapshot_fails_only_where_a_job_is_killed():
    """Momentum that no checkpoint holds shows when a real process is killed; nothing else is blamed."""
    results = {each.name: each for each in check_trainer(Asked("broken_trainers:ForgetfulTrainer"))}

    found = failures(results)
    assert list(found) == ["killed and resumed bit-identical"]
    assert "loss of step" in found["killed and resumed bit-identical"]
    assert "change what snapshot holds" in found["killed and resumed bit-identical"]
    skipped = [each.line() for each in results.values() if each.status == "skip"]
    assert len(skipped) == 5
    assert all(line.endswith(": not a SupervisedTrainer") for line in skipped)
    assert results["stopped with a checkpoint"].status == "pass"


def test_an_unknown_promise_is_refused():
    """A typo in ``only`` gets the nearest name."""
    with pytest.raises(BadJob, match="did you mean 'largest batch'"):
        list(check_trainer(Asked("broken_trainers:MeanLoss"), only=["largest bach"]))


def test_every_promise_says_what_it_promises():
    """Docstrings are what ``--list`` and pytest show."""
    assert all(each.meaning.endswith(".") for each in PROMISES)
