"""One file, downloaded as the tests of downloads do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loopback import free
from lying_server import body_of, tools

from app_trainer_sdk.transfers.download import Destination, download
from app_trainer_sdk.transfers.progress import Meter, NoListener
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Wanted

SIZE = 500_000
BODY = body_of(SIZE)
PART = 64 * 1024


def place(folder: Path) -> Destination:
    return Destination(folder / "partial", lambda sha256: folder / "final" / sha256)


def get(wanted: Wanted, folder: Path, *, using: Tools | None = None, check: Callable[[], None] = free) -> bytes:
    using = using or tools()
    meter = Meter("file", total=0, told=NoListener(), now=using.clock.now)
    return download(wanted, place(folder), tools=using, check=check, meter=meter).read_bytes()


def finals(folder: Path) -> list[bytes]:
    """What lies under final names."""
    return [each.read_bytes() for each in (folder / "final").glob("*")]
