"""Owns what the listener grants, verifies and remembers of uploads: the other side of ``transfers/grants.py``.

An upload's name follows from its job, place and digest, so that a question asked twice has one answer, after a
restart too. What was verified is one line in ``outputs/<job>.jsonl``. This file must not know HTTP.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.checkpoints import FOLDER, IDENTITY, MANIFEST
from app_trainer_sdk.files import read_json, read_lines, sha256_file, write_json
from app_trainer_sdk.listener.desk import JOB, Desk
from app_trainer_sdk.listener.store import Store
from app_trainer_sdk.names import unsafe_name
from app_trainer_sdk.transfers.grants import BATCH, Target

Answer = tuple[int, dict[str, Any]]
DIGEST_CHARACTERS = 64


class Outputs:
    """Uploads of all jobs.

    Args:
        desk: knows which attempt of a job is the newest.
        store: where bytes go.
        seconds: for which a URL is good.
    """

    def __init__(self, desk: Desk, store: Store, *, seconds: float = 900.0) -> None:
        self.store = store
        self.seconds = seconds
        self._desk = desk
        self._folder = desk.folder / "outputs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def answer(self, body: bytes) -> Answer:
        """Answer one question of an uploader."""
        try:
            asked = json.loads(body)
            if not JOB.fullmatch(asked["job_id"]):
                raise ValueError("no name of a job")
            record = self._desk.jobs().get(asked["job_id"])
            newest = record.attempt if record is not None else 0
            if asked["attempt"] < newest:
                return 409, {"attempt": newest, "error": "fenced"}
            questions: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
                "grant": self._grant, "parts": self._parts, "list": self._list, "complete": self._complete,
            }  # fmt: skip
            with self._lock:
                return questions[asked["do"]](asked)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return 422, {"error": f"{type(error).__name__}: {error}"[:200]}

    def verified(self, job_id: str) -> list[dict[str, Any]]:
        """What is stored of a job: kind, name, path, size, digest and a fresh download URL of each file."""
        rows = {(row["kind"], row["name"], row["path"]): row for row in self._rows(job_id)}
        return [
            {**row, "url": self.store.get_url(_key(job_id, row), seconds=self.seconds)} for row in rows.values()
        ]

    def resume(self, job_id: str) -> dict[str, Any] | None:
        """What a job says under ``resume`` to go on from its newest whole checkpoint; None without one.

        A checkpoint is whole once its manifest is there, which comes last, and those that it needs are.
        """
        files = [each for each in self.verified(job_id) if each["kind"] == "checkpoint"]
        manifests = {each["name"]: each for each in files if each["path"] == MANIFEST}
        for name in sorted(manifests, key=_number, reverse=True):
            needed = [name, *manifests[name].get("needs", ())]
            if any(each not in manifests for each in needed):
                continue
            chosen = [
                {
                    "path": f"{each['name']}/{each['path']}", "size": each["size"], "sha256": each["sha256"],
                    "urls": [each["url"]],
                }
                for each in files
                if each["name"] in needed
            ]  # fmt: skip
            identity = next(
                each["sha256"] for each in files if (each["name"], each["path"]) == (name, IDENTITY)
            )
            return {"step": _number(name)[0], "identity": f"sha256:{identity}", "files": chosen}
        return None

    def _grant(self, asked: Mapping[str, Any]) -> Answer:
        facts = {name: asked[name] for name in ("kind", "name", "path", "size", "sha256", "part_bytes")}
        facts["needs"] = list(asked.get("needs", ()))
        if facts["kind"] not in ("artifact", "checkpoint", "rows"):
            raise ValueError("an unknown kind")
        if wrong := unsafe_name(f"{facts['name']}/{facts['path']}"):
            raise ValueError(wrong)
        if len(bytes.fromhex(facts["sha256"])) * 2 != DIGEST_CHARACTERS or facts["size"] < 0:
            raise ValueError("no size and SHA-256")
        if any(_same(facts, row) for row in self._rows(asked["job_id"])):
            return 200, {"state": "verified", "size": facts["size"], "sha256": facts["sha256"]}
        place = json.dumps([asked["job_id"], *(facts[name] for name in ("kind", "name", "path", "sha256"))])
        upload = hashlib.sha256(f"{place}{facts['part_bytes']}".encode()).hexdigest()[:32]
        write_json(self._file(upload), {"job_id": asked["job_id"], **facts})
        if facts["size"] <= facts["part_bytes"]:
            target = self._target(f"parts/{upload}/1", facts["size"], facts["sha256"])
            return 200, {"state": "put", "upload_id": upload, **target}
        return 200, {"state": "parts", "upload_id": upload}

    def _parts(self, asked: Mapping[str, Any]) -> Answer:
        facts = self._facts(asked)
        if facts is None:
            return 404, {"error": "no such upload"}
        if len(asked["parts"]) > BATCH:
            raise ValueError(f"more than {BATCH} parts")
        rows = []
        for each in asked["parts"]:
            place = f"parts/{asked['upload_id']}/{int(each['number'])}"
            rows.append({"number": each["number"], **self._target(place, each["size"], each["sha256"])})
        return 200, {"parts": rows}

    def _list(self, asked: Mapping[str, Any]) -> Answer:
        if self._facts(asked) is None:
            return 404, {"error": "no such upload"}
        found = self.store.stored_parts(asked["upload_id"])
        rows = [
            {"number": number, "size": size, "sha256": digest}
            for number, (size, digest) in sorted(found.items())
        ]
        return 200, {"parts": rows}

    def _complete(self, asked: Mapping[str, Any]) -> Answer:
        facts = self._facts(asked)
        if facts is None:
            return 404, {"error": "no such upload"}
        job_id = facts.pop("job_id")
        if not any(_same(facts, row) for row in self._rows(job_id)):
            there = sum(size for size, _ in self.store.stored_parts(asked["upload_id"]).values())
            if there != facts["size"]:  # what is there stays
                return 200, {"state": "refused", "reason": f"{there} bytes of {facts['size']}"}
            self.store.compose(asked["upload_id"], _key(job_id, facts))
            place = self.store.place(_key(job_id, facts))
            size = place.stat().st_size
            if size != facts["size"] or sha256_file(place) != facts["sha256"]:
                place.unlink()
                return 200, {"state": "refused", "reason": f"{size} bytes of another digest"}
            with (self._folder / f"{job_id}.jsonl").open("ab") as file:
                file.write(json.dumps(facts).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            self._desk.say(f"{job_id} stored {facts['name']}/{facts['path']}: {size:,} bytes, verified")
        return 200, {"state": "verified", "size": facts["size"], "sha256": facts["sha256"]}

    def _target(self, place: str, size: int, sha256: str) -> dict[str, Any]:
        target: Target = self.store.put_target(place, seconds=self.seconds, size=size, sha256=sha256)
        return {"url": target.url, "headers": dict(target.headers), "expires_s": target.expires_s}

    def _rows(self, job_id: str) -> list[dict[str, Any]]:
        return read_lines(self._folder / f"{job_id}.jsonl") if JOB.fullmatch(job_id) else []

    def _facts(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        path = self._file(bytes.fromhex(asked["upload_id"]).hex())
        facts: dict[str, Any] | None = read_json(path) if path.is_file() else None
        return facts if facts is not None and facts["job_id"] == asked["job_id"] else None

    def _file(self, upload: str) -> Path:
        return self._folder / "granted" / f"{upload}.json"


def _key(job_id: str, facts: Mapping[str, Any]) -> str:
    return f"{job_id}/{facts['kind']}/{facts['name']}/{facts['path']}"


def _same(facts: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return all(facts[name] == row.get(name) for name in ("kind", "name", "path", "size", "sha256"))


def _number(folder: str) -> tuple[int, int]:
    match = FOLDER.fullmatch(folder)
    return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)
