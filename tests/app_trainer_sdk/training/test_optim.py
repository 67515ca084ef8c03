"""Optimizers: what is built from the settings, and whether 8-bit state works on a device."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch_helpers import CPU

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.testing.compare import global_states, moved_generators
from app_trainer_sdk.training import optim


def network(width=8):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2))


class TestGroups:
    def test_scales_multiply_the_rate(self):
        """H2: each group's rate is the schedule's times its own scale, set anew and never multiplied twice."""
        model = network()
        groups = [
            {"params": model[0].parameters(), "lr_scale": 0.1},
            {"params": model[1].parameters(), "weight_decay": 0.5},
        ]
        optimizer = optim.build_optimizer(groups, Hyperparameters(), CPU, model)
        for _ in range(3):
            optim.set_learning_rate(optimizer, 0.2)

        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02, 0.2])
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]

    def test_frozen_parameters_are_left_out(self):
        """Only what trains is in the optimizer, and a group of frozen parameters disappears."""
        model = network()
        model[0].requires_grad_(False)
        groups = [{"params": model[0].parameters()}, {"params": model.parameters()}]
        optimizer = optim.build_optimizer(groups, Hyperparameters(), CPU, model)

        assert [len(group["params"]) for group in optimizer.param_groups] == [2]

    def test_nothing_trains(self):
        """A model whose every parameter is frozen is refused."""
        model = network().requires_grad_(False)
        with pytest.raises(InternalError, match="no parameter trains"):
            optim.build_optimizer([{"params": model.parameters()}], Hyperparameters(), CPU, model)

    @pytest.mark.parametrize(
        ("groups", "told"),
        [
            (lambda model: [model[0].parameters()], "has 1.weight, 1.bias in no group; expected each"),
            (lambda model: [model.parameters(), [model[1].bias]], "has 1.bias in two groups"),
            (
                lambda model: [[*model.parameters(), nn.Parameter(torch.ones(7))]],
                r"of the shape \(7,\) that is no",
            ),
        ],
    )
    def test_what_trains_is_in_one_group(self, groups, told):
        """F4: a parameter in no group would stay as it is for ever, while the loss curve looks normal."""
        model = network()
        made = [{"params": each} for each in groups(model)]
        with pytest.raises(InternalError, match=told):
            optim.build_optimizer(made, Hyperparameters(), CPU, model)

    def test_a_key_nobody_reads(self):
        """A group's key that has no meaning is told with those that have one."""
        model = network()
        with pytest.raises(InternalError, match="'lr'; expected lr_scale, params, weight_decay"):
            optim.build_optimizer([{"params": model.parameters(), "lr": 1.0}], Hyperparameters(), CPU, model)


class TestProbe:
    def test_a_real_step_leaves_nothing_behind(self):
        """G4: 8-bit AdamW is tried by one step on the device; no generator moves and no override stays."""
        from bitsandbytes.optim import GlobalOptimManager

        before, manager = global_states(), GlobalOptimManager.get_instance()
        overrides = (dict(manager.pid2config), dict(manager.index2config))

        assert optim.eight_bit_problem(CPU) == ""
        assert moved_generators(before) == []
        assert overrides == (manager.pid2config, manager.index2config)

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (RuntimeError("no kernel image\nis available"), "RuntimeError: no kernel image"),
            (ImportError("libbitsandbytes.so"), "ImportError: libbitsandbytes.so"),
            (NotImplementedError(), "NotImplementedError"),
        ],
    )
    def test_a_step_that_raises(self, error, told):
        """G4: a library that imports and whose step raises is told with the reason, like a missing one."""

        def step(device):
            raise error

        assert optim.eight_bit_problem(CPU, step) == told

    @pytest.mark.parametrize(
        ("code", "told"),
        [
            ("print('a greeting'); print('\"\"')", ""),
            ("print('\"RuntimeError: no kernel\"')", "RuntimeError: no kernel"),
            (
                "import os; os.write(2, b'Error no kernel image at line 9'); os._exit(1)",
                "a step of it ended its process with status 1, which said: Error no kernel image at line 9",
            ),
        ],
    )
    def test_a_step_that_ends_its_process(self, code, told):
        """On a card bitsandbytes exits where a kernel fails: the rank lives on and tells why."""
        program = (sys.executable, "-c", code)

        assert optim.eight_bit_problem_apart(torch.device("cuda", 0), program) == told
        assert optim.eight_bit_problem_apart(CPU, program) == ""

    def test_the_program_answers(self):
        """As the rank asks it, but for the device."""
        done = subprocess.run([*optim.PROGRAM, "cpu"], capture_output=True, text=True, check=True)

        assert done.stdout.splitlines()[-1] == '""'


class Tied(nn.Module):
    """An embedding tied to the last layer, and a layer between, all above the least quantised size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(90, 64)
        self.middle = nn.Linear(64, 80, bias=False)
        self.head = nn.Linear(64, 90, bias=False)
        self.head.weight = self.embed.weight


class TestEmbeddings:
    def test_their_state_stays_wide(self):
        """Embeddings, tied ones too, keep 32 bits beside quantised layers, and the optimizer says so."""
        model = Tied()
        groups = [{"params": [model.head.weight]}, {"params": [model.middle.weight]}]
        optimizer = optim.build_optimizer(groups, Hyperparameters(optim_8bit=True), CPU, model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        kinds = {name: optimizer.state[each]["state1"].dtype for name, each in model.named_parameters()}

        assert kinds == {"embed.weight": torch.float32, "middle.weight": torch.uint8}
        assert optim.required_dtypes(optimizer, model) == {
            model.embed.weight: torch.float32, model.middle.weight: torch.uint8,
        }  # fmt: skip

    def test_an_override_goes_with_its_parameter(self):
        """bitsandbytes knows parameters by address: what is freed leaves no override behind."""
        from bitsandbytes.optim import GlobalOptimManager

        overrides, model = GlobalOptimManager.get_instance().pid2config, Tied()
        before, place = len(overrides), id(model.embed.weight)
        settings = Hyperparameters(optim_8bit=True)
        optimizer = optim.build_optimizer([{"params": model.parameters()}], settings, CPU, model)
        kept = overrides[place]
        del model, optimizer
        gc.collect()

        assert kept == {"optim_bits": 32}
        assert len(overrides) <= before
        assert place not in overrides

    def test_what_a_trainer_overrides_stays(self):
        """A trainer's own override through bitsandbytes counts as asked for."""
        from bitsandbytes.optim import GlobalOptimManager

        model = Tied()
        overrides = GlobalOptimManager.get_instance()
        overrides.override_config(model.middle.weight, "optim_bits", 32)
        settings = Hyperparameters(optim_8bit=True)
        optimizer = optim.build_optimizer([{"params": model.parameters()}], settings, CPU, model)
        required = optim.required_dtypes(optimizer, model)
        del overrides.pid2config[id(model.middle.weight)]

        assert required[model.middle.weight] == torch.float32
