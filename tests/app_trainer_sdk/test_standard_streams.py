"""Who reads what a run says may be slow, gone or was never there: the run goes on."""

from __future__ import annotations

import fcntl
import io
import os
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any, TextIO

import pytest

from app_trainer_sdk import standard_streams
from app_trainer_sdk.callbacks.sinks import LinesSink
from app_trainer_sdk.console import Console
from app_trainer_sdk.events import encode_event
from app_trainer_sdk.standard_streams import patient

LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """A small pipe: who reads it, and the stream that leads into it."""
    monkeypatch.setattr(standard_streams, "PATIENCE_SECONDS", 0.05)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
    with open(writer, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor, not a path
        yield reader, stream
        os.close(reader)


def test_a_reader_who_does_not_read_holds_nothing_up(pipe: tuple[int, TextIO]):
    """What fits is said; when somebody reads again it goes on, and tells what is missing."""
    reader, stream = pipe
    kept = patient(stream, lambda size: f"{size} lost\n")
    for _ in range(1000):  # it is waited for once and not for each line
        kept.write(LINE)
    there = os.read(reader, 1 << 20)
    kept.write("again\n")
    after = os.read(reader, 1 << 20).decode()

    assert 0 < len(there) <= 8192
    assert after == f"\n{1000 * len(LINE) - len(there)} lost\nagain\n"


def test_a_slow_reader_misses_nothing(pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch):
    """One that reads within the time that is waited for."""
    monkeypatch.setattr(standard_streams, "PATIENCE_SECONDS", 60.0)
    reader, stream = pipe
    code = "import sys, time\nwhile data := sys.stdin.buffer.read1(4096): time.sleep(0.01); "
    code += "sys.stdout.buffer.write(data); sys.stdout.flush()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=reader, stdout=subprocess.PIPE)
    text = "".join(f"{number:09}\n" for number in range(5000))
    patient(stream).write(text)
    stream.close()

    assert child.communicate()[0].decode() == text


def test_a_reader_who_went_away_is_told_as_always(pipe: tuple[int, TextIO]):
    """An error, as of any stream; the console says nothing more."""
    reader, stream = pipe
    nobody = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nobody, reader)
    os.close(nobody)
    with pytest.raises(BrokenPipeError):
        patient(stream).write("x")
    Console(patient(stream)).lines(["nobody hears it"])


def test_a_terminal_that_was_stopped_holds_nothing_up(monkeypatch: pytest.MonkeyPatch):
    """^S on it; ^Q later."""
    monkeypatch.setattr(standard_streams, "PATIENCE_SECONDS", 0.05)
    keyboard, inner = os.openpty()
    with open(inner, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor, not a path
        kept = patient(stream)
        termios.tcflow(inner, termios.TCOOFF)
        kept.write("unheard\n")
        termios.tcflow(inner, termios.TCOON)
        kept.write("heard\n")

        said = b""
        while said.splitlines()[-1:] != [b"heard"] and select.select([keyboard], [], [], 60)[0]:
            said += os.read(keyboard, 100)  # a terminal gives it piece by piece

        assert said.splitlines()[-1] == b"heard"
        assert kept.isatty()
    os.close(keyboard)


def test_events_as_lines_hold_nothing_up(pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch):
    """``APP_TRAINER_SINKS=stdout`` into a program that hangs."""
    monkeypatch.setattr(sys, "stdout", pipe[1])
    sink = LinesSink()
    event = encode_event({"type": "job.phase", "id": "j.1.1", "more": "x" * 1000})
    for _ in range(100):
        sink.send(event)

    assert os.read(pipe[0], 1 << 20).startswith(event.body + b"\n")


def test_streams_without_a_descriptor_are_as_they_are():
    """Such as tests have."""
    stream = io.StringIO()

    assert patient(stream) is stream


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_were_closed(closed: tuple[int, ...], tmp_path: Any):
    """Their numbers are taken by nothing else, and there is no error for want of them."""
    code = (
        "import os, sys\n"
        f"for number in {closed}: os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'app_trainer_sdk.cli', 'health', sys.argv[1]])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True)

    assert done.returncode == 70
    probe = (
        "import os\n"
        f"for number in {closed}: os.close(number)\n"
        "from app_trainer_sdk.standard_streams import open_standard_streams; open_standard_streams()\n"
        f"assert all(os.readlink(f'/proc/self/fd/{{number}}') == os.devnull for number in {closed})\n"
        f"assert all(os.get_inheritable(number) for number in {closed})"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
