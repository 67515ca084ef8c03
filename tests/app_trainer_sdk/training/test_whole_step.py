"""Memory that runs out in the optimizer's step: nothing is half applied, and the update is the planned one."""

from __future__ import annotations

import contextlib

import pytest
import torch
from small_models import PLAIN
from test_oom import FAKE
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch_helpers import make_trainer, open_training, same_tensors, train

from app_trainer_sdk.errors import GpuOutOfMemory
from app_trainer_sdk.training import optim, whole_step
from app_trainer_sdk.training.oom import OutOfMemoryHere
from app_trainer_sdk.training.supervised import begin

VALUES = [0.5 + number / 8 for number in range(16)]
SETTINGS = {**PLAIN, "learning_rate": 0.01, "global_batch": 8, "updates": 3}


class Card(TorchDispatchMode):
    """A fake card that is short of memory in the optimizer's step.

    Args:
        at: of the operations in a step, the one after which memory is gone; -1 for before the first.
        fits: rows of the last microbatch that leave enough of it; 0 when nothing ever does.
        step: which step of the run is the first to meet it.
    """

    def __init__(self, at: int, *, fits: int = 2, step: int = 1) -> None:
        super().__init__()
        self.at = at
        self.fits = fits
        self.step = step
        self.rows = self.steps = 0
        self.left: int | None = None
        self.written: list[bool] = []
        self._watched: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, rows: int) -> None:
        """A microbatch of so many rows is computed."""
        self.rows, self.left = rows, None

    def begin_step(self, optimizer, *_):
        """A step begins."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.steps += 1
        short = self.rows > self.fits or not self.fits
        self._watched = [(each, each.detach().clone()) for each in parameters]
        self.left = self.at if short and self.steps >= self.step else None
        if self.left == -1:
            self._fail()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self._fail()
        return result

    def _fail(self) -> None:
        self.left = None
        self.rows = 0  # nothing of the microbatch is in memory any more
        self.written.append(any(not torch.equal(each, before) for each, before in self._watched))
        raise torch.OutOfMemoryError(FAKE)


@contextlib.contextmanager
def short_of(card):
    """Every step of an optimizer meets the card inside."""
    hook = register_optimizer_step_pre_hook(card.begin_step)
    try:
        with card:
            yield
    finally:
        hook.remove()


class Two(nn.Module):
    """Two layers, the first one large enough for 8-bit state."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(1, 4096)
        self.two = nn.Linear(4096, 1)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def groups(self, run, modules):
    one, two = modules.root.one, modules.root.two
    return [{"params": [*one.parameters()]}, {"params": [*two.parameters()], "lr_scale": 0.5}]


def two_layers(card=None):
    """A trainer whose optimizer has two groups; ``tried`` tells the rows of each microbatch."""

    def loss(modules, values, random):
        if card is not None and torch.is_grad_enabled():
            card.forward(len(values))
        tried.append(len(values))
        return modules.root(torch.tensor(values)[:, None]).pow(2).sum()

    tried = []
    made = make_trainer(lambda run: Two(), loss, VALUES, parameter_groups=groups)
    made.tried = tried
    return made


OPTIMIZERS = {
    "adamw": {"optimizer": "adamw", "beta1": 0.9},
    "averaged": {"optimizer": "adamw", "beta1": 0.9, "ema_decay": 0.9},
    "momentum": {"optimizer": "sgd", "beta1": 0.9, "weight_decay": 0.01},
    "8-bit": {"optimizer": "adamw", "beta1": 0.9, "optim_8bit": True},
    "scaled": {"optimizer": "adamw", "beta1": 0.9, "settings": {"mixed_precision": "fp16"}},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_fails_half_way_is_undone(tmp_path, optimizer):
    """E3: whatever was written, the step is made again with fewer rows, bit for bit as if that was planned."""
    options = {**SETTINGS, **OPTIMIZERS[optimizer]}
    planned = train(two_layers(), tmp_path / "planned", microbatch=2, **options)
    written = []
    for at in (-1, 2, 5, 9):
        card = Card(at)
        trainer = two_layers(card)
        with short_of(card):
            training = train(trainer, tmp_path / str(at), microbatch=8, **options)
        found, wanted = training.snapshot(), planned.snapshot()
        (first, *rest) = training.metrics()
        written += card.written

        assert same_tensors(found.tensors, wanted.tensors)
        assert [(each["microbatch"], each["next"]) for each in first["out_of_memory"]] == [(8, 4), (4, 2)]
        assert [line["loss"] for line in [first, *rest]] == [line["loss"] for line in planned.metrics()]
        assert found.values["counters"] == {
            **wanted.values["counters"], "out_of_memory": 2, "microbatch": 2,
        }  # fmt: skip
        assert trainer.tried == [8, 4, 4] + [2, 2, 2, 2] * 3
    assert True in written  # at least one of them had changed weights already
    assert False in written


@pytest.mark.parametrize("optimizer", ["adamw", "averaged", "scaled"])
def test_an_update_whose_norm_does_not_fit_is_made_again(tmp_path, monkeypatch, optimizer):
    """E3: no weight has moved when the norm is taken, in any update: it is made again with fewer rows."""
    options = {**SETTINGS, **OPTIMIZERS[optimizer], "max_gradient_norm": 0.1}
    planned = train(two_layers(), tmp_path / "planned", microbatch=2, **options)
    trainer, true_norm = two_layers(), nn.utils.get_total_norm

    def norm(gradients):
        if trainer.tried[-1] > 2:
            raise torch.OutOfMemoryError(FAKE)
        return true_norm(gradients)

    monkeypatch.setattr(nn.utils, "get_total_norm", norm)
    training = train(trainer, tmp_path / "short", microbatch=8, **options)
    (first, *_) = training.metrics()

    assert same_tensors(training.snapshot().tensors, planned.snapshot().tensors)
    assert [(each["microbatch"], each["next"]) for each in first["out_of_memory"]] == [(8, 4), (4, 2)]
    assert trainer.tried == [8, 4, 4] + [2, 2, 2, 2] * 3


@pytest.mark.parametrize("optimizer", ["adamw", "8-bit"])
def test_state_that_does_not_fit_ends_at_once(tmp_path, optimizer):
    """E3: when the step fails with no microbatch in memory, none smaller is tried: 79, and why."""
    card = Card(1, fits=0)
    trainer = two_layers(card)
    with short_of(card), pytest.raises(GpuOutOfMemory) as caught:
        train(trainer, tmp_path, microbatch=8, **{**SETTINGS, **OPTIMIZERS[optimizer]})
    message = str(caught.value)

    assert caught.value.code == 79
    assert trainer.tried == [8]
    assert "no memory for update 1 in phase train at microbatch 8, and a smaller one would not help" in message
    assert "room for the optimizer's state" in message
    assert ("/hyperparameters/optim_8bit to true" in message) == (optimizer == "adamw")
    assert "max_length" not in message


def test_no_copy_is_made_that_the_host_has_no_room_for(tmp_path):
    """Weights that the host cannot hold twice are trained all the same; a step that fails then ends the run."""
    options, ends = {**SETTINGS, **OPTIMIZERS["adamw"]}, []
    for free, fails in ((0, True), (0, False), (1 << 40, True)):
        training = open_training(two_layers(), tmp_path / f"{free}{fails}", microbatch=8, **options)
        state = begin(training.trainer, training.run, None)
        for each in state.parameters:
            each.grad = torch.ones_like(each)
        card = Card(9, fits=2 if fails else 8)
        card.forward(8)
        before = [each.detach().clone() for each in state.parameters]
        with short_of(card), contextlib.suppress(OutOfMemoryHere):
            whole_step.apply_update(state, room=lambda free=free: free)
        moved = any(not torch.equal(each, old) for each, old in zip(state.parameters, before, strict=True))
        ends.append((moved, len(card.written)))

    assert ends == [(True, 1), (True, 0), (False, 1)]


def test_a_later_step_ends_the_run(tmp_path):
    """Half an update is never trained on: the run ends with 79, and its last checkpoint is whole."""
    options = {**SETTINGS, **OPTIMIZERS["adamw"], "checkpoint_every": 1}
    trainer = two_layers(card := Card(2, step=3))
    with short_of(card), pytest.raises(GpuOutOfMemory, match="the last checkpoint is whole") as caught:
        train(trainer, tmp_path / "short", microbatch=8, **options)
    planned = train(two_layers(), tmp_path / "planned", microbatch=8, **options)
    resumed = train(two_layers(), tmp_path / "short", microbatch=8, **options)

    assert trainer.tried == [8, 8, 8]
    assert card.written == [True]
    assert "update 3 in phase train at microbatch 8, and a smaller one would not help" in str(caught.value)
    assert same_tensors(resumed.snapshot().tensors, planned.snapshot().tensors)


class Made(TorchDispatchMode):
    """Counts bytes of storages that did not exist when it was asked to watch."""

    def __init__(self, known) -> None:
        super().__init__()
        self.known = {each.untyped_storage()._cdata for each in known}
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, list | tuple) else [result]:
            if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata not in self.known:
                self.bytes += each.nbytes
        return result


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "averaged"])
def test_later_steps_take_no_memory(tmp_path, optimizer):
    """E3: only a step that makes state is copied for: the others make no tensor of a weight's size."""
    options = {**SETTINGS, **OPTIMIZERS[optimizer]}
    training = open_training(two_layers(), tmp_path, microbatch=8, **options)
    state = begin(training.trainer, training.run, None)
    found = []
    for _ in range(2):
        for each in state.parameters:
            each.grad = torch.ones_like(each)
        kept = [each for values in state.optimizer.state.values() for each in values.values()]
        kept = [each for each in kept if isinstance(each, torch.Tensor)]
        takes = optim.takes_memory(state.optimizer)
        with Made([*state.parameters, *(each.grad for each in state.parameters), *kept]) as made:
            optim.step(state.optimizer)
        found.append((takes, made.bytes >= 4096))

    assert found == [(True, True), (False, False)]


def test_which_steps_take_memory():
    """The first step of an optimizer with state, that of a parameter's first gradient, and a plain one."""
    one, late = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    fused, plain = torch.optim.AdamW([one, late], fused=True), torch.optim.SGD([one])
    found = []
    for trained in (one, late):
        trained.grad = torch.ones(2)
        found.append((optim.takes_memory(fused), optim.takes_memory(plain)))
        fused.step()
        found.append((optim.takes_memory(fused), optim.takes_memory(plain)))

    assert found == [(True, False), (False, False)] * 2
    assert optim.takes_memory(torch.optim.AdamW([one], fused=False))


def test_decay_is_what_it_was():
    """Weight decay that is added in place moves SGD's weights to the last bit as torch's own step."""
    weights = []
    for step in (optim.step, torch.optim.SGD.step):
        torch.manual_seed(1)
        trained = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(3, 2))]
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.3)
        for _ in range(3):
            for each in trained:
                each.grad = torch.randn_like(each)
            step(optimizer)
        weights.append([each.tolist() for each in trained])
        assert optimizer.param_groups[0]["weight_decay"] == 0.3

    assert weights[0] == weights[1]
