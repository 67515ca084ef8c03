"""The twin of ``test_packing.py`` and ``test_loss.py`` on a card: its kernels against fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from trainer_images.text import loss, packing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda", 0)
LENGTHS = [7, 1, 130, 64]


def heads(dtype, device, *, width=64):
    """Query of six heads, key and value of two, over the rows' tokens: the same numbers everywhere."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(1, count, sum(LENGTHS), width, generator=generator) for count in (6, 2, 2)]
    return [each.to(dtype).to(device).requires_grad_() for each in made]


def attended(inputs):
    starts = torch.tensor([0, *LENGTHS]).cumsum(0).int().to(inputs[0].device)
    layout = packing.RowLayout(LENGTHS, starts)
    return packing.attend(None, *inputs, None, scaling=0.125, row_layout=layout)[0]


def gradients(inputs):
    """Of a sum in which every number counts otherwise."""
    out = attended(inputs)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.device)
    (out.float() * weights).sum().backward()
    return [each.grad.float().cpu() for each in inputs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rows_end_to_end_on_a_card(dtype):
    """Outputs and gradients are those of fp32 row by row on the CPU, to the precision computed in."""
    precision = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-4
    here, there = heads(torch.float32, torch.device("cpu")), heads(dtype, DEVICE)
    expected = attended(here).detach()

    is_new = torch.cuda.get_device_capability(DEVICE)[0] >= 8 and not torch.version.hip
    assert packing.has_kernel(*there) == (is_new and dtype != torch.float32)
    torch.testing.assert_close(attended(there).detach().float().cpu(), expected, rtol=0.05, atol=4 * precision)
    for ours, theirs in zip(gradients(there), gradients(here), strict=True):
        assert (ours - theirs).norm() <= 4 * precision * theirs.norm()


def test_a_row_on_a_card_sees_nothing_of_its_neighbours():
    """What the other rows hold moves no bit of a row's answer."""
    first = heads(torch.bfloat16, DEVICE)
    second = [each.detach().clone() for each in first]
    for each in second:
        each[:, :, 8:138] = -each[:, :, 8:138]  # the third row
    answers = [attended(each) for each in (first, second)]

    assert torch.equal(answers[0][:, :8], answers[1][:, :8])
    assert torch.equal(answers[0][:, 138:], answers[1][:, 138:])
    assert not torch.equal(answers[0][:, 8:138], answers[1][:, 8:138])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_loss_on_a_card(dtype):
    """Of more tokens than a chunk has: plain cross entropy on the CPU, and finite past what fp16 can count."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9000, 64, generator=generator).requires_grad_()
    weight = (torch.randn(4096, 64, generator=generator) * 0.3).requires_grad_()
    targets = torch.randint(0, 4096, (9000,), generator=generator)
    expected = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    (expected / 9000).backward()
    there = [each.detach().to(dtype).to(DEVICE).requires_grad_() for each in (hidden, weight)]

    actual = loss._cross_entropy(*there, targets.to(DEVICE))
    (actual / 9000).backward()

    assert actual.item() == pytest.approx(expected.item(), rel=1e-4)
    for ours, theirs in zip(there, (hidden, weight), strict=True):
        assert (ours.grad.float().cpu() - theirs.grad).norm() < 0.02 * theirs.grad.norm()
