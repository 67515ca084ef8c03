"""The model that trains."""

from __future__ import annotations

import pytest
import torch

from app_trainer_sdk.errors import BadJob
from trainer_images.text import batches, loss, model
from trainer_images.text.models import MODELS


def trainable(root):
    return {name: each for name, each in root.named_parameters() if each.requires_grad}


def test_lora_trains_small_fp32_matrices_over_a_frozen_base(make_run, folder):
    """Only LoRA matrices train, in fp32, and the loss reaches every one of them."""
    run = make_run(base=folder, keep_layers=2)
    modules = model.build_model(run, weights=True)
    loss.token_loss(modules, batches.largest_batch(make_run(max_length=8), 2)).sum.backward()

    assert all("lora_" in name for name in trainable(modules.root))
    assert {torch.float32} == {each.dtype for each in trainable(modules.root).values()}
    assert all(each.grad is not None for each in trainable(modules.root).values())
    assert len(modules.blocks) == 2


def test_a_frozen_base_has_the_forwards_precision(make_run, folder):
    """With a bf16 forward pass the frozen base is bf16, the new matrices fp32."""
    import dataclasses

    run = dataclasses.replace(make_run(base=folder, keep_layers=1), dtype=torch.bfloat16)
    root = model.build_model(run, weights=True).root

    frozen = {each.dtype for each in root.parameters() if not each.requires_grad}
    assert {torch.bfloat16} == frozen
    assert {torch.float32} == {each.dtype for each in trainable(root).values()}


def test_lora_targets_that_no_layer_has_are_refused(make_run):
    """One typed wrong is the job's mistake, also beside one that is right, which peft would adapt alone."""
    with torch.device("meta"), pytest.raises(BadJob) as refused:
        model.build_model(make_run(lora_targets=["q_proj", "vproj", "norm"]), weights=False)

    assert [each.found for each in refused.value.problems] == ["'vproj'", "'norm'"]
    assert "v_proj" in refused.value.problems[0].hint
    with torch.device("meta"):
        built = model.build_model(make_run(lora_targets=["self_attn.q_proj"]), weights=False)
    assert all(".q_proj." in name for name in trainable(built.root))


def test_full_trains_everything_and_keeps_the_tie(make_run, folder):
    """All weights train in fp32, and input and output embeddings stay one tensor."""
    root = model.build_model(make_run(method="full", base=folder, keep_layers=2), weights=True).root

    assert len(list(root.parameters())) == len(trainable(root))
    assert root.get_output_embeddings().weight is root.get_input_embeddings().weight
    assert "lm_head.weight" not in trainable(root)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_shapes_alone_need_no_file_and_equal_the_real_model(make_run, folder, method):
    """On the meta device the catalog row gives the names and shapes of the real model, without weights."""
    real = model.build_model(make_run(method=method, base=folder), weights=True)
    with torch.device("meta"):
        shapes = model.build_model(make_run(method=method), weights=False)

    assert {each.device.type for each in shapes.root.parameters()} == {"meta"}
    assert {name: each.shape for name, each in real.root.named_parameters()} == {
        name: each.shape for name, each in shapes.root.named_parameters()
    }
    assert len(real.blocks) == len(shapes.blocks)


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row.name)
def test_a_catalog_row_states_the_parameters_of_its_architecture(make_run, row):
    """The number of parameters in a row is that of the model its architecture builds."""
    import dataclasses

    run = dataclasses.replace(make_run(method="full"), model=row)
    with torch.device("meta"):
        root = model.build_model(run, weights=False).root

    assert row.parameters == sum(each.numel() for each in root.parameters())


def test_equal_seeds_draw_equal_adapters(make_run, folder):
    """The initial LoRA matrices follow from torch's generator alone."""
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(trainable(model.build_model(make_run(base=folder, keep_layers=1), weights=True).root))

    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
