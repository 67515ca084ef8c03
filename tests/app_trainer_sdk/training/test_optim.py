"""Optimizers: what is built from the settings, and state that comes back bit for bit in its own dtype."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU, as_bytes, same_tensors

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import optim
from app_trainer_sdk.training.checkpoint import CheckpointStore, copied, load_checkpoint
from app_trainer_sdk.values import Snapshot


def network(seed=1, dtype=torch.float32, width=8):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2)).to(dtype)


def step(model, optimizer, number):
    """One update with made-up gradients."""
    for place, parameter in enumerate(model.parameters()):
        values = torch.sin(torch.arange(parameter.numel()) * 0.3 + number + place).reshape(parameter.shape)
        parameter.grad = values.to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad()


def saved_and_loaded(tmp_path, model, optimizer):
    """The optimizer's state as a checkpoint on disk gives it back."""
    tensors, values = optim.optimizer_snapshot(optimizer, optim.parameter_names(model))
    snapshot = copied(Snapshot({f"optimizer/{name}": each for name, each in tensors.items()}, {"o": values}))
    loaded = load_checkpoint(CheckpointStore(tmp_path, "mine").save(3, snapshot, {}))
    assert same_tensors(loaded.section("optimizer"), tensors)
    return loaded.section("optimizer"), loaded.values["o"]


def continues_exactly(tmp_path, model, make):
    """Three steps, save, load into a twin; both make step 4 and agree in every bit of weights and state."""
    optimizer = make(model)
    for number in range(3):
        step(model, optimizer, number)
    tensors, values = saved_and_loaded(tmp_path, model, optimizer)
    twin = network(dtype=next(model.parameters()).dtype, width=model[0].in_features)
    twin.load_state_dict(model.state_dict())
    resumed = make(twin)
    optim.restore_optimizer(resumed, optim.parameter_names(twin), tensors, values)
    kinds = state_of(resumed, twin)
    assert kinds == state_of(optimizer, model)
    step(model, optimizer, 3)
    step(twin, resumed, 3)

    assert same_tensors(dict(model.state_dict()), dict(twin.state_dict()))
    assert state_of(resumed, twin) == state_of(optimizer, model)
    return kinds


def state_of(optimizer, model):
    """Type, dtype and bytes of everything an optimizer keeps."""
    names = optim.parameter_names(model)
    return {
        f"{names[parameter]}/{key}": (value.dtype, tuple(value.shape), as_bytes(value))
        if isinstance(value, torch.Tensor)
        else (type(value), value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


class ToyEightBit(torch.optim.Optimizer):
    """Moments in uint8 with float32 scales, a step count that is an int."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, moment=torch.zeros(parameter.shape, dtype=torch.uint8))
                    state["scale"] = torch.ones(1)
                moment = state["moment"].float() / 255 * state["scale"] + parameter.grad.float().abs()
                state["step"] += 1
                state["scale"] = moment.max().reshape(1)
                state["moment"] = (moment / state["scale"] * 255).round().to(torch.uint8)
                parameter.sub_((0.01 * state["step"] * moment).to(parameter.dtype))


class BfloatMoments(torch.optim.Optimizer):
    """Moments in bfloat16 over float32 parameters."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["moment"] = torch.zeros(parameter.shape, dtype=torch.bfloat16)
                    state["step"] = torch.zeros((), dtype=torch.int64)
                state["step"] += 1
                state["moment"] = (state["moment"] * 0.9 + parameter.grad).to(torch.bfloat16)
                parameter.sub_(state["moment"].float() * 0.1 / state["step"])


class TestState:
    def test_uint8_moments_over_bfloat16(self, tmp_path):
        """G1: uint8 moments and float32 scales over bfloat16 parameters: bytes equal, step 4 bit-equal."""
        kinds = continues_exactly(
            tmp_path, network(dtype=torch.bfloat16), lambda model: ToyEightBit(model.parameters())
        )

        assert kinds["0.weight/moment"][0] == torch.uint8
        assert kinds["0.weight/step"] == (int, 3)

    def test_bfloat16_moments_over_float32(self, tmp_path):
        """G1: bfloat16 moments over float32 parameters keep their dtype, and the step counter its own."""
        kinds = continues_exactly(tmp_path, network(), lambda model: BfloatMoments(model.parameters()))

        assert kinds["0.weight/moment"][0] == torch.bfloat16
        assert kinds["0.weight/step"][0] == torch.int64

    @pytest.mark.parametrize("asked", [{}, {"optimizer": "sgd"}, {"weight_decay": 0.1}])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_optimizers_of_the_settings(self, tmp_path, asked, dtype):
        """G1: AdamW and SGD, fused as they are built, continue bit for bit over both dtypes."""
        settings = Hyperparameters(**asked)
        continues_exactly(
            tmp_path, network(dtype=dtype),
            lambda model: optim.build_optimizer([{"params": model.parameters()}], settings, CPU),
        )  # fmt: skip

    def test_eight_bits_of_bitsandbytes(self, tmp_path):
        """G1: 8-bit AdamW on the CPU: shared quantisation maps stored once, step 4 bit-equal after a resume."""
        settings = Hyperparameters(optim_8bit=True)
        kinds = continues_exactly(
            tmp_path, network(width=80),  # 6,400 elements: above the least size that is quantised
            lambda model: optim.build_optimizer([{"params": model.parameters()}], settings, CPU),
        )  # fmt: skip
        saved = (tmp_path / "step-00000003" / "optimizer.safetensors").stat().st_size

        assert kinds["0.weight/state1"][0] == torch.uint8
        assert kinds["1.weight/state1"][0] == torch.float32  # 160 elements stay as they are
        assert saved < 2 * 6400 + 4 * 2 * 400 + 4 * 2 * 256 + 6000

    @pytest.mark.parametrize("asked", [{}, {"optimizer": "sgd"}])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_fused_kernels_compute_the_same(self, asked, dtype):
        """A fused kernel is used only where it computes what the plain one does."""
        settings = Hyperparameters(**asked, learning_rate=0.01)
        models = [network(dtype=dtype), network(dtype=dtype)]
        for fused, model in zip((True, False), models, strict=True):
            optimizer = optim.build_optimizer([{"params": model.parameters()}], settings, CPU)
            if not fused:
                for group in optimizer.param_groups:
                    group["fused"] = False
            for number in range(4):
                step(model, optimizer, number)

        for one, other in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(one, other)

    def test_nothing_to_save_before_the_first_update(self):
        """An optimizer that has made no update has no state, and takes none back."""
        model = network()
        optimizer = optim.build_optimizer([{"params": model.parameters()}], Hyperparameters(), CPU)
        tensors, values = optim.optimizer_snapshot(optimizer, optim.parameter_names(model))
        optim.restore_optimizer(optimizer, optim.parameter_names(model), tensors, values)

        assert (tensors, values["values"], len(optimizer.state)) == ({}, {}, 0)

    def test_state_of_another_optimizer(self):
        """State that SGD saved is not put into AdamW."""
        model = network()
        sgd = optim.build_optimizer([{"params": model.parameters()}], Hyperparameters(optimizer="sgd"), CPU)
        adamw = optim.build_optimizer([{"params": model.parameters()}], Hyperparameters(), CPU)
        tensors, values = optim.optimizer_snapshot(sgd, optim.parameter_names(model))

        with pytest.raises(InternalError, match="saved state of SGD; expected AdamW"):
            optim.restore_optimizer(adamw, optim.parameter_names(model), tensors, values)


class TestGroups:
    def test_scales_multiply_the_rate(self):
        """H2: each group's rate is the schedule's times its own scale, set anew and never multiplied twice."""
        model = network()
        groups = [
            {"params": model[0].parameters(), "lr_scale": 0.1},
            {"params": model[1].parameters(), "weight_decay": 0.5},
        ]
        optimizer = optim.build_optimizer(groups, Hyperparameters(), CPU)
        for _ in range(3):
            optim.set_learning_rate(optimizer, 0.2)

        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02, 0.2])
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5]

    def test_frozen_parameters_are_left_out(self):
        """Only what trains is in the optimizer, and a group of frozen parameters disappears."""
        model = network()
        model[0].requires_grad_(False)
        groups = [{"params": model[0].parameters()}, {"params": model.parameters()}]
        optimizer = optim.build_optimizer(groups, Hyperparameters(), CPU)

        assert [len(group["params"]) for group in optimizer.param_groups] == [2]

    def test_nothing_trains(self):
        """A model whose every parameter is frozen is refused."""
        with pytest.raises(InternalError, match="no parameter trains"):
            optim.build_optimizer(
                [{"params": network().requires_grad_(False).parameters()}], Hyperparameters(), CPU
            )

    def test_a_key_nobody_reads(self):
        """A group's key that has no meaning is told with those that have one."""
        with pytest.raises(InternalError, match="'lr'; expected lr_scale, params, weight_decay"):
            optim.build_optimizer([{"params": network().parameters(), "lr": 1.0}], Hyperparameters(), CPU)
