"""The feature store: found by what made it, whole or not there, damaged items made again and counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU, ListRows, drive, make_trainer, open_training

from app_trainer_sdk.cache.command import main as prune_cache
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.feature_store import (
    INDEX,
    Features,
    FeatureStore,
    damaged_items,
    freeze,
    is_whole,
    weights_digest,
)
from app_trainer_sdk.training.phases import FACTS
from app_trainer_sdk.values import Modules, Phase


@pytest.fixture
def run(tmp_path):
    return Run(
        settings=None, model=ModelRow("m", "A model", parameters=1), method="full", directory=tmp_path,
        cache=tmp_path / "cache", device=CPU,
    )  # fmt: skip


def backbone(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


class Extractor:
    """Counts what it is asked to make."""

    def __init__(self, module):
        self.module = module
        self.made = []

    def __call__(self, items):
        self.made += items
        encoded = self.module(torch.tensor([[float(item)] * 3 for item in items]))
        return [{"encoded": row, "label": torch.tensor(item)} for row, item in zip(encoded, items, strict=True)]


def items(*numbers):
    return [(f"item-{number}", number) for number in numbers]


def fill(run, folder, module, numbers, **options):
    folder.mkdir(parents=True, exist_ok=True)
    store = FeatureStore(run, "latents", extractor=module, preprocessing=options.pop("preprocessing", {}))
    extractor = Extractor(module)
    facts = store.fill(folder, items(*numbers), extractor, **options)
    run.store["latents"] = folder
    return store, facts, extractor.made


def test_features_by_position(run, tmp_path):
    """Features come back by position, equal to what was extracted, whatever was extracted at once."""
    module = backbone()
    _, facts, _ = fill(run, tmp_path / "phase", module, range(5), at_once=2)
    features = Features(run, "latents")
    freeze(module)
    expected = module(torch.tensor([[float(number)] * 3 for number in range(5)]))

    assert facts == {"items": 5, "computed": 5, "reused": 0, "damaged": 0}
    assert len(features) == 5
    assert [int(features[at]["label"]) for at in range(5)] == [0, 1, 2, 3, 4]
    assert torch.allclose(torch.stack([features[at]["encoded"] for at in range(5)]), expected, atol=1e-6)
    assert not features[0]["encoded"].requires_grad


def test_another_extractor(run, tmp_path):
    """I6, A13 row 10: other weights or preprocessing never find these features; the same do, in any order."""
    first, _, _ = fill(run, tmp_path / "1", backbone(0), [1, 2])
    other, facts, made = fill(run, tmp_path / "2", backbone(1), [1, 2])
    _, resized, _ = fill(run, tmp_path / "3", backbone(0), [1, 2], preprocessing={"size": 512})
    again, reused, nothing = fill(run, tmp_path / "4", backbone(0), [3, 2, 1])

    assert first.folder != other.folder
    assert (facts["computed"], made) == (2, [1, 2])
    assert resized["computed"] == 2
    assert again.folder == first.folder
    assert (reused, nothing) == ({"items": 3, "computed": 1, "reused": 2, "damaged": 0}, [3])


def test_what_identifies_weights():
    """A digest changes with a value, a buffer, a dtype and a name, and not with the mode."""
    digests = [weights_digest(backbone())]
    digests.append(weights_digest(backbone().eval()))
    for change in (
        lambda module: module[0].bias.data.add_(1e-6), lambda module: module[1].running_mean.add_(1.0),
        lambda module: module.half(), lambda module: module.add_module("2", nn.Linear(1, 1)),
    ):  # fmt: skip
        module = backbone()
        change(module)
        digests.append(weights_digest(module))

    assert digests[0] == digests[1]
    assert len({*digests}) == 5


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "removed", "replaced"])
def test_a_damaged_item(run, tmp_path, damage):
    """I6, A13 row 10: an item whose bytes are not those written is computed again, alone, and counted."""
    store, _, _ = fill(run, tmp_path / "1", backbone(), range(4))
    path = sorted(store.folder.iterdir())[1]
    data = path.read_bytes()
    damages = {"cut": data[:-3], "changed": data[:-1] + bytes([data[-1] ^ 1]), "emptied": b""}
    path.unlink() if damage not in damages else path.write_bytes(damages[damage])
    if damage == "replaced":
        (path / "by a folder").mkdir(parents=True)
    found = damaged_items(tmp_path / "1", run.cache, run.check)
    _, facts, made = fill(run, tmp_path / "2", backbone(), range(4))

    assert found == 1
    assert len(made) == 1
    assert (facts["computed"], facts["reused"]) == (1, 3)
    assert facts["damaged"] == (0 if damage == "removed" else 1)
    assert damaged_items(tmp_path / "2", run.cache, run.check) == 0


def test_reading_a_damaged_item(run, tmp_path):
    """Where a file cannot be read the message names it and what helps."""
    store, _, _ = fill(run, tmp_path / "1", backbone(), [7])
    (path,) = store.folder.iterdir()
    path.write_bytes(b"no tensors")

    assert not is_whole(path)
    with pytest.raises(InternalError, match=r"feature 0 in .* cannot be read.*computes it again"):
        Features(run, "latents")[0]


def test_an_item_that_comes_twice(run, tmp_path):
    """Equal items share one file, also within one call."""
    _, facts, made = fill(run, tmp_path / "1", backbone(), [4, 4, 5], at_once=8)

    assert made == [4, 5]
    assert (facts["items"], facts["computed"]) == (3, 2)
    assert torch.equal(Features(run, "latents")[0]["encoded"], Features(run, "latents")[1]["encoded"])


def test_views_leave_nothing_else_behind(run, tmp_path):
    """Tensors that share memory are written as what they are."""
    whole = torch.arange(6.0).reshape(2, 3)

    def extract(some):
        return [{"a": whole[0], "b": whole[0, 1:], "t": whole.T, "none": whole[:0]}]

    folder = tmp_path / "phase"
    folder.mkdir()
    FeatureStore(run, "latents", extractor="v1").fill(folder, items(1), extract)
    run.store["latents"] = folder
    read = Features(run, "latents")[0]

    assert torch.equal(read["t"], whole.T)
    assert torch.equal(read["b"], whole[0, 1:])
    assert read["none"].shape == (0, 3)


def test_an_extractor_that_changes(run, tmp_path):
    """I6: a frozen extractor is frozen; one that moves its statistics all the same is refused."""
    module = backbone()

    def extract(some):
        module.train()
        return Extractor(module)(some)

    with pytest.raises(InternalError, match="the extractor of latents changed while it worked"):
        FeatureStore(run, "latents", extractor=module).fill(tmp_path, items(1, 2), extract, at_once=2)

    assert not any(each.requires_grad for each in module.parameters())


def test_the_wrong_number_of_features(run, tmp_path):
    """An extractor that gives one feature too few is told."""
    with pytest.raises(InternalError, match="extract gave 0 features; expected 1"):
        FeatureStore(run, "latents", extractor="v1").fill(tmp_path, items(1), lambda some: [])


def feature_head(module, made, stop_at=None):
    """A trainer whose phase extracts features of four items and whose head trains on them."""

    def extract(some):
        made.extend(some)
        if stop_at is not None and len(made) > stop_at:
            raise StopRequested("interrupted")
        return [{"x": row} for row in module(torch.tensor([[float(item)] * 3 for item in some]))]

    def work(run, directory):
        return FeatureStore(run, "features", extractor=module).fill(directory, items(1, 2, 3, 4), extract)

    def loss(modules, values, random):
        return modules.root(torch.stack(values)).pow(2).sum()

    class Rows(ListRows):
        def __init__(self):
            super().__init__([torch.ones(2)] * 4)

    return make_trainer(
        lambda run: Modules(nn.Linear(2, 1)), loss, Rows(), preparation=("features",),
        phases=lambda self, run: [Phase("features", work)],
    )  # fmt: skip


def opened(tmp_path, module, made, **options):
    trainer = feature_head(module, made, **options)
    return open_training(trainer, tmp_path / "job", updates=1, global_batch=2, cache=tmp_path / "cache")


def test_a_phase_that_was_stopped_at_half(tmp_path):
    """I6: half of a phase's features are no result: training never sees them; the next start ends the rest."""
    made = []
    with pytest.raises(StopRequested):
        opened(tmp_path, backbone(), made, stop_at=2)
    features = tmp_path / "cache" / "features"

    assert not [*features.glob(f"*/{INDEX}")]

    training = opened(tmp_path, backbone(), made)

    assert len(Features(training.run, "features")) == 4
    assert training.run.facts["features"]["items"] == 4


def test_a_finished_phase_with_a_damaged_item(tmp_path):
    """I6: a finished phase is skipped when all items are whole; else what is damaged is made again and told."""
    made = []
    rows = [opened(tmp_path, backbone(), made).rows[-1] for _ in range(2)]
    items_folder = next((tmp_path / "cache" / "features" / "items").iterdir())
    sorted(items_folder.iterdir())[0].write_bytes(b"")
    damaged = opened(tmp_path, backbone(), made)

    assert [row.reused for row in rows] == [False, True]
    assert (damaged.rows[-1].reused, damaged.rows[-1].damaged) == (False, 1)
    assert damaged.run.facts["features"]["damaged"] == 1
    assert len(made) == 5
    assert opened(tmp_path, backbone(), made).rows[-1].reused


@pytest.mark.parametrize("name", [INDEX, FACTS])
@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_finished_phase_with_a_damaged_list(tmp_path, name, text):
    """I6: what tells of a result is part of it: where it cannot be read it is made again, from whole items."""
    made = []
    folder = opened(tmp_path, backbone(), made).run.store["features"]
    (folder / name).write_text(text)
    again = opened(tmp_path, backbone(), made)

    assert not again.rows[-1].reused
    assert again.run.facts["features"]["reused"] == 4
    assert len(Features(again.run, "features")) == len(made) == 4


def test_what_a_running_job_uses_is_not_pruned(tmp_path):
    """Features in the making, a finished result and one that is found again outlive a pruning to nothing."""
    made, cache = [], tmp_path / "cache"
    prune = ["prune", "--cache-dir", str(cache), "--max-size", "0", "--max-age-days", "0"]
    module = backbone()

    def meanwhile(*_):
        assert prune_cache(prune) == 0

    module.register_forward_hook(meanwhile)
    for _ in range(2):
        training = opened(tmp_path, module, made)

        assert prune_cache(prune) == 0
        assert len(Features(training.run, "features")) == 4
        assert "x" in Features(training.run, "features")[3]
    assert training.rows[-1].reused
    assert len(made) == 4


@pytest.mark.parametrize("inside", [False, True])
def test_training_leaves_the_extractor_alone(tmp_path, inside):
    """I6: five steps of a head change neither the extractor's statistics nor the features of a picture."""
    extractor = backbone().requires_grad_(False)
    head = nn.Linear(2, 1)
    modules = Modules(head, frozen={"backbone": extractor})
    if inside:
        modules = Modules(nn.Sequential(extractor, head))

    def loss(given, values, random):
        pictures = torch.tensor([[value] * 3 for value in values])
        scores = given.root(pictures) if inside else given.root(given.frozen["backbone"](pictures))
        return scores.pow(2).sum()

    before = extractor[1].running_mean.clone(), weights_digest(extractor)
    picture = torch.ones(1, 3)
    features = extractor.eval()(picture)
    trainer = make_trainer(lambda run: modules, loss, [1.0, 2.0, 3.0, 4.0])
    training = open_training(trainer, tmp_path, updates=5, global_batch=1)
    drive(training)

    assert torch.equal(extractor[1].running_mean, before[0])
    assert weights_digest(extractor) == before[1]
    assert torch.equal(extractor(picture), features)
    assert len(training.applied()) == 5
