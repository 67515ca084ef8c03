"""Keeping less between forward and backward changes no gradient."""

from __future__ import annotations

import gc

import pytest
import torch

from trainer_images.text import batches, lean, loss, model
from trainer_images.text.tokens import TokenRow


def gradients_of(modules, batch):
    """The gradient of every parameter that has one."""
    loss.token_loss(modules, batch).sum.backward()
    return {name: each.grad for name, each in modules.root.named_parameters() if each.grad is not None}


@pytest.fixture(scope="module")
def batch():
    import numpy

    generator = numpy.random.default_rng(0)
    rows = [
        TokenRow(generator.integers(3, 49152, length).astype(numpy.int32), numpy.arange(length) >= 5)
        for length in (60, 31, 44)
    ]
    return batches.collate(rows)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_gradients_are_bit_equal(make_run, narrow, batch, method):
    """The recipes run the same operations on the same values, with adapters (after one step) and without."""
    gradients = []
    for recompute in (False, True):  # True: build_model leaves the blocks as transformers made them
        run = make_run(method=method, base=narrow, keep_layers=2, gradient_checkpointing=recompute)
        torch.manual_seed(1)
        modules = model.build_model(run, weights=True)
        if method == "lora":
            for name, parameter in modules.root.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.02)
        gradients.append(gradients_of(modules, batch))

    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_much_less_is_kept(make_run, narrow, batch):
    """Of the memory between forward and backward a third or more goes."""
    sizes = []
    for installed in (True, False):
        run = make_run(method="lora", base=narrow, keep_layers=4, gradient_checkpointing=not installed)
        modules = model.build_model(run, weights=True)
        assert (getattr(modules.blocks[0].forward, "func", None) is lean._block) is installed
        sizes.append(allocated_by_forward(modules, batch))

    assert sizes[0] < 0.67 * sizes[1]


def allocated_by_forward(modules, batch):
    """Bytes that live on after the forward pass, by torch's own count."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        terms = loss.token_loss(modules, batch)
    events = profiler.profiler.kineto_results.events()
    total = sum(event.nbytes() for event in events if event.name() == "[memory]")
    terms.sum.backward()
    return total


def test_nothing_is_held_when_no_gradient_is_asked_for(make_run, narrow, batch):
    """Evaluation runs the plain forward, with the same result."""
    run = make_run(method="full", base=narrow, keep_layers=2, gradient_checkpointing=False)
    modules = model.build_model(run, weights=True)
    with torch.no_grad():
        quiet = loss.token_loss(modules, batch).sum
    loud = loss.token_loss(modules, batch).sum

    assert quiet.item() == pytest.approx(loud.item(), rel=1e-6)


def test_nothing_of_a_pass_outlives_it(make_run, narrow, batch):
    """D2: what was made again in the backward pass goes with the graph: a cache that stayed was found."""
    run = make_run(method="lora", base=narrow, keep_layers=2, gradient_checkpointing=False)
    modules = model.build_model(run, weights=True)
    gc.collect()
    there = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    before = {id(each) for each in there}  # which they keep: nothing new gets the number of one that went
    loss.token_loss(modules, batch).sum.backward()
    modules.root.zero_grad(set_to_none=True)
    gc.collect()
    left = [
        each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and id(each) not in before
    ]

    assert [tuple(each.shape) for each in left] == []


def test_a_block_of_another_build_is_left_alone():
    """Only blocks with the parts it knows are touched."""
    block = torch.nn.TransformerEncoderLayer(8, 2)
    forward = block.forward
    lean.install([block])

    assert block.forward == forward


def test_memory_that_changed_hands_is_not_mistaken():
    """A tensor in the registry is held until the block ends, so its memory cannot become another's."""
    recipes = lean.Recipes()
    first = torch.ones(4)
    recipes.add(first, lean.Recipe(lambda: torch.full((4,), 7.0)))
    other = torch.zeros(4)

    assert recipes.pack(other) is other
    assert recipes.pack(first[:2])[:2].tolist() == [1.0, 1.0]
    recipe, shape = recipes.pack(first.view(2, 2))
    assert recipe.made().tolist() == [7.0] * 4
    assert tuple(shape) == (2, 2)
