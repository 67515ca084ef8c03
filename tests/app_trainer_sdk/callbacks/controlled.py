"""A rank that makes an artifact, and a job that is told to a control plane."""

from __future__ import annotations

from app_trainer_sdk.listener import Listener

OUTPUT = {"name": "w", "path": "artifacts/w", "bytes": 77, "sha256": "0" * 64}
SUCCEEDS = f"train(3)\nleave(0, 'succeeded', outputs=[{OUTPUT}])"


def control(listener: Listener) -> dict[str, str]:
    return {"url": f"{listener.url}/events?key=planted-key", "mode": "control"}
