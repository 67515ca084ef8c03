"""Optional operations are tried, and one that a job wants and that does not work ends it."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.handle import no_check
from app_trainer_sdk.training import qualify
from app_trainer_sdk.training.qualify import COMPILE, qualify_in_process, refuse_unqualified


def test_each_operation_is_tried_and_compared(monkeypatch):
    """On the CPU all work; each says so. Without a C++ compiler's half minute."""
    monkeypatch.setattr(qualify, "_compile", functools.partial(qualify._compile, backend="aot_eager"))
    found = qualify.document(torch.device("cpu"))

    assert found.keys() == {"optim_8bit", "torch_compile", "fused_attention"}
    assert all(each == {"qualified": True, "why": "tried"} for each in found.values()), found


def test_an_operation_that_fails_is_not_qualified():
    """Its own words, one line of them."""

    def fail(device):
        raise RuntimeError("no kernel image\nis available")

    assert qualify._problem(fail, torch.device("cpu")) == "RuntimeError: no kernel image"


def test_a_process_that_does_not_answer_qualifies_nothing(tmp_path):
    """As one that an operation ended."""
    found = qualify_in_process(tmp_path, no_check, module="app_trainer_sdk.no_such_module")

    assert [each["qualified"] for each in found.values()] == [False] * 3
    assert "ended with status 1" in found[COMPILE]["why"]


@pytest.mark.parametrize(
    ("effective", "qualified", "refused"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_only_what_is_wanted_and_does_not_work_is_refused(effective, qualified, refused):
    """With the operation's own words."""
    plan = SimpleNamespace(settings={COMPILE: SimpleNamespace(effective=effective)}, device="cuda: MI300X")
    tried = {COMPILE: {"qualified": qualified, "why": "RuntimeError: no kernel"}}
    if refused:
        with pytest.raises(HardwareUnfit, match=r"torch_compile does not work on cuda: MI300X: .*no kernel"):
            refuse_unqualified(tried, plan)
    else:
        refuse_unqualified(tried, plan)
