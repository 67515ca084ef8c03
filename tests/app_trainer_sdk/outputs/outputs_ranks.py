"""Ranks without torch that make artifacts and checkpoints, for the tests of what becomes of those."""

from __future__ import annotations

from typing import Any

from receivers import Receiver

MAKES = r"""
import hashlib
root = folder.parent.parent
def made(name, data):
    place = root / "artifacts" / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.bin").write_bytes(data)
    row = f"model.bin\0{hashlib.sha256(data).hexdigest()}\n"
    digest = hashlib.sha256(row.encode()).hexdigest()
    return {"name": name, "path": f"artifacts/{name}", "bytes": len(data), "sha256": digest}
def checkpoint(step, data=b"state", best=None):
    place = root / "checkpoints" / f"step-{step:08d}"
    place.mkdir(parents=True)
    driver = {"driver": {"best": {"step": best}, "step": step}}
    files = {"model.safetensors": data, "state.json": json.dumps(driver).encode(), "identity.json": b"{}"}
    listed = {}
    for name, each in files.items():
        (place / name).write_bytes(each)
        listed[name] = {"size": len(each), "sha256": hashlib.sha256(each).hexdigest()}
    manifest = {"schema": "app.trainer.checkpoint/v1", "run": "j", "step": step, "files": listed}
    (place / "manifest.json").write_text(json.dumps(manifest))
    say("checkpoint", step=step, bytes=len(data), seconds=0.1, name=place.name)
def wait_for(name):
    while not (root / name).exists():
        time.sleep(0.01)
"""
#: Everything is done.
DONE = MAKES + "leave(0, 'succeeded', step=3, outputs=[made('weights', b'w' * 1000)], timings={'train': 1.0})"


def job_of(receiver: Receiver, **outputs: Any) -> dict[str, Any]:
    """A job that uploads."""
    return {"job_id": "j", "outputs": {"grant_url": receiver.grant_url, **outputs}}
