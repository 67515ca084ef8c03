"""Tensors that somebody else wrote."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file

from app_trainer_sdk.errors import BadData, BadJob
from app_trainer_sdk.training.tensors import load_tensors

TENSORS = {"a": torch.arange(3.0)}


class Harm:
    """Runs code when it is read."""

    def __reduce__(self):
        return open, ("/tmp/harmed", "w")


def test_safetensors_are_data(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors")

    assert torch.equal(load_tensors(tmp_path / "x.safetensors")["a"], TENSORS["a"])


def test_a_pickle_needs_the_job_s_word(tmp_path):
    torch.save(TENSORS, tmp_path / "x.pt")

    with pytest.raises(BadJob, match="/weights/base"):
        load_tensors(tmp_path / "x.pt")
    assert torch.equal(load_tensors(tmp_path / "x.pt", allowed={"pickle"})["a"], TENSORS["a"])


@pytest.mark.parametrize("content", [Harm(), {"a": Harm()}, [1], {"a": 1}])
def test_even_an_allowed_pickle_runs_nothing(tmp_path, content):
    """Only tensors are taken from it."""
    file = tmp_path / "x.bin"
    torch.save(content, file)

    with pytest.raises(BadData, match=r"x\.bin"):
        load_tensors(file, allowed={"pickle"})

    file.write_bytes(pickle.dumps(content))

    with pytest.raises(BadData, match=r"x\.bin"):
        load_tensors(file, allowed={"pickle"})
