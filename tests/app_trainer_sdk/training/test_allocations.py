"""The account of allocations: what is made, whose it is, when it ends."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from app_trainer_sdk.training.allocations import CUDA_BLOCK_BYTES, Allocations, Held

KIB = 1024


def test_a_peak_is_the_fullest_instant_of_its_place():
    """Views are no memory of their own, and what is dropped is given back."""
    account = Allocations()
    with account:
        account.mark("first")
        kept = torch.empty(KIB)
        account.give([kept], "parameters")
        view = kept.view(32, 32).t()
        torch.empty(3 * KIB)
        account.mark("second")
        more = torch.empty(KIB)
        del kept, view, more
        account.mark("third")
    peaks = account.peaks()

    assert {place: held.total for place, held in peaks.items()} == {
        "first": 16 * KIB, "second": 8 * KIB, "third": 0,
    }  # fmt: skip
    assert peaks["first"].by_owner["parameters"] == 4 * KIB
    assert peaks["first"].by_owner["temporaries"] == 12 * KIB


def test_the_owner_said_last_is_told_from_the_beginning_on():
    """A gradient is known as one only after it was made."""
    account = Allocations()
    with account:
        account.mark("here")
        gradient = torch.empty(KIB)
        account.give([gradient], "gradients")

    assert account.peaks()["here"].by_owner["gradients"] == 4 * KIB


def test_what_lives_when_a_backward_pass_begins_are_activations():
    account = Allocations()
    x = torch.ones(KIB, requires_grad=True)
    with account:
        account.mark("pass")
        loss = x.exp().sin().sum()
        loss.backward()
    peaks = account.peaks()

    assert peaks["pass"].by_owner["activations"] == 4 * KIB + 4  # exp's result, and the loss itself
    assert peaks["pass:backward"].total >= 2 * 4 * KIB + 4


def test_an_operator_made_of_others_is_entered():
    """Where autograd is off pooling comes whole; the indices it makes are seen all the same."""
    account = Allocations()
    with FakeTensorMode() as fake:
        pixels = torch.empty(1, 1, 64, 64)
    with account, fake, torch.inference_mode():
        account.mark("pool")
        functional.max_pool2d(pixels, 2)

    assert account.peaks()["pool"].total == 32 * 32 * (4 + 8)


def test_a_tensor_without_data_can_be_read_as_a_finite_number():
    """The loop asks whether a loss is finite; an account has no answer but yes."""
    with FakeTensorMode(), Allocations():
        values = torch.empty(4).sum(), torch.empty(4, dtype=torch.int64).sum(), torch.empty(2).isfinite().all()

        assert [value.item() for value in values] == [1.0, 1, True]


def test_a_tensor_with_data_keeps_its_value():
    with Allocations():
        assert float(torch.tensor(3.5)) == 3.5


def test_gradients_that_meet_are_added_in_place_as_without_an_account():
    """Autograd adds into memory that nobody else holds, and would not under a dispatch mode."""
    x = torch.ones(KIB, requires_grad=True)
    account = Allocations()
    with account:
        account.mark("pass")
        (x * 2 + x * 3).sum().backward()

    # Two products, and the gradient of the sum, which is expanded and takes no memory of its own.
    assert account.peaks()["pass:backward"].total <= 2 * 4 * KIB + 16
    assert torch.equal(x.grad, torch.full((KIB,), 5.0))


def test_operands_that_the_cpu_widens_are_counted():
    """A bf16 sum that takes in an fp32 one is widened and narrowed again: two copies; CUDA makes none."""

    def peak(**options):
        account = Allocations(**options)
        with account:
            account.mark("sum")
            narrow, wide = torch.zeros(KIB, dtype=torch.bfloat16), torch.zeros(KIB)
            narrow.add_(wide)
        return account.peaks()["sum"].total  # fmt: skip

    assert peak() == (2 + 4) * KIB + 2 * 4 * KIB
    assert peak(kind="cuda") == (2 + 4) * KIB


def test_flash_attention_takes_room_for_its_backward_on_a_card():
    """A query's gradient and a row's sum in fp32, 128 tokens more a row; keys and values for every head."""
    account = Allocations(kind="cuda")
    with account, FakeTensorMode():
        account.mark("pass")
        query, key, value, answer = (
            torch.empty(KIB, heads, 64, dtype=torch.bfloat16) for heads in (8, 2, 2, 8)
        )
        starts, sums, seed = torch.empty(3, dtype=torch.int32), torch.empty(8, KIB), torch.empty(2)
        torch.ops.aten._flash_attention_backward(
            answer, query, key, value, answer, sums, starts, starts, 512, 512, 0.0, True, seed, seed
        )
    held = account.peaks()["pass"]

    assert held.by_owner["workspace"] == (KIB + 2 * 128) * 8 * (64 + 1) * 4 + 2 * KIB * 8 * 64 * 2


def test_rounding_is_told_beside_the_bytes():
    """CUDA hands out multiples of 512 bytes."""
    account = Allocations()
    with account:
        account.mark("here")
        _few = [torch.empty(1, dtype=torch.uint8) for _ in range(3)]

    assert account.peaks()["here"].rounding == 3 * (CUDA_BLOCK_BYTES - 1)
    assert account.peaks()["here"].total == 3
    assert Held({"parameters": 2, "gradients": 3}).total == 5
