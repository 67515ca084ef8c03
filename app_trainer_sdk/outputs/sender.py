"""Owns sending folders of a job: which files in which order, and with which connections.

It must not know when that is due, nor what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.checkpoints import MANIFEST
from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.job import Job
from app_trainer_sdk.paths import number_from_environment
from app_trainer_sdk.transfers.addresses import ANYWHERE, Guard
from app_trainer_sdk.transfers.effort import Effort, Throttle, UploadTools
from app_trainer_sdk.transfers.grants import GrantClient, Grants, OwnTargets
from app_trainer_sdk.transfers.outgoing import Kind, examine
from app_trainer_sdk.transfers.progress import Meter, ProgressListener
from app_trainer_sdk.transfers.upload import upload
from app_trainer_sdk.transfers.web import Web

#: How long nothing may move before a finished run gives up, which is exit code 74.
WAIT_SECONDS = 900.0
#: Of uploads beside training: one connection, and at most so many bytes a second.
BACKGROUND_RATE = float(64 << 20)
#: The control plane's own URLs, and those that it grants, are not a user's.


@final
@dataclass(frozen=True)
class Sender:
    """Uploads of one attempt.

    Attributes:
        grants: who is asked.
        tools: connections, pace, patience.
        md5: whether stores want an MD5, since nobody verifies.
    """

    grants: Grants
    tools: UploadTools
    md5: bool = False

    def send(
        self, kind: Kind, name: str, folder: Path, *, check: Callable[[], None], told: ProgressListener,
        paths: Sequence[str] = (), needs: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        """Upload a folder's files, or some; bytes of what is there now and verified. A manifest goes last.

        Raises:
            UploadFailed: one of them could not be uploaded.
        """
        names = list(paths) or [
            path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()
        ]
        if not names:
            raise UploadFailed(f"{folder} has no files", expected="what was made")
        names.sort(key=lambda each: each == MANIFEST)
        total = sum((folder / each).stat().st_size for each in names)
        meter = Meter(f"upload {name}", total=total, told=told, now=self.tools.clock.now)
        for each in names:
            file = examine(
                folder / each, kind=kind, name=name, path=each, check=check,
                part_bytes=self.tools.effort.part_bytes, md5=self.md5, needs=needs if each == MANIFEST else (),
            )  # fmt: skip
            upload(file, self.grants, tools=self.tools, check=check, meter=meter)
        meter.show()
        meter.finish(len(names))
        return total

    def beside_training(self) -> Sender:
        """The same, so that training does not feel it."""
        rate = number_from_environment("UPLOAD_BYTES_PER_SECOND", BACKGROUND_RATE)
        effort = replace(self.tools.effort, connections=1)
        return replace(self, tools=replace(self.tools, effort=effort, throttle=Throttle(rate)))

    def in_a_hurry(self) -> Sender:
        """The same again with all connections and as fast as can be, when nobody trains any more."""
        self.tools.throttle.lift()
        effort = replace(self.tools.effort, connections=Effort().connections)
        return replace(self, tools=replace(self.tools, effort=effort))

    def patient_for(self, seconds: float) -> Sender:
        """The same, giving up sooner."""
        effort = replace(self.tools.effort, give_up_seconds=seconds)
        return replace(self, tools=replace(self.tools, effort=effort))


def build_sender(job: Job, attempt: int) -> Sender | None:
    """What the job's outputs are sent with; None where it asks for no uploads.

    Raises:
        BadJob: credentials are not what they should be.
    """
    effort = Effort(give_up_seconds=number_from_environment("UPLOAD_WAIT_SECONDS", WAIT_SECONDS))
    if job.outputs.grant_url is not None:
        credentials = Credentials()
        client = GrantClient(
            job.outputs.grant_url, job_id=job.identifier(), attempt=attempt, credentials=credentials,
            web=Web(ANYWHERE, ca_file=credentials.ca_file),
        )  # fmt: skip
        return Sender(client, UploadTools(Web(ANYWHERE), effort))
    if job.outputs.put is not None:
        tools = UploadTools(Web(Guard.from_environment()), effort)
        return Sender(OwnTargets(job.outputs.put), tools, md5=True)
    return None
