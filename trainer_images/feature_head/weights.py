"""Owns the backbone's weights on disk: which file, its digest, its identity, and the phase that converts ONNX.

It must not know data, heads or training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import BadData, InputMissing
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON, Phase
from trainer_images.feature_head.rows import file_digest

#: Raise it when the same ONNX file would become other tensors.
CONVERTER_VERSION = 1
FILE = "model.safetensors"


def phases(run: Run) -> Sequence[Phase]:
    """The conversion, when the weights are an ONNX file; safetensors are used as they are."""
    if not _is_onnx(run):
        return ()
    key = {"weights": backbone_digest(run), "converter": CONVERTER_VERSION}
    return (Phase("weights", convert, key, uses=()),)


def weights_file(run: Run) -> Path:
    """The safetensors file to load: converted by the phase, or given.

    Raises:
        InputMissing: there is none.
    """
    return run.store["weights"] / FILE if _is_onnx(run) else _source(run)


def backbone_digest(run: Run) -> str:
    """SHA-256 of the weights as they came: another backbone never shares features with this one."""
    return file_digest(_source(run))


def backbone_identity(run: Run) -> dict[str, JSON]:
    """What an artifact says of its backbone: enough to find it again and to refuse another; never a path."""
    source, digest = run.model.weights.get("base"), backbone_digest(run)
    known = source is not None and digest == source.sha256
    return {
        "model": run.model.name,
        "name": source.hub or source.package if known else run.model.name,
        "revision": source.revision if known else "",
        "sha256": digest,
        "licence": run.model.licence,
    }


def convert(run: Run, directory: Path) -> Mapping[str, JSON]:
    """Write the convolutions of an ONNX ResNet, batch norm folded in, as safetensors under our names.

    Raises:
        BadData: the file does not hold this architecture's convolutions.
    """
    # onnx takes half a second to import, which a second run need not pay.
    from safetensors.numpy import save_file

    tensors = _convolutions(_source(run))
    run.check()
    save_file(tensors, directory / FILE)
    return {"parameters": sum(each.size for each in tensors.values()), "dtype": "float32"}


#: Where tensorflow's exporter put a convolution, and its place in :class:`~.resnet.ResNet`.
STEM, BLOCK = re.compile(r"bn_1/"), re.compile(r"bn_stage(\d+)_block(\d+)_(branch2[abc]|proj_shortcut)/")
PARTS = {"branch2a": "reduce", "branch2b": "middle", "branch2c": "expand", "proj_shortcut": "shortcut"}


def _convolutions(file: Path) -> dict[str, Any]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(file).graph
    values = {each.name: each for each in graph.initializer}
    tensors = {}
    for node in graph.node:
        if node.op_type == "Conv":
            name = _module_name(node.output[0], file)
            tensors[f"{name}.weight"] = numpy_helper.to_array(values[node.input[1]])
            tensors[f"{name}.bias"] = numpy_helper.to_array(values[node.input[2]])
    return tensors


def _module_name(output: str, file: Path) -> str:
    if STEM.match(output):
        return "stem"
    if place := BLOCK.match(output):
        return f"stages.{place[1]}.{place[2]}.{PARTS[place[3]]}"
    raise BadData(
        f"{file.name}: a convolution that gives {output!r}", expected="the stem and four stages of a ResNet-50",
        setting="/weights/base",
    )  # fmt: skip


def _is_onnx(run: Run) -> bool:
    return "base" in run.weights and run.weights["base"].suffix == ".onnx"


def _source(run: Run) -> Path:
    path = run.weights["base"]
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise InputMissing(f"no {FILE} in {path}", expected="the backbone's weights", setting="/weights/base")
    return file
