"""An archive becomes regular files below one folder, all of them within limits, or nothing."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import free

from app_trainer_sdk.errors import BadData, DiskFull, StopRequested
from app_trainer_sdk.transfers import archives
from app_trainer_sdk.transfers.archives import Limits, unpack

FILES = {"rows.jsonl": b"{}\n", "pictures/a.png": bytes(range(256)) * 10, "empty": b""}


def zipped(path: Path, files: dict[str, bytes], **said: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            info = zipfile.ZipInfo(name)
            for key, value in said.items():
                setattr(info, key, value)
            archive.writestr(info, body, zipfile.ZIP_DEFLATED)
    return path


def tarred(
    path: Path, files: dict[str, bytes], *, mode: str = "w", form: int = tarfile.PAX_FORMAT, **said: Any
) -> Path:
    with tarfile.open(path, mode, format=form) as archive:  # type: ignore[call-overload]
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            for key, value in said.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(body))
    return path


def opened(archive: Path, kind: Any, *, limits: Limits | None = None, check: Callable[[], None] = free) -> Path:
    return unpack(
        archive, archive.parent / "in", kind=kind, limits=limits or Limits(), check=check, setting="/i"
    )


def contents(folder: Path) -> dict[str, bytes]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in files}


def refused(archive: Path, kind: Any, words: str, *, limits: Limits | None = None) -> None:
    with pytest.raises(BadData, match=words) as caught:
        opened(archive, kind, limits=limits)

    assert caught.value.code == 65
    assert contents(archive.parent / "in") == {}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_in_any_compression(tmp_path: Path, mode: str):
    """Known by its first bytes, whatever it is called."""
    assert contents(opened(tarred(tmp_path / "a", FILES, mode=mode), "tar")) == FILES


def test_a_zip_and_a_second_start(tmp_path: Path):
    """What is whole is used again; another archive has another folder."""
    archive = zipped(tmp_path / "a.zip", FILES)
    folder = opened(archive, "zip")
    made = (folder / "rows.jsonl").stat().st_ino

    assert contents(folder) == FILES
    assert opened(archive, "zip") == folder
    assert (folder / "rows.jsonl").stat().st_ino == made
    assert opened(zipped(tmp_path / "a.zip", {"x": b""}), "zip") != folder


def test_what_was_unpacked_before_a_power_cut_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its files may have lost their bytes; so is what a kill left half done."""
    archive = zipped(tmp_path / "a.zip", FILES)
    folder = opened(archive, "zip")
    (folder / "rows.jsonl").write_bytes(b"")
    (folder.parent / f".{folder.name}").mkdir()
    monkeypatch.setattr(archives, "boot_id", lambda: "another")

    assert contents(opened(archive, "zip")) == FILES


def test_long_names_and_many_of_them(tmp_path: Path):
    """Beyond what old formats could: in PAX, GNU and zip."""
    name = "/".join(["x" * 200] * 4)
    for number, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        assert contents(opened(tarred(tmp_path / f"{number}.tar", {name: b"a"}, form=form), "tar")) == {
            name: b"a"
        }
    assert contents(opened(zipped(tmp_path / "a.zip", {name: b"a"}), "zip")) == {name: b"a"}


def test_zip64(tmp_path: Path):
    """Headers of 64 bits, as writers of streams make them."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made, made.open("big", "w", force_zip64=True) as file:
        file.write(b"bytes")

    assert contents(opened(tmp_path / "a.zip", "zip")) == {"big": b"bytes"}


def test_zip64_by_the_number_of_entries(tmp_path: Path):
    """More than 65,535 of them: the count stands in the record of 64 bits alone. All but one are the folder."""
    path, count = zipped(tmp_path / "a.zip", {"last": b"bytes"}), 66_000
    body = path.read_bytes()
    start = body.index(b"PK\x01\x02")
    last = body[start : body.index(b"PK\x05\x06")]
    here = last[:28] + struct.pack("<H", 2) + last[30:46] + b"./"
    directory = here * (count - 1) + last
    end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), start)
    end += struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(directory), 1)
    end += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(body[:start] + directory + end)

    refused(path, "zip", "66,000 entries", limits=Limits(max_files=65_999))
    assert contents(opened(path, "zip")) == {"last": b"bytes"}


def test_zip64_of_a_file_beyond_4_gib(tmp_path: Path):
    """Five GiB of zeros in 5 MB: its sizes stand in 64 bits, and it is refused as the bomb it is."""
    packer, size = zlib.compressobj(wbits=-15), 5 << 30
    part = packer.compress(bytes(64 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = part * (size // (64 << 20)) + zlib.compressobj(wbits=-15).flush()
    extra = struct.pack("<HHQQ", 1, 16, size, len(data))
    common = struct.pack("<HHHHHIIIHH", 45, 0, 8, 0, 0x21, 0, 0xFFFFFFFF, 0xFFFFFFFF, 3, len(extra))
    local = b"PK\x03\x04" + common + b"big" + extra + data
    central = b"PK\x01\x02" + struct.pack("<H", 45) + common + bytes(14) + b"big" + extra
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)
    (tmp_path / "a.zip").write_bytes(local + central + end)

    with zipfile.ZipFile(tmp_path / "a.zip") as read:
        assert read.getinfo("big").file_size == size
    refused(tmp_path / "a.zip", "zip", "limits/max_ratio")
    refused(tmp_path / "a.zip", "zip", "limits/max_bytes", limits=Limits(max_bytes=size - 1, max_ratio=2000))


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "C:/x", "a\\..\\x", "a/./b", "a\nb", "x" * 300]
)
def test_names_that_leave_the_folder(tmp_path: Path, name: str):
    """In both formats, and nothing of the archive stays."""
    refused(tarred(tmp_path / "a.tar", {"good": b"1", name: b"2"}), "tar", "is (a|an) ")
    refused(zipped(tmp_path / "a.zip", {"good": b"1", name: b"2"}), "zip", "is (a|an) ")
    assert [each.name for each in tmp_path.iterdir() if each.name not in ("a.tar", "a.zip")] == ["in"]


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE],
)  # fmt: skip
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: bytes):
    """Also a link that leads inside: what it means changes with what is unpacked after it."""
    archive = tarred(tmp_path / "a.tar", {"x": b""}, type=kind, linkname="y")
    if kind == tarfile.CONTTYPE:  # an old word for a regular file
        assert contents(opened(archive, "tar")) == {"x": b""}
    else:
        refused(archive, "tar", "a link, a device")


@pytest.mark.parametrize("mode", [0o120777, 0o020666, 0o010644])
def test_links_and_devices_in_a_zip(tmp_path: Path, mode: int):
    """Unix modes in the attributes."""
    refused(
        zipped(tmp_path / "a.zip", {"x": b"/etc/passwd"}, external_attr=mode << 16), "zip", "a link or a device"
    )


def test_the_same_name_twice(tmp_path: Path):
    """And a file where another entry needs a folder."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("x", b"1")
        archive.writestr("x", b"2")
    refused(tmp_path / "a.zip", "zip", "'x' twice")
    refused(tarred(tmp_path / "b.tar", {"x": b"1", "x/y": b"2"}), "tar", "both as a file and as a folder")
    refused(tarred(tmp_path / "c.tar", {"x/y": b"1", "x": b"2"}), "tar", "twice")


def test_limits_on_files_bytes_and_ratio(tmp_path: Path):
    """Counted as they come; the setting is named."""
    bomb = {"zeros": bytes(40 << 20)}
    refused(tarred(tmp_path / "a.tar", FILES), "tar", "limits/max_files", limits=Limits(max_files=2))
    refused(tarred(tmp_path / "b.tar", FILES), "tar", "limits/max_bytes", limits=Limits(max_bytes=100))
    refused(zipped(tmp_path / "c.zip", bomb), "zip", "limits/max_ratio")
    refused(tarred(tmp_path / "d.tar", bomb, mode="w:gz"), "tar", "limits/max_ratio")
    assert (
        opened(zipped(tmp_path / "e.zip", {"zeros": bytes(1 << 20)}), "zip") / "zeros"
    ).stat().st_size == 1 << 20


def test_a_zip_that_lies_about_its_sizes(tmp_path: Path):
    """Claims a few bytes and unpacks to more: the format's own check or ours, never more than was claimed."""
    path = zipped(tmp_path / "a.zip", {"zeros": bytes(1 << 20)})
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", 1 << 20), struct.pack("<I", 10)))
    refused(path, "zip", "cannot be unpacked")


def test_a_header_that_is_a_bomb(tmp_path: Path):
    """A PAX header of many mebibytes is not taken into memory."""
    refused(
        tarred(tmp_path / "a.tar", {"x": b""}, mode="w:gz", pax_headers={"comment": "x" * (3 << 20)}),
        "tar",
        "header",
    )


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[: len(body) // 2], lambda body: b"", lambda body: b"x" * 2000,
        lambda body: body.replace(b"\x00\x01\x02\x03", b"\x00\x01\x02\x02", 1),
    ],
)  # fmt: skip
def test_broken_archives(tmp_path: Path, kind: Any, damage: Callable[[bytes], bytes]):
    """Cut, empty, no archive at all, a flipped bit: nothing is used."""
    path = tmp_path / "a"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", bytes(range(256)) * 100)
    if kind == "tar":
        tarred(path, {"x": bytes(range(256)) * 100}, mode="w:gz")
    body = damage(path.read_bytes())
    if body == path.read_bytes():
        body = body[:-30]
    path.write_bytes(body)
    refused(path, kind, "cannot be unpacked|CRC")


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:1024],
        lambda body: body[:1300],
        lambda body: body[:1024] + b"x" + body[1025:],
        lambda body: body[:1152] + b"7777" + body[1156:],
        lambda body: body[:2048],
        lambda body: body + body,
    ],
    ids=["ends between", "ends in a header", "another name", "another size", "no end", "two"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_tar_of_which_the_library_reads_a_part(
    tmp_path: Path, damage: Callable[[bytes], bytes], compressed: bool
):
    """It takes what it cannot read behind the first entry for the end: half of the rows, and no error."""
    path = tarred(tmp_path / "a", {"one": b"1" * 512, "two": b"2" * 512}, form=tarfile.USTAR_FORMAT)
    body = damage(path.read_bytes())
    path.write_bytes(gzip.compress(body) if compressed else body)

    refused(path, "tar", "an entry that cannot be read, or no end|more behind its end")


def test_a_checksum_behind_the_last_entry_is_looked_at(tmp_path: Path):
    """It stands at the end of what the tar is compressed with, which nobody has to read for the entries."""
    path = tarred(tmp_path / "a", FILES, mode="w:gz")
    body = bytearray(path.read_bytes())
    body[-6] ^= 1
    path.write_bytes(body)

    refused(path, "tar", "CRC check failed")


def test_an_encrypted_zip(tmp_path: Path):
    """Nobody has the password."""
    path = zipped(tmp_path / "a.zip", {"x": b"abc"})
    body = bytearray(path.read_bytes())
    body[body.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(body)
    refused(path, "zip", "is encrypted")


def test_a_wish_to_stop_and_a_full_disk_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Half an archive is no folder; the claim of a zip that cannot fit is refused at once (73)."""
    archive, looks = zipped(tmp_path / "a.zip", FILES), []

    def check() -> None:
        looks.append(1)
        if len(looks) > 2:
            raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        opened(archive, "zip", check=check)
    assert contents(tmp_path / "in") == {}
    monkeypatch.setattr(archives, "free_bytes", lambda folder: 100)
    with pytest.raises(DiskFull, match="to unpack"):
        opened(archive, "zip")
    assert contents(tmp_path / "in") == {}


@given(st.binary(max_size=300), st.integers(0, 2000))
def test_noise_in_an_archive_never_gets_outside(noise: bytes, at: int):
    """Any bytes put anywhere into an archive: its folder whole, or an error of ours."""
    folder = Path(os.environ["PYTEST_TMP"])
    path = tarred(folder / "n.tar", FILES)
    body = path.read_bytes()
    path.write_bytes(body[:at] + noise + body[at + len(noise) :])
    with contextlib.suppress(BadData):
        opened(path, "tar")

    assert {each.name for each in folder.iterdir()} <= {"n.tar", "in"}


@pytest.fixture(autouse=True)
def folder_for_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis calls one test many times."""
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))
