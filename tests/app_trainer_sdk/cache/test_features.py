"""The seal of a file of features: any byte that changed is seen, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app_trainer_sdk.cache.features import SEAL, UNSEALED, is_whole, items_folder, items_of, result_folder, seal


def unsealed() -> bytes:
    """A safetensors file of one tensor."""
    header = {"__metadata__": {SEAL: UNSEALED}, "x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + b"\1\2\3\4"


def test_every_byte_counts(tmp_path: Path):
    """Of the header, of the seal itself and of the tensors; and nothing may be missing or added."""
    path, data = tmp_path / "file", seal(unsealed())
    path.write_bytes(data)

    assert is_whole(path)
    for changed in [data[:-1], data + b"\0", b"", unsealed()]:
        path.write_bytes(changed)
        assert not is_whole(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert not is_whole(path)
    assert not is_whole(tmp_path / "none")


@pytest.mark.parametrize("index", [None, "", "3", "{}", '{"folder": 3}'])
def test_what_names_no_items(tmp_path: Path, index: str | None):
    """A result without items, and what a kill left."""
    result = result_folder(tmp_path, "toy-encode-0")
    result.mkdir(parents=True)
    if index is not None:
        (result / "features.json").write_text(index)

    assert items_of(tmp_path, result) is None


def test_items_lie_in_one_place(tmp_path: Path):
    """Whatever an index says: it names no folder elsewhere."""
    result = result_folder(tmp_path, "toy-encode-0")
    result.mkdir(parents=True)
    for said in ("features/items/latents-1", "../../latents-1"):
        (result / "features.json").write_text(json.dumps({"folder": said}))
        assert items_of(tmp_path, result) == items_folder(tmp_path, "latents-1")
