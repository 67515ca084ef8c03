"""An optimizer's state comes back bit for bit in its own dtype, and is what it is said to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU, as_bytes, same_tensors

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.checkpoint import CheckpointStore, copied, load_checkpoint
from app_trainer_sdk.training.optim import build_optimizer, parameter_names
from app_trainer_sdk.training.optimizer_state import (
    check_state,
    describe_state,
    described,
    optimizer_snapshot,
    restore_optimizer,
)
from app_trainer_sdk.values import Snapshot


def network(seed=1, dtype=torch.float32, width=8):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2)).to(dtype)


def embedded(seed=1):
    """An embedding and a layer, both above the least size that is quantised."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Embedding(80, 64), nn.Linear(64, 80))


def step(model, optimizer, number, late=0):
    """One update with made-up gradients; the first parameter has none before update ``late``."""
    for place, parameter in enumerate(model.parameters()):
        if place == 0 and number < late:
            continue
        values = torch.sin(torch.arange(parameter.numel()) * 0.3 + number + place).reshape(parameter.shape)
        parameter.grad = values.to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad()


def saved_and_loaded(tmp_path, model, optimizer):
    """The optimizer's state as a checkpoint on disk gives it back."""
    tensors, values = optimizer_snapshot(optimizer, model)
    snapshot = copied(Snapshot({f"optimizer/{name}": each for name, each in tensors.items()}, {"o": values}))
    loaded = load_checkpoint(CheckpointStore(tmp_path, "mine").save(3, snapshot, {}))
    assert same_tensors(loaded.section("optimizer"), tensors)
    return loaded.section("optimizer"), loaded.values["o"]


def continues_exactly(tmp_path, make, build=network, *, late=0, updates=3):
    """Some steps, save, load into a twin; both make two more and agree in every bit of weights and state."""
    model = build()
    optimizer = make(model)
    for number in range(updates):
        step(model, optimizer, number, late)
    tensors, values = saved_and_loaded(tmp_path, model, optimizer)
    twin = build()
    twin.load_state_dict(model.state_dict())
    resumed = make(twin)
    restore_optimizer(resumed, twin, tensors, values)
    kinds = state_of(resumed, twin)
    assert kinds == state_of(optimizer, model)
    for number in range(updates, updates + 2):
        step(model, optimizer, number, late)
        step(twin, resumed, number, late)

        assert same_tensors(dict(model.state_dict()), dict(twin.state_dict()))
        assert state_of(resumed, twin) == state_of(optimizer, model)
    return kinds


def made(fused=True, **asked):
    """Builds the optimizer of these settings over all parameters; its plain kernels when not ``fused``."""
    settings = Hyperparameters(**asked)

    def make(model):
        optimizer = build_optimizer([{"params": model.parameters()}], settings, CPU, model)
        if not fused:
            for group in [optimizer.defaults, *optimizer.param_groups]:
                group["fused"] = False
        return optimizer

    return make


def state_of(optimizer, model):
    """Type, dtype and bytes of everything an optimizer keeps."""
    names = parameter_names(model)
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
            tmp_path, lambda model: ToyEightBit(model.parameters()), lambda: network(dtype=torch.bfloat16)
        )

        assert kinds["0.weight/moment"][0] == torch.uint8
        assert kinds["0.weight/step"] == (int, 3)

    def test_bfloat16_moments_over_float32(self, tmp_path):
        """G1: bfloat16 moments over float32 parameters keep their dtype, and the step counter its own."""
        kinds = continues_exactly(tmp_path, lambda model: BfloatMoments(model.parameters()))

        assert kinds["0.weight/moment"][0] == torch.bfloat16
        assert kinds["0.weight/step"][0] == torch.int64

    @pytest.mark.parametrize("asked", [{}, {"optimizer": "sgd"}, {"weight_decay": 0.1}])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("fused", [True, False])
    def test_the_optimizers_of_the_settings(self, tmp_path, asked, dtype, fused):
        """G1, H1: AdamW and SGD, fused where they are built so and plain, continue bit for bit."""
        kinds = continues_exactly(tmp_path, made(fused, **asked), lambda: network(dtype=dtype))
        kept = {"momentum_buffer"} if "optimizer" in asked else {"step", "exp_avg", "exp_avg_sq"}

        assert {tuple(name.split("/")) for name in kinds} == {
            (f"{layer}.{part}", name) for layer in (0, 1) for part in ("weight", "bias") for name in kept
        }

    @pytest.mark.parametrize("asked", [{}, {"optimizer": "sgd"}, {"optim_8bit": True}])
    @pytest.mark.parametrize("fused", [True, False])
    @pytest.mark.parametrize("updates", [2, 3])
    def test_moments_that_come_late(self, tmp_path, asked, fused, updates):
        """G1: a parameter's first gradient is in update 3, just before the save or just after it."""
        kinds = continues_exactly(tmp_path, made(fused, **asked), embedded, late=2, updates=updates)

        assert any(name.startswith("0.weight") for name in kinds) is (updates == 3)

    def test_eight_bits_of_bitsandbytes(self, tmp_path):
        """G1: 8-bit AdamW on the CPU: shared quantisation maps stored once, step 4 bit-equal after a resume."""
        # 6,400 elements: above the least size that is quantised
        kinds = continues_exactly(tmp_path, made(optim_8bit=True), lambda: network(width=80))
        saved = (tmp_path / "step-00000003" / "optimizer.safetensors").stat().st_size

        assert kinds["0.weight/state1"][0] == torch.uint8
        assert kinds["1.weight/state1"][0] == torch.float32  # 160 elements stay as they are
        assert saved < 2 * 6400 + 4 * 2 * 400 + 4 * 2 * 256 + 6000

    @pytest.mark.parametrize("late", [0, 9])
    def test_embeddings_beside_eight_bits(self, tmp_path, late):
        """G1: an embedding's state is 32-bit before and after a resume, created before it or long after."""
        kinds = continues_exactly(tmp_path, made(optim_8bit=True), embedded, late=late)
        twin = embedded()
        optimizer = made(optim_8bit=True)(twin)
        step(twin, optimizer, 9)

        assert kinds["1.weight/state1"][0] == torch.uint8
        assert kinds.get("0.weight/state1", (torch.float32,))[0] == torch.float32
        assert optimizer.state[twin[0].weight]["state1"].dtype == torch.float32

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_fused_kernels_compute_the_same(self, dtype):
        """A fused kernel is used only where it computes what the plain one does."""
        settings = Hyperparameters(learning_rate=0.01)
        models = [network(dtype=dtype), network(dtype=dtype)]
        for fused, model in zip((True, False), models, strict=True):
            optimizer = build_optimizer([{"params": model.parameters()}], settings, CPU, model)
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
        optimizer = build_optimizer([{"params": model.parameters()}], Hyperparameters(), CPU, model)
        tensors, values = optimizer_snapshot(optimizer, model)
        restore_optimizer(optimizer, model, tensors, values)

        assert (tensors, values["values"], len(optimizer.state)) == ({}, {}, 0)

    def test_state_of_another_optimizer(self):
        """State that SGD saved is not put into AdamW."""
        model = network()
        sgd = build_optimizer([{"params": model.parameters()}], Hyperparameters(optimizer="sgd"), CPU, model)
        adamw = build_optimizer([{"params": model.parameters()}], Hyperparameters(), CPU, model)
        tensors, values = optimizer_snapshot(sgd, model)

        with pytest.raises(InternalError, match="saved state of SGD; expected AdamW"):
            restore_optimizer(adamw, model, tensors, values)


class TestDescription:
    def test_every_group_says_what_its_state_is(self):
        """Classes, dtypes, elements and bytes are those of the tensors there are; shared maps count once."""
        model = embedded()
        groups = [{"params": model[0].parameters(), "lr_scale": 0.5}, {"params": model[1].parameters()}]
        optimizer = build_optimizer(groups, Hyperparameters(optim_8bit=True), CPU, model)
        before = describe_state(optimizer)
        step(model, optimizer, 0)
        told = describe_state(optimizer)
        none = {"dtype": "none", "tensors": 1, "parameters": 5120, "bytes": 0}
        maps, scales = 2 * 256 * 4, 2 * 20 * 4

        assert before["groups"][0] == {"lr_scale": 0.5, "weight_decay": 0.0, "state": [none]}
        assert (told["class"], told["fused"]) == ("AdamW8bit", False)
        assert [group["state"] for group in told["groups"]] == [
            [{"dtype": "float32", "tensors": 1, "parameters": 5120, "bytes": 2 * 4 * 5120}],
            [
                {"dtype": "float32", "tensors": 1, "parameters": 80, "bytes": 2 * 4 * 80},
                {"dtype": "uint8", "tensors": 1, "parameters": 5120, "bytes": 2 * 5120 + scales + maps},
            ],
        ]

    @pytest.mark.parametrize(("asked", "moments"), [({}, 2), ({"optimizer": "sgd"}, 1)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_moments_have_the_dtype_of_their_parameters(self, asked, moments, dtype):
        """AdamW is fused over full precision; the step counts are in the bytes and not in the dtype."""
        model = network(dtype=dtype)
        optimizer = made(**asked)(model)
        step(model, optimizer, 0)
        told = describe_state(optimizer)
        (row,) = told["groups"][0]["state"]

        assert told["fused"] is (moments == 2 and dtype == torch.float32)
        assert row == {
            "dtype": str(dtype).removeprefix("torch."), "tensors": 4, "parameters": 90,
            "bytes": moments * 90 * dtype.itemsize + (4 * 4 if moments == 2 else 0),
        }  # fmt: skip

    def test_without_momentum_there_is_no_state(self):
        """SGD without momentum keeps nothing."""
        model = network()
        optimizer = made(optimizer="sgd", beta1=0.0)(model)
        step(model, optimizer, 0)

        assert describe_state(optimizer)["groups"][0]["state"] == [
            {"dtype": "none", "tensors": 4, "parameters": 90, "bytes": 0}
        ]

    def test_state_of_a_wrong_dtype_is_refused(self, tmp_path):
        """An embedding that was quantised after all is named, when it is checked, saved or resumed."""
        model = embedded()
        optimizer = made(optim_8bit=True)(model)
        step(model, optimizer, 0)
        check_state(optimizer, model)
        tensors, values = saved_and_loaded(tmp_path, model, optimizer)
        quantised = optimizer.state[model[1].weight]
        optimizer.state[model[0].weight] = quantised
        tensors = {name: each.to(torch.uint8) if each.dim() == 2 else each for name, each in tensors.items()}
        told = r"0\.weight \(uint8 instead of float32\); expected.*32 for embeddings.*optim_8bit to false"

        for attempt in (
            lambda: check_state(optimizer, model),
            lambda: optimizer_snapshot(optimizer, model),
            lambda: restore_optimizer(made(optim_8bit=True)(model), model, tensors, values),
        ):
            with pytest.raises(InternalError, match=told):
                attempt()

    def test_values_of_a_loop_of_its_own(self):
        """A checkpoint that says nothing of an optimizer, or something else, has no description."""
        assert [described(values) for values in ({}, {"optimizer": 3}, {"optimizer": {}})] == [None] * 3
        assert described({"optimizer": {"described": {"class": "SGD"}}}) == {"class": "SGD"}
