"""Owns the command ``app-trainer listen``: options, keys, and lines on the terminal.

It must not know HTTP or rules.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path

from app_trainer_sdk.arguments import Parser
from app_trainer_sdk.callbacks.signature import secret_bytes
from app_trainer_sdk.claim import make_folder
from app_trainer_sdk.errors import ExitCode, TrainerError
from app_trainer_sdk.listener.desk import Desk, Fault
from app_trainer_sdk.listener.outputs import Outputs
from app_trainer_sdk.listener.server import Listener
from app_trainer_sdk.listener.store import Store
from app_trainer_sdk.redaction import redact

MOST_PORT = 65_535
#: A key and what is answered from then on.
KEYS = {
    "o": "ok", "5": "500", "9": "409", "0": "410", "3": "413", "a": "away", "h": "hang", "d": "delay=3"
}  # fmt: skip
HELP = "keys: c cancel all jobs; from now on answer o right, 5 with 500, 9 409, 0 410, 3 413, a not at all, "
HELP += "h never, d after 3 s; q quit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Listen until somebody says to end."""
    chosen = _parser().parse_args(arguments)
    try:
        make_folder(chosen.folder / "events", setting="FOLDER")
    except TrainerError as error:
        sys.stderr.write(f"listen: {error}\n")
        return int(error.code)
    desk = Desk(
        chosen.folder, say=_say, gpus=chosen.gpus, price=chosen.price, min_interval_s=chosen.min_interval
    )
    desk.line_up(chosen.answers)
    desk.always = chosen.always
    try:
        store, listener = _servers(desk, chosen)
    except OSError as error:
        sys.stderr.write(f"listen: cannot listen on {chosen.host}:{chosen.port}: {error.strerror}\n")
        return int(ExitCode.DEPENDENCY_UNAVAILABLE)
    with store, listener, contextlib.suppress(KeyboardInterrupt):
        _say(f'listening; in a job: "callbacks": {{"url": "{listener.url}/events", "mode": "control"}}')
        _say(f'and "outputs": {{"grant_url": "{listener.url}/grants", "checkpoints": true}}')
        if chosen.cancel_after is not None:
            return _cancel_after(desk, chosen.cancel_after)
        if sys.stdin.isatty():
            _say(HELP)
            _obey_keys(desk)
        while not sys.stdin.isatty():
            time.sleep(3600)
    return 0


def _servers(desk: Desk, chosen: argparse.Namespace) -> tuple[Store, Listener]:
    store = Store(chosen.folder / "store", (chosen.host, chosen.store_port))
    outputs = Outputs(desk, store, seconds=chosen.url_seconds)
    place = (chosen.host, chosen.port)
    try:
        return store, Listener(desk, place, token=chosen.token, keys=chosen.secret, outputs=outputs)
    except OSError:
        store.server_close()
        raise


def press(desk: Desk, key: str) -> bool:
    """Do what a key says; False for the end."""
    if key == "c":
        desk.say("cancel: " + (", ".join(desk.cancel()) or "no job is open"))
    elif key in KEYS:
        desk.released.set()  # who waits for an answer gets one
        desk.released.clear()
        desk.always = Fault.parse(KEYS[key])
        desk.say(f"from now on: {KEYS[key]}")
    elif key == "?":
        desk.say(HELP)
    return key not in ("q", "\x03", "\x04", "")


def _obey_keys(desk: Desk) -> None:
    with _one_key_at_a_time():
        while press(desk, os.read(0, 1).decode(errors="replace")):
            pass


def _cancel_after(desk: Desk, steps: int) -> int:
    """Say cancel once a job has made so many updates; the script's form of the key."""
    while True:
        time.sleep(0.05)
        for record in desk.jobs().values():
            if (record.progress or {}).get("step", -1) >= steps and not record.cancel and not record.terminal:
                press(desk, "c")


@contextlib.contextmanager
def _one_key_at_a_time() -> Iterator[None]:
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _say(line: str) -> None:
    sys.stdout.write(time.strftime("%H:%M:%S ") + redact(line) + "\n")
    sys.stdout.flush()


def _faults(text: str) -> list[Fault]:
    try:
        return [Fault.parse(word) for word in text.split(",") if word]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _fault(text: str) -> Fault:
    return (_faults(text) or [Fault()])[0]


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a number from 0 to {MOST_PORT}")
    return int(text)


def _keys(text: str) -> list[bytes]:
    try:
        return [secret_bytes(each) for each in text.split()]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> Parser:
    parser = Parser(prog="app-trainer listen", description="A control plane on your desk.", epilog=HELP)
    add = parser.add_argument
    add(
        "folder", type=Path, nargs="?", metavar="FOLDER", default=Path("listener"),
        help="for events and uploads (listener)",
    )  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=_port, default=8321, help="port; 0 takes a free one (8321)")
    add("--store-port", type=_port, default=0, help="port of the store that uploads go to (a free one)")
    add("--url-seconds", type=float, default=900.0, help="how long a granted URL is good (900)")
    add(
        "--answers", type=_faults, default=[], metavar="LIST",
        help="for the next events, such as 413,503/7,away,ok",
    )  # fmt: skip
    add(
        "--always", type=_fault, default=Fault(), metavar="ANSWER",
        help="for all others, such as 500, hang, delay=0.2",
    )  # fmt: skip
    add("--cancel-after", type=int, metavar="STEP", help="say cancel once a job has made so many updates")
    add("--min-interval", type=float, default=0.0, metavar="SECONDS", help="least time between progress events")
    add("--token", default="", help="ask for this bearer token")
    add("--secret", type=_keys, default=[], help="ask for a signature made with this secret")
    add("--gpus", type=int, default=1, help="GPUs of a job, for its cost")
    add("--price", type=float, default=0.0, help="price of a GPU for an hour")
    return parser


if __name__ == "__main__":
    sys.exit(main())
