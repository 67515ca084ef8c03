"""Receivers of uploads for tests: this project's own listener with its store, and a real S3 with boto3."""

from __future__ import annotations

import base64
import hashlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loopback import free
from lying_server import body_of

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.listener import Desk, Listener, Outputs, Store
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.effort import Effort, UploadTools
from app_trainer_sdk.transfers.faults import Fault
from app_trainer_sdk.transfers.grants import GrantClient, Offer, Target
from app_trainer_sdk.transfers.outgoing import Outgoing, Part, examine
from app_trainer_sdk.transfers.progress import Meter, NoListener
from app_trainer_sdk.transfers.upload import upload
from app_trainer_sdk.transfers.web import Web

KIB = 1024


class Receiver:
    """A listener and its store on free ports."""

    def __init__(self, folder: Path, *, seconds: float = 900.0, token: str = "", quota: int = 0) -> None:
        self.store = Store(folder / "store", quota=quota)
        self.desk = Desk(folder)
        self.outputs = Outputs(self.desk, self.store, seconds=seconds)
        self.listener = Listener(self.desk, token=token, outputs=self.outputs)
        self.grant_url = f"{self.listener.url}/grants"

    def client(self, *, attempt: int = 1, token: str = "", job_id: str = "j") -> GrantClient:
        """Who asks it."""
        said = {"APP_TRAINER_CALLBACK_TOKEN": token}
        return GrantClient(
            self.grant_url, job_id=job_id, attempt=attempt, credentials=Credentials(said), web=web()
        )

    def __enter__(self) -> Receiver:
        self.store.__enter__()
        self.listener.__enter__()
        return self

    def __exit__(self, *ending: object) -> None:
        self.listener.__exit__(*ending)
        self.store.__exit__(*ending)

    def stored(self, *names: str, job_id: str = "j") -> bytes:
        """An object's bytes."""
        return self.store.place("/".join([job_id, *names])).read_bytes()

    def taken(self) -> list[tuple[str, int]]:
        """What the store took whole: the last part of its path, and bytes."""
        rows = [row for row in self.store.requests if row[0] == "PUT" and row[2] == 200]
        return [(path.rpartition("/")[2], size) for _, path, _, size in rows]


class QuickClock:
    """A clock whose pauses take no time, so that a test need not wait for jitter."""

    def __init__(self) -> None:
        self.at = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self.at

    def wait(self, event: threading.Event, seconds: float) -> bool:
        with self._lock:
            self.at += seconds
        return event.is_set()


def web(*, silence: float = 60.0) -> Web:
    """Connections to this machine."""
    return Web(Guard(("127.0.0.1",)), silence_seconds=silence, connect_seconds=silence)


def upload_tools(*, silence: float = 60.0, clock: Any = None, **effort: Any) -> UploadTools:
    """What an upload is made with here: small parts."""
    chosen = Effort(**{"part_bytes": 64 * KIB, "give_up_seconds": 30.0, "connections": 2, **effort})
    return UploadTools(web(silence=silence), chosen, clock=clock or QuickClock(), chance=random.Random(0))


class Gate:
    """A throttle that lets so many bytes pass, and then nothing until somebody wants to stop."""

    rate = 1.0

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def wait(self, size: int, clock: Any, stop: threading.Event) -> float:
        with self._lock:
            self._left -= size
            open_ = self._left >= 0
        if not open_:
            stop.wait(600.0)
        return 0.0

    def lift(self) -> None:
        """It stays as it is."""


def gated(tools: UploadTools, size: int) -> UploadTools:
    """The same, sending so many bytes and no more."""
    return replace(tools, throttle=Gate(size))  # type: ignore[arg-type]


def written(folder: Path, size: int, name: str = "weights.safetensors") -> Path:
    """A file of so many bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(body_of(size))
    return path


def send(
    path: Path, grants: Any, tools: UploadTools, *, check: Callable[[], None] = free, md5: bool = False
) -> Meter:
    """Upload one file as the artifact ``adapter``."""
    part = tools.effort.part_bytes
    file = examine(path, kind="artifact", name="adapter", path=path.name, check=check, part_bytes=part, md5=md5)
    meter = Meter("upload", total=file.size, told=NoListener(), now=tools.clock.now)
    upload(file, grants, tools=tools, check=check, meter=meter)
    return meter


class S3Receiver:
    """What a control plane would do with boto3: real presigned URLs, S3 multipart, checksum headers.

    Moto takes any checksum and does not list those of parts, so what it stored is read before it is called
    verified, and a part is what was granted under its number.
    """

    BUCKET = "outputs"

    def __init__(self, url: str, *, seconds: int = 900) -> None:
        import boto3
        from botocore.config import Config

        self.s3 = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s",
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )  # fmt: skip
        self.s3.create_bucket(Bucket=self.BUCKET)
        self.seconds = seconds
        self.files: dict[str, Outgoing] = {}
        self.ids: dict[str, str] = {}
        self.granted: dict[tuple[str, int], Part] = {}
        self.signed: set[str] = set()

    def grant(self, file: Outgoing) -> Offer:
        key = f"{file.name}/{file.path}"
        self.files[key] = file
        if self._verified(file, key):
            return Offer(verified=True)
        if len(file.part_digests) == 1:
            facts = {"ContentLength": file.size, "ChecksumSHA256": b64(file.sha256)}
            return Offer(upload_id=key, put=self._target("put_object", key, file.sha256, **facts))
        if key not in self.ids:
            begun = self.s3.create_multipart_upload(
                Bucket=self.BUCKET, Key=key, ChecksumAlgorithm="SHA256", Metadata={"sha256": file.sha256}
            )
            self.ids[key] = begun["UploadId"]
        return Offer(upload_id=key)

    def parts(self, upload_id: str, wanted: Sequence[Part]) -> Mapping[int, Target]:
        self.granted |= {(upload_id, each.number): each for each in wanted}
        return {
            each.number: self._target(
                "upload_part", upload_id, each.sha256, UploadId=self.ids[upload_id], PartNumber=each.number,
                ContentLength=each.size, ChecksumSHA256=b64(each.sha256),
            )
            for each in wanted
        }  # fmt: skip

    def stored(self, upload_id: str) -> Mapping[int, str]:
        listed = {each["PartNumber"]: each["Size"] for each in self._listed(upload_id)}
        known = {number: self.granted[upload_id, number] for number in listed}
        return {number: part.sha256 for number, part in known.items() if part.size == listed[number]}

    def complete(self, upload_id: str) -> str:
        if upload_id in self.ids:
            parts = [{name: each[name] for name in ("PartNumber", "ETag")} for each in self._listed(upload_id)]
            self.s3.complete_multipart_upload(
                Bucket=self.BUCKET, Key=upload_id, UploadId=self.ids.pop(upload_id),
                MultipartUpload={"Parts": parts},
            )  # fmt: skip
        return "" if self._verified(self.files[upload_id], upload_id) else "another size or digest"

    def read(self, key: str) -> bytes:
        """An object's bytes."""
        data: bytes = self.s3.get_object(Bucket=self.BUCKET, Key=key)["Body"].read()
        return data

    def _listed(self, upload_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.s3.list_parts(
            Bucket=self.BUCKET, Key=upload_id, UploadId=self.ids[upload_id]
        ).get("Parts", [])
        return rows

    def _verified(self, file: Outgoing, key: str) -> bool:
        try:
            data = self.read(key)
        except self.s3.exceptions.ClientError:
            return False
        return len(data) == file.size and hashlib.sha256(data).hexdigest() == file.sha256

    def _target(self, method: str, key: str, sha256: str, **facts: Any) -> Target:
        url = self.s3.generate_presigned_url(
            method, Params={"Bucket": self.BUCKET, "Key": key, **facts}, ExpiresIn=self.seconds
        )
        (signed,) = parse_qs(urlsplit(url).query)["X-Amz-SignedHeaders"]
        self.signed |= set(signed.split(";"))
        return Target(url, {"x-amz-checksum-sha256": b64(sha256)}, float(self.seconds))


@contextmanager
def moto() -> Iterator[str]:
    """Moto's S3 server in a process of its own; its URL."""
    code = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def b64(digest: str) -> str:
    """A hex digest as S3 writes it."""
    return base64.b64encode(bytes.fromhex(digest)).decode()


class Flaky:
    """A granter that fails at its first questions, as a control plane that starts."""

    def __init__(self, grants: Any, *faults: Fault) -> None:
        self._grants, self._faults = grants, list(faults)

    def __getattr__(self, name: str) -> Any:
        def ask(*words: Any) -> Any:
            if self._faults:
                raise self._faults.pop(0)
            return getattr(self._grants, name)(*words)

        return ask
