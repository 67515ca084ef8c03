"""Features: computed once, stored whole or not at all, and never another backbone's."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from app_trainer_sdk.errors import BadData, StopRequested
from app_trainer_sdk.training.feature_store import Features
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.training.phases import run_phases
from trainer_images.feature_head import features
from trainer_images.feature_head.backbone import Extractor, load_extractor
from trainer_images.feature_head.trainer import FeatureHeadTrainer
from trainer_images.feature_head.weights import FILE

CPU = torch.device("cpu")
KILLED = """
import os, pathlib, signal, sys
import torch
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.feature_store import Features
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.training.phases import run_phases
from trainer_images.feature_head.models import MODELS
from trainer_images.feature_head.trainer import FeatureHeadTrainer

data, base, cache = map(pathlib.Path, sys.argv[1:])

asked = []

def progress(label, done, total):
    asked.append(label)
    if asked.count("extract a shard") == 17:
        os.kill(os.getpid(), signal.SIGKILL)

run = Run(
    settings=FeatureHeadTrainer.hyperparameters_class.read({"extraction_batch": 1}), model=MODELS[1],
    method="head", directory=cache, cache=cache, weights={"base": base}, inputs={"dataset": data},
    device=torch.device("cpu"), dtype=torch.float32, progress=progress,
)
run_phases(FeatureHeadTrainer(), run, Ledger(probe_for(run.device), lambda row: None, policy="report"))
"""


@pytest.fixture
def ledger():
    """A ledger and the rows it wrote."""
    rows = []
    return Ledger(probe_for(CPU), rows.append, policy="report"), rows


@pytest.fixture
def other_backbone(converted, tmp_path):
    """Weights of the same shapes and other numbers."""
    tensors = load_file(converted / FILE)
    tensors["stem.bias"] += 1.0
    save_file(tensors, tmp_path / "other.safetensors")
    return tmp_path / "other.safetensors"


def read(run):
    stored = Features(run, "features")
    return torch.cat([stored[number]["features"] for number in range(len(stored))])


def test_another_backbones_features_are_never_used(make_run, draw, converted, other_backbone, ledger, tmp_path):
    """I6: the same weights again use the stored features; other weights of the same output size do not."""
    root = draw(tmp_path / "data", {"a": 3, "b": 3})
    runs = [make_run(root, base=base) for base in (converted / FILE, other_backbone, converted / FILE)]
    for run in runs:
        run_phases(FeatureHeadTrainer(), run, ledger[0])
    first, other, again = map(read, runs)

    assert [row.reused for row in ledger[1]] == [False, False, True]
    assert first.shape == other.shape
    assert not torch.equal(first, other)
    assert torch.equal(first, again)


def test_labels_and_splits_move_no_feature(make_run):
    """Another class, seed or share uses the stored features; another text, length or precision does not."""
    rows = [{"text": f"text {index}", "label": "ab"[index % 2]} for index in range(20)]
    swapped = [{**row, "label": "ab"[index % 3 % 2]} for index, row in enumerate(rows)]

    def key(lines, dtype=torch.float32, **settings):
        (phase,) = features.phases(dataclasses.replace(make_run(lines, **settings), dtype=dtype))
        return phase.key

    assert key(rows) == key(swapped, seed=1, test_share=0.3, hidden_width=8)
    assert key(rows) != key([*rows, {"text": "new", "label": "a"}])
    assert key(rows) != key(rows, max_length=16)
    assert key(rows) != key(rows, dtype=torch.bfloat16)


def test_half_an_extraction_is_never_trained_on(make_run, draw, converted, ledger, tmp_path):
    """I6: killed at 16 of 24 nothing is finished; the next run computes the rest, with the bits of one go."""
    root = draw(tmp_path / "data", {"a": 12, "b": 12})
    cache = tmp_path / "cache"
    cache.mkdir()
    command = [sys.executable, "-c", KILLED, root, converted / FILE, cache]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not list((cache / "features").glob("feature_head-features-*"))
    killed = make_run(root, base=converted / FILE, extraction_batch=1)
    whole = dataclasses.replace(killed, cache=tmp_path / "other", store={}, facts={})
    for run in (killed, whole):
        run_phases(FeatureHeadTrainer(), run, ledger[0])
    assert [row.reused for row in ledger[1]] == [False, False]
    assert killed.facts["features"]["shards"] == {"items": 2, "computed": 1, "reused": 1, "damaged": 0}
    assert torch.equal(read(killed), read(whole))


def test_a_damaged_shard_is_computed_again(make_run, draw, converted, ledger, tmp_path):
    """A file cut short is found before training, and made again."""
    root = draw(tmp_path / "data", {"a": 2, "b": 2})
    run = make_run(root, base=converted / FILE)
    run_phases(FeatureHeadTrainer(), run, ledger[0])
    before = read(run).clone()
    (file,) = (run.cache / "features/items").rglob("*.safetensors")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-100])
    run_phases(FeatureHeadTrainer(), run, ledger[0])

    assert [(row.reused, row.damaged) for row in ledger[1]] == [(False, 0), (False, 1)]
    assert torch.equal(before, read(run))


def test_a_stop_is_heard_between_batches(make_run, draw, ledger, tmp_path):
    """The extraction looks before every batch, and leaves nothing behind."""
    root, asked = draw(tmp_path / "data", {"a": 4, "b": 4}), []

    def progress(label, done, total):
        if label == "extract a shard":
            asked.append((done, total))

    def check():
        if len(asked) == 3:
            raise StopRequested("canceled")

    run = dataclasses.replace(make_run(root, extraction_batch=2), check=check, progress=progress)
    with pytest.raises(StopRequested):
        run_phases(FeatureHeadTrainer(), run, ledger[0])
    assert asked == [(0, 4), (1, 4), (2, 4)]
    assert not list((run.cache / "features").glob("*feature_head-features*"))
    assert not list((run.cache / "features/items").rglob("*.safetensors"))


def test_the_backbone_never_sees_more_than_one_batch(make_run, draw, extracted, tmp_path, monkeypatch):
    """Memory is bounded by extraction_batch; equal pictures are computed once."""
    root, seen = draw(tmp_path / "data", {"a": 4, "b": 3}), []
    (root / "a/copy.png").write_bytes((root / "a/000.png").read_bytes())
    whole = Extractor.__call__
    monkeypatch.setattr(Extractor, "__call__", lambda self, rows: seen.append(len(rows)) or whole(self, rows))
    facts = extracted(make_run(root, extraction_batch=3))

    assert seen == [3, 3, 1]
    assert (facts["contents"], facts["features"], facts["dtype"]) == (7, 1024, "float32")


def test_a_corrupt_picture_is_an_error_that_names_it(make_run, draw, extracted, tmp_path):
    """File, reason and the setting that leaves such files out."""
    root = draw(tmp_path / "data", {"a": 3, "b": 3})
    (root / "b/001.png").write_bytes(b"no picture")

    with pytest.raises(BadData, match=r"b/001.png cannot be decoded: its bytes are of no known.*on_corrupt"):
        extracted(make_run(root))


def test_a_corrupt_picture_is_left_out_and_counted_when_asked(make_run, draw, extracted, tmp_path):
    """The row keeps its place without features; facts name it; nothing about it trains."""
    root = draw(tmp_path / "data", {"a": 3, "b": 3})
    (root / "b/001.png").write_bytes(b"no picture")
    run = make_run(root, on_corrupt="skip", validation_share=0, test_share=0)
    facts = extracted(run)
    dataset = features.read_features(run, "train")
    rows = [dataset.item(index) for index in range(len(dataset))]

    assert (facts["skipped"], facts["skipped_files"]) == (1, ["b/001.png"])
    assert [row.usable for row in rows] == [True] * 4 + [False, True]
    assert [row.label for row in rows] == [0, 0, 0, 1, 1, 1]


def test_a_class_needs_a_picture_that_can_be_decoded(make_run, draw, extracted, tmp_path):
    """Skipping every picture of a class, or all of them, is no training set."""
    root = draw(tmp_path / "data", {"a": 2, "b": 1})
    (root / "b/000.png").write_bytes(b"no picture")
    run = make_run(root, on_corrupt="skip")
    extracted(run)

    with pytest.raises(BadData, match=r"no training picture of the class 'b'"):
        features.read_features(run, "train")
    for index in range(2):
        (root / f"a/00{index}.png").write_bytes(b"no picture %d" % index)
    with pytest.raises(BadData, match=r"not one of 3 pictures"):
        extracted(make_run(root, on_corrupt="skip"))


def test_a_row_gets_the_features_of_its_own_text(make_run, extracted):
    """Whatever the order of extraction, row and features belong together, in every split."""
    rows = [
        {"text": "word " * (1 + index * 7 % 5) + str(index), "label": "ab"[index % 2]} for index in range(12)
    ]
    run = make_run(rows, extraction_batch=4, validation_share=0.3, test_share=0.0)
    extracted(run)
    extractor = load_extractor(run)
    for split in ("train", "validation"):
        dataset = features.read_features(run, split)
        texts = [row.content for row in features.read_splits(run)[0][split]]
        expected, _ = extractor(texts)
        found = torch.stack([dataset.item(index).features for index in range(len(dataset))])
        assert torch.allclose(found, expected, atol=1e-5)

    assert len(features.read_features(run, "test")) == 0
