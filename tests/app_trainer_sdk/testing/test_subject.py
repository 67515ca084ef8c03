"""What promises are about: a trainer, and the job it is checked with."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.testing.subject import Asked, Subject, refuse_if_not, source_of
from app_trainer_sdk.testing.toys import ToyTrainer
from app_trainer_sdk.testing.verdict import BrokenPromise

TOY = "app_trainer_sdk.testing.toys:ToyTrainer"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def test_the_first_model_and_method_are_taken():
    """A trainer may be given as a class, too; what the author sets is stronger than the kit's own."""
    job = Asked(ToyTrainer, hyperparameters={"updates": 5}).job({"updates": 3, "seed": 1})

    assert Asked(ToyTrainer).reference == TOY
    assert (job.model, job.hyperparameters["updates"], job.hyperparameters["seed"]) == ("toy-mlp", 5, 1)
    with pytest.raises(BadJob):
        Asked(TOY, model="no-such-model").job()


def test_a_subject_opens_itself_once(tmp_path):
    """And what was computed for one promise serves the next."""
    toy = Subject(Asked(TOY), tmp_path)
    trainer, run = toy.supervised()

    assert isinstance(trainer, ToyTrainer)
    assert toy.run is run
    assert toy.is_light
    assert toy.saved.section("model")


def test_what_a_method_returned_of_another_kind():
    """The message names the method; the file is the author's own."""
    refuse_if_not([], list, "show")
    with pytest.raises(BrokenPromise, match="show returned int; expected list"):
        refuse_if_not(1, list, "show")
    assert source_of(ToyTrainer) == "toys.py"
