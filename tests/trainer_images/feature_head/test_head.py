"""The head that trains."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from app_trainer_sdk.training.dry_run import dry_run
from app_trainer_sdk.values import Modules
from trainer_images.feature_head import features, head
from trainer_images.feature_head.backbone import Extractor, load_extractor
from trainer_images.feature_head.trainer import FeatureHeadTrainer

RESOLVED = {
    "updates": 5, "global_batch": 4, "microbatch": 4, "gradient_accumulation_steps": 1, "warmup_updates": 0,
    "optim_8bit": False, "torch_compile": False, "gradient_checkpointing": False, "dataloader_workers": 0,
    "mixed_precision": "no",
}  # fmt: skip


def rows(usable=(True, True, False)):
    torch.manual_seed(1)
    return [features.FeatureRow(torch.randn(6), index % 2, each) for index, each in enumerate(usable)]


@pytest.mark.parametrize("hidden_width", [0, 5])
def test_rows_without_features_move_nothing(hidden_width):
    """Loss, units, accuracy and gradient are those of the other rows alone; such rows alone give 0, not NaN."""
    torch.manual_seed(0)
    modules = Modules(head.Head(6, 2, hidden_width=hidden_width))

    def measured(items):
        modules.root.zero_grad()
        batch = head.collate(items)
        terms = head.head_loss_and_accuracy(modules, batch)
        head.head_loss(modules, batch).sum.backward()
        gradient = torch.cat([each.grad.flatten() for each in modules.root.parameters()])
        return batch.units, float(terms.sum.detach()), float(terms.metrics["accuracy"][0]), gradient

    with_it, without, none = measured(rows()), measured(rows()[:2]), measured(rows((False, False)))

    assert with_it[:3] == pytest.approx(without[:3])
    assert torch.allclose(with_it[3], without[3])
    assert (none[0], none[1], float(none[3].abs().sum())) == (0, 0.0, 0.0)


def test_the_hidden_layer_is_there_when_asked():
    """0 makes one linear layer; features are brought to mean 0 and variance 1, whatever their scale."""
    torch.manual_seed(0)
    plain, deep = head.Head(6, 2), head.Head(6, 2, hidden_width=5)
    inputs = torch.randn(3, 6)

    assert {"output.weight", "output.bias"} == set(plain.state_dict())
    assert deep(inputs).shape == (3, 2)
    assert torch.allclose(plain(inputs), plain(inputs * 1000 + 7), atol=1e-3)


def test_five_updates_leave_the_backbone_as_it_was(make_run, draw, extracted, tmp_path):
    """I6: training builds no backbone and gets none; a picture's features are the same before and after."""
    root = draw(tmp_path / "data", {"a": 4, "b": 4})
    run = make_run(root, **RESOLVED, validation_share=0, test_share=0)
    extracted(run)
    before, _ = load_extractor(run)([root / "a/000.png"])
    trainer = FeatureHeadTrainer()
    state = trainer.begin(run, None)
    start = {name: each.clone() for name, each in state.modules.root.state_dict().items()}
    made = list(itertools.islice(trainer.training_steps(run, state), 5))
    after, _ = load_extractor(run)([root / "a/000.png"])

    assert [each.step for each in made] == [1, 2, 3, 4, 5]
    assert not state.modules.frozen
    assert not torch.equal(start["output.weight"], state.modules.root.state_dict()["output.weight"])
    assert torch.equal(before, after)
    assert not [each for each in map(type, state.modules.root.modules()) if issubclass(each, Extractor)]


def test_a_plan_needs_neither_data_nor_weights(make_run):
    """Without inputs the head of a plan has a thousand classes; with data it has those of the data."""
    run = dataclasses.replace(make_run([], **RESOLVED, hidden_width=8), inputs={}, weights={})
    rehearsed = dry_run(FeatureHeadTrainer(), run)
    rows = [{"text": f"text {index}", "label": "abc"[index % 3]} for index in range(9)]
    known = head.build_model(make_run(rows), weights=False).root

    assert rehearsed.size.trained == 384 * 8 + 8 + 8 * 1000 + 1000
    assert known.output.out_features == 3
