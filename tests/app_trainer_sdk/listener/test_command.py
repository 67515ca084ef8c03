"""``app-trainer listen``: options, keys, and a process that hears events and ends when told to."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from app_trainer_sdk.listener.command import main, press
from app_trainer_sdk.listener.desk import Desk, Fault


def test_keys_change_what_is_answered(tmp_path: Path):
    """Each says what it does; q ends."""
    lines: list[str] = []
    desk = Desk(tmp_path, say=lines.append)
    for key, fault in {"5": Fault(500), "3": Fault(413), "d": Fault(delay=3.0), "o": Fault()}.items():
        assert press(desk, key)
        assert desk.always == fault
    assert press(desk, "c")
    assert press(desk, "?")
    assert press(desk, "z")
    assert [press(desk, key) for key in ("q", "\x03", "")] == [False] * 3
    assert lines[:2] == ["from now on: 500", "from now on: 413"]
    assert lines[4] == "cancel: no job is open"


@pytest.mark.parametrize(
    "options", [["--answers", "413,never"], ["--always", "7"], ["--secret", "é"], ["--port", "x"]]
)
def test_wrong_options_end_with_64(options: list[str], capsys: pytest.CaptureFixture[str]):
    """And say what was expected."""
    with pytest.raises(SystemExit) as ending:
        main(options)

    assert ending.value.code == 64
    assert options[0] in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """69 and the address, no traceback."""
    from app_trainer_sdk.listener import Listener

    with Listener(Desk(tmp_path)) as server:
        code = main([str(tmp_path), "--port", str(server.server_address[1])])

    assert code == 69
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_the_process(tmp_path: Path):
    """It says what to write into a job, prints what it hears, and ends at Ctrl-C with 0."""
    words = [sys.executable, "-m", "app_trainer_sdk.listener.command", str(tmp_path), "--port", "0"]
    event = {
        "v": 1,
        "id": "j.1.1",
        "job_id": "j",
        "attempt": 1,
        "instance": "i",
        "seq": 1,
        "type": "job.accepted",
    }
    with (
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as at_last,
    ):
        at_last.callback(process.kill)
        assert process.stdout is not None
        said = process.stdout.readline()
        (url,) = re.findall(r'"url": "([^"]+)", "mode": "control"', said)
        request = urllib.request.Request(url, data=json.dumps(event).encode(), method="POST")
        grants = process.stdout.readline()
        with urllib.request.urlopen(request, timeout=60) as answer:
            acknowledged = json.load(answer)["ack"]
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=60) == 0
    assert acknowledged == 1
    assert f'"grant_url": "{url.removesuffix("/events")}/grants"' in grants
    assert line.split(" ", 1)[1] == "j.1.1 job.accepted\n"
