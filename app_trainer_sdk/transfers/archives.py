"""Owns unpacking what strangers packed: regular files below one folder, within limits, all of it or nothing.

The standard library reads the formats; what may become a file is decided here. This file must not know where
an archive came from, nor what is in it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, final

from app_trainer_sdk.errors import BadData, DiskFull, is_disk_full
from app_trainer_sdk.files import read_json, remove_tree, sha256_file, write_json
from app_trainer_sdk.names import unsafe_name
from app_trainer_sdk.owner import boot_id
from app_trainer_sdk.quantities import size_text
from app_trainer_sdk.transfers.space import free_bytes

Kind = Literal["zip", "tar"]
PIECE_BYTES = 1 << 20
#: Small text files compress better than any bomb does good: the ratio counts from here.
RATIO_FROM_BYTES = 16 << 20
#: The longest header that tar's reader may take into memory at once.
HEADER_BYTES = 1 << 20
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Limits:
    """What an archive may become.

    Attributes:
        max_files: files and folders.
        max_bytes: bytes of all files, counted as they come and not as the archive says.
        max_ratio: bytes of all files for each byte of the archive.
    """

    max_files: int = 100_000
    max_bytes: int = 64 << 30
    max_ratio: float = 200.0


@dataclass(frozen=True)
class Member:
    """One entry: a folder or a file with its bytes."""

    name: str
    folder: bool
    open: Callable[[], IO[bytes]]


def unpack(
    archive: Path, into: Path, *, kind: Kind, limits: Limits, check: Callable[[], None], setting: str = ""
) -> Path:
    """Unpack an archive to a folder below ``into``, named by its digest; one that is whole is used again.

    Raises:
        BadData: it is broken, holds what must not be unpacked, or is larger than the limits.
        DiskFull: there is no space; nothing is left.
    """
    folder = into / f"unpacked-{sha256_file(archive, check)[:24]}"
    if _is_whole(folder):
        return folder
    beside, mark = folder.with_name(f".{folder.name}"), _mark(folder)
    for left in (beside, folder):
        remove_tree(left)
    mark.unlink(missing_ok=True)
    beside.mkdir(parents=True)
    try:
        _Unpacking(archive, beside, limits, check, setting).run(kind)
        beside.rename(folder)
    except OSError as error:
        if is_disk_full(error):
            found = f"no space to unpack {archive.name}"
            raise DiskFull(found, expected="free disk space", setting=setting) from error
        raise BadData(f"{archive.name}: {error}", expected=f"a {kind} archive", setting=setting) from None
    except _BROKEN as error:
        found = f"{archive.name} cannot be unpacked: {type(error).__name__}: {str(error)[:200]}"
        raise BadData(found, expected=f"a whole {kind} archive", setting=setting) from None
    finally:
        remove_tree(beside)
    write_json(mark, {"boot": boot_id()})
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether all was unpacked, and the machine ran on since: then no file lost its bytes in a power cut."""
    try:
        return folder.is_dir() and bool(boot_id()) and read_json(_mark(folder))["boot"] == boot_id()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _mark(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.json")


@final
class _Unpacking:
    """One archive while it is unpacked."""

    def __init__(
        self, archive: Path, folder: Path, limits: Limits, check: Callable[[], None], setting: str
    ) -> None:
        self._archive = archive
        self._folder = folder
        self._limits = limits
        self._check = check
        self._setting = setting
        self._size = max(1, archive.stat().st_size)
        self._entries = 0
        self._bytes = 0
        self._files: set[str] = set()

    def run(self, kind: Kind) -> None:
        with ExitStack() as stack:
            opened = _zip_members if kind == "zip" else _tar_members
            for member in stack.enter_context(opened(self)):
                self._check()
                self._take(member)

    def refuse(self, found: str, expected: str = "regular files and folders below one folder") -> BadData:
        """The error for an archive that must not be unpacked."""
        return BadData(f"{self._archive.name}: {found}", expected=expected, setting=self._setting)

    @property
    def archive(self) -> Path:
        """The archive."""
        return self._archive

    def check_claims(self, entries: int, size: int) -> None:
        """Refuse at once what already says that it is too much; and what will not fit on the disk."""
        if entries > self._limits.max_files:
            raise self.refuse(f"{entries:,} entries", f"at most {self._limits.max_files:,} (limits/max_files)")
        self._check_size(size)
        if size > (free := free_bytes(self._folder)):
            raise DiskFull(
                f"{size_text(free)} free in {self._folder.parent}", expected=f"{size_text(size)} to unpack",
                setting=self._setting,
            )  # fmt: skip

    def _take(self, member: Member) -> None:
        self._entries += 1
        if self._entries > self._limits.max_files:
            raise self.refuse("too many entries", f"at most {self._limits.max_files:,} (limits/max_files)")
        name = member.name.rstrip("/") if member.folder else member.name
        if member.folder and name in (".", ""):
            return
        name = name.removeprefix("./")
        if wrong := unsafe_name(name):
            raise self.refuse(f"{member.name[:80]!r} is {wrong}")
        target = self._folder / name
        if member.folder:
            self._make(target)
            return
        if name in self._files or target.exists():
            raise self.refuse(f"{name[:80]!r} twice", "each name once")
        self._files.add(name)
        self._make(target.parent)
        with member.open() as source, target.open("xb") as file:
            while piece := source.read(PIECE_BYTES):
                self.take_bytes(len(piece))
                file.write(piece)

    def take_bytes(self, size: int) -> None:
        """So many more have come out."""
        self._check()
        self._bytes += size
        self._check_size(self._bytes)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            name = folder.relative_to(self._folder)
            raise self.refuse(f"{str(name)[:80]!r} both as a file and as a folder", "each name once") from None

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise self.refuse(
                f"more than {size_text(self._limits.max_bytes)}",
                f"at most {self._limits.max_bytes:,} bytes (limits/max_bytes)",
            )
        if size > RATIO_FROM_BYTES and size / self._size > self._limits.max_ratio:
            raise self.refuse(
                f"over {self._limits.max_ratio:g} times its own size",
                f"at most {self._limits.max_ratio:g} times (limits/max_ratio)",
            )


@contextmanager
def _zip_members(unpacking: _Unpacking) -> Iterator[Iterator[Member]]:
    with zipfile.ZipFile(unpacking.archive) as archive:
        entries = archive.infolist()
        unpacking.check_claims(len(entries), sum(each.file_size for each in entries))
        yield (_zip_member(unpacking, archive, each) for each in entries)


def _zip_member(unpacking: _Unpacking, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    kind = stat.S_IFMT(entry.external_attr >> 16) if entry.create_system == 3 else 0
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise unpacking.refuse(f"{entry.filename[:80]!r} is a link or a device")
    if entry.flag_bits & 0x1:
        raise unpacking.refuse(f"{entry.filename[:80]!r} is encrypted", "files without a password")
    if entry.orig_filename != entry.filename and "\0" in entry.orig_filename:
        raise unpacking.refuse(f"{entry.filename[:80]!r} has a NUL in its name")
    return Member(entry.filename, entry.is_dir(), lambda: archive.open(entry))


@contextmanager
def _tar_members(unpacking: _Unpacking) -> Iterator[Iterator[Member]]:
    with _decompressed(unpacking.archive) as plain, tarfile.open(fileobj=plain, mode="r:") as archive:  # type: ignore[call-overload]
        yield _walk(unpacking, archive, plain)


def _walk(unpacking: _Unpacking, archive: tarfile.TarFile, plain: _BoundedReader) -> Iterator[Member]:
    while (entry := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
        if not (entry.isreg() or entry.isdir()) or entry.issparse():
            raise unpacking.refuse(f"{entry.name[:80]!r} is a link, a device or no ordinary file")
        yield Member(entry.name, entry.isdir(), lambda entry=entry: _opened(archive, entry))  # type: ignore[misc]
    # The standard library takes whatever it cannot read behind the first entry for the end.
    if plain.last != bytes(tarfile.BLOCKSIZE):
        raise unpacking.refuse("an entry that cannot be read, or no end", "a whole tar archive")
    while rest := plain.read(PIECE_BYTES):  # to the end: only there are checksums of what it is compressed with
        if rest.strip(b"\0"):
            raise unpacking.refuse("more behind its end", "one tar archive")
        unpacking.take_bytes(len(rest))


def _opened(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    opened = archive.extractfile(entry)
    assert opened is not None, "a regular file has bytes"
    return opened


@contextmanager
def _decompressed(path: Path) -> Iterator[_BoundedReader]:
    """A tar's bytes, whatever it is compressed with."""
    with path.open("rb") as file:
        magic = file.read(6)
    openers: dict[bytes, Callable[..., Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ\0": lzma.open,
    }
    opener = next((each for start, each in openers.items() if magic.startswith(start)), io.open)
    with opener(path, "rb") as plain:
        yield _BoundedReader(plain)


@final
class _BoundedReader:
    """A file that hands out no more at once than a header may need: a bomb can be one, too."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        self.last = self._file.read(size)
        return self.last

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()
