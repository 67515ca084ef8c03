"""The supervisor as process 1 of a container, and as a process among others: the same care, the same end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from process_helpers import TOY, gone, start_supervisor, wait_for

#: A namespace of process ids: what is started in it first is process 1, and sees itself as such.
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
PERMITTED = subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode == 0
#: An orphan that ends while the rank works; the rank looks whether somebody buries it.
BODY = """
orphan = "import subprocess; print(subprocess.Popen(['sleep', '0.2'], start_new_session=True, stdout=-3).pid)"
told = subprocess.run([sys.executable, "-I", "-S", "-c", orphan], stdout=subprocess.PIPE)
limit = time.monotonic() + 60
while os.path.exists(f"/proc/{int(told.stdout)}"):
    if time.monotonic() > limit: leave(65, "nobody buried it")
    time.sleep(0.02)
(folder / "ready").write_text(f"{os.getppid()}")
obey()
"""


@pytest.mark.parametrize(
    "below",
    [
        pytest.param((), id="among others"),
        pytest.param(
            CONTAINER, id="process 1",
            marks=pytest.mark.skipif(not PERMITTED, reason="no namespaces of processes are permitted here"),
        ),
    ],
)  # fmt: skip
def test_orphans_are_buried_and_a_signal_is_heard(tmp_path: Path, below: tuple[str, ...]):
    """A6: an orphan's status is taken, the rank's own is not, and SIGTERM ends it all as 75."""
    process = start_supervisor(tmp_path, BODY, below=below)
    parent = wait_for(tmp_path / "dir" / "attempts" / "1" / "ready")
    (supervisor,) = [*psutil.Process(process.pid).children()] if below else [psutil.Process(process.pid)]
    supervisor.send_signal(signal.SIGTERM)

    assert process.wait(60) == 75
    assert (parent == "1") == bool(below)
    result = json.loads((tmp_path / "dir" / "result.json").read_text())
    assert (result["exit_code"], result["step"]) == (75, 1)


def test_a_signal_while_the_program_is_loaded(tmp_path: Path):
    """A6: one that comes before anybody listens is heard all the same, and no rank is begun."""
    job = tmp_path / "job.json"
    job.write_text('{"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}')
    words = ["run", "--job", str(job), "--job-dir", str(tmp_path / "dir")]
    code = "import signal, os, sys; from app_trainer_sdk import cli\n"
    code += "find = cli.import_module\n"
    code += "def late(name): os.kill(os.getpid(), signal.SIGTERM); return find(name)\n"
    code += f"cli.import_module = late; sys.exit(cli.main({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)

    assert done.returncode == 75, done.stderr.decode()
    assert not (tmp_path / "dir" / "attempts" / "1" / "logs").exists()


def test_a_signal_after_the_end_was_told(tmp_path: Path):
    """A6: it changes nothing about an exit code that everybody was told."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({**TOY, "inputs": {"dataset": "nowhere"}}))
    words = ["run", "--job", str(job), "--job-dir", str(tmp_path / "dir")]
    code = f"import signal, os, sys; from app_trainer_sdk import cli; code = cli.main({words!r})\n"
    code += "os.kill(os.getpid(), signal.SIGTERM); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)

    assert done.returncode == 66, done.stderr.decode()
    assert json.loads((tmp_path / "dir" / "result.json").read_text())["exit_code"] == 66


def test_a_supervisor_that_was_killed(tmp_path: Path):
    """A6: a rank without torch that reads its line sees the end of it."""
    body = "(folder / 'ready').write_text(str(os.getpid()))\nobey()"
    process = start_supervisor(tmp_path, body)
    rank = int(wait_for(tmp_path / "dir" / "attempts" / "1" / "ready"))
    process.kill()
    process.wait()

    assert gone(rank)
