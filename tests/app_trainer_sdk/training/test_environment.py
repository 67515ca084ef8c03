"""What a rank tells of its software and device."""

from __future__ import annotations

import json

import torch

from app_trainer_sdk.training.environment import describe_environment


def test_versions_flags_and_the_variables_that_change_numbers(monkeypatch):
    """As JSON; other variables, which may be secret, are not told."""
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("HF_TOKEN", "planted")
    told = describe_environment(torch.device("cpu"))

    assert told["torch"]["version"] == torch.__version__
    assert told["variables"]["MKL_CBWR"] == "COMPATIBLE"
    assert told["determinism"]["deterministic_algorithms"] is torch.are_deterministic_algorithms_enabled()
    assert told["determinism"]["tf32_convolutions"] is torch.backends.cudnn.allow_tf32
    assert told["devices"] == []
    assert "planted" not in json.dumps(told)
