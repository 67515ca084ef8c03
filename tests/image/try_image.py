"""Builds the image for the CPU and runs it as a platform would: ``make image-test``. Not part of the suite.

As root, with Debian's ``buildah``, ``debootstrap`` and ``runc``; no daemon, no registry. Torch's wheel is what
pip finds of the one in the lock, or lies in a folder named by ``WHEELS``. Each run is a container of its own:
user 10001:0, the root read-only, no network, no ``/tmp`` to write in, process 1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORK = Path(os.environ.get("IMAGE_WORK", ROOT / "build" / "image"))
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
TRAINER = os.environ.get("TRAINER", "text")
WHEELS = Path(os.environ.get("WHEELS", WORK / "wheels"))
BASE, IMAGE = "localhost/trainer-base", f"localhost/trainer-{TRAINER}"
PACKAGES = "python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates"
LABEL = "app.trainer.describe"
TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".tflite")
#: Larger than any test file of a library, smaller than any model.
WEIGHTS_BYTES = 1 << 20
TRAINER_LAYER_BYTES = 500 * 1000**2


def main() -> int:
    """Build, look, run; the first promise that is not kept ends it."""
    missing = [name for name in ("buildah", "debootstrap", "runc") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.stderr.write(f"image-test needs root and apt-get install {' '.join(missing)}\n")
        return 69
    base_image()
    described = build()
    with_label = build(describe=described)
    assert with_label == described
    image = json.loads(buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
    container = buildah("from", "--pull-never", IMAGE).strip()
    root = Path(buildah("mount", container).strip())
    try:
        look(image, root, described)
        run_all(image, root, described)
    finally:
        buildah("rm", container)
    say("image-test passed")
    return 0


def base_image() -> None:
    """A Debian with Python and a compiler, as the slim base and its apt layer would be."""
    if BASE in buildah("images", "--format", "{{.Name}}").split():
        return
    tree = WORK / "base"
    if not (tree / "usr/bin/gcc").exists():
        run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(tree), MIRROR])
    container = buildah("from", "scratch").strip()
    buildah("add", "--quiet", container, str(tree), "/")
    buildah("commit", "--quiet", "--rm", container, BASE)


def build(describe: str = "") -> str:
    """Build the image; what it wrote about itself."""
    started = time.monotonic()
    arguments = {
        "BASE": BASE, "TRAINER": TRAINER, "REQUIRE_GPU": "0", "REVISION": revision(), "VERSION": "image-test",
        "ACCELERATOR": "cpu", "PIP_FIND_LINKS": "/wheels",
    }  # fmt: skip
    # Certificates of this machine: its package index may have one of its own.
    volumes = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    volumes += ["--volume", f"{wheels().resolve()}:/wheels:ro"]
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    given += ["--label", f"{LABEL}={describe}"] if describe else []
    buildah("build", "--pull-never", "--layers", *volumes, *given, "--tag", IMAGE, str(ROOT), show=True)
    container = buildah("from", "--pull-never", IMAGE).strip()
    text = (Path(buildah("mount", container).strip()) / "describe.json").read_text()
    buildah("rm", container)
    say(f"built in {time.monotonic() - started:.0f} s{' with its label' if describe else ''}")
    return json.dumps(json.loads(text), separators=(",", ":"))


def wheels() -> Path:
    """A folder with torch's wheel for the CPU, which PyPI does not have."""
    if not list(WHEELS.glob("torch-*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(WHEELS)]
        lock = (ROOT / "requirements" / "image-cpu.txt").read_text().splitlines()
        run([*pip, *(line.split()[0] for line in lock if line.startswith("torch=="))])
    return WHEELS


def look(image: Mapping[str, Any], root: Path, described: str) -> None:
    """What can be seen without starting it: entry, user, labels, no weights, sizes of layers."""
    assert image["Entrypoint"] == ["app-trainer"], image
    assert image["Cmd"] == ["run"], image
    assert image["User"] == "10001:0", image
    labels = image["Labels"]
    assert labels[LABEL] == described, "the label is not what describe says"
    assert labels["org.opencontainers.image.revision"] == revision()
    files = [each for each in root.rglob("*") if each.is_file() and not each.is_symlink()]
    models = [each for each in files if each.suffix in WEIGHTS and each.stat().st_size >= WEIGHTS_BYTES]
    assert not models, models
    facts = json.loads((root / "image.json").read_text())
    assert facts["torch"], facts
    assert facts["revision"] == revision()
    say(
        f"{len(files):,} files, {sum(each.stat().st_size for each in files) / 1e9:.2f} GB, none of them weights"
    )
    sizes = layer_sizes()
    torch = sizes.index(max(sizes))  # the largest of all
    trainer = max(sizes[torch + 1 :])
    say(f"torch {facts['torch']}: its layer {sizes[torch] / 1e6:.0f} MB, the trainer's {trainer / 1e6:.0f} MB")
    assert trainer <= TRAINER_LAYER_BYTES


def layer_sizes() -> list[int]:
    """Bytes of the image's layers, lowest first, from the store's own list."""
    [layers] = (WORK / "store").glob("*-layers/layers.json")
    [images] = (WORK / "store").glob("*-images/images.json")
    known = {each["id"]: each for each in json.loads(layers.read_text())}
    named = {name: each["layer"] for each in json.loads(images.read_text()) for name in each.get("names") or ()}
    here, sizes = named[f"{IMAGE}:latest"], []
    while here:
        sizes.append(known[here].get("diff-size", 0))
        here = known[here].get("parent", "")
    return sizes[::-1]


def run_all(image: Mapping[str, Any], root: Path, described: str) -> None:
    """Each promise of a running container."""
    shutil.rmtree(WORK / "runs", ignore_errors=True)
    told = start(image, root, ["describe", TRAINER], "describe")
    assert json.loads(told.wait()) == json.loads(described)
    preflight = start(image, root, ["preflight", "--json"], "preflight", updates=5)
    assert json.loads(preflight.wait())["fit"]
    say("describe and preflight answer")

    tiny = start(image, root, ["run"], "tiny", updates=20)
    tiny.wait()
    result = tiny.read("result.json")
    assert result["status"] == "succeeded", result
    manifest = tiny.read("manifest.json")
    assert manifest["code"]["revision"] == revision()
    say(f"a tiny job ran: {result['outputs'][0]['sha256'][:12]}")

    aliased = start(image, root, ["train"], "alias", updates=20)
    aliased.wait()
    assert aliased.read("result.json")["outputs"] == result["outputs"], (
        "SageMaker's word gives another artifact"
    )

    stopped = start(image, root, ["run"], "stopped", updates=4000, sleep_seconds=0.01)
    stopped.await_progress()
    run(["runc", "kill", stopped.name, "TERM"])
    stopped.wait(expected=75)
    assert stopped.read("result.json")["status"] == "interrupted"
    say("SIGTERM to process 1: 75")
    kept = [each.name for each in (stopped.job / "checkpoints").iterdir()]
    assert kept, "no checkpoint was kept"
    again = start(image, root, ["run"], "stopped", updates=4000, sleep_seconds=0.01)
    line = again.await_progress()
    assert line["step"] > int(max(kept)[5:13]), (line, kept)
    run(["runc", "kill", again.name, "TERM"])
    again.wait(expected=75)
    say(f"resumed after {max(kept)}")


class Started:
    """One container."""

    def __init__(self, name: str, process: subprocess.Popen[str], job: Path) -> None:
        self.name = name
        self.process = process
        self.job = job

    def wait(self, *, expected: int = 0, seconds: float = 300.0) -> str:
        """What it printed, once it ended as expected."""
        out, error = self.process.communicate(timeout=seconds)
        assert self.process.returncode == expected, (self.process.returncode, out[-2000:], error[-2000:])
        return out

    def read(self, name: str) -> Any:
        """A document of its job."""
        return json.loads((self.job / name).read_text())

    def await_progress(self, seconds: float = 120.0) -> Any:
        """The first update of this start."""
        deadline = time.monotonic() + seconds
        metrics, before = self.job / "metrics.jsonl", self.lines()
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            if self.lines() > before + 3:
                return json.loads(metrics.read_text().splitlines()[-2])
            time.sleep(0.1)
        raise AssertionError("no update was made")

    def lines(self) -> int:
        """Updates so far, of all starts."""
        path = self.job / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0


def start(
    image: Mapping[str, Any], root: Path, words: Sequence[str], name: str, **hyperparameters: Any
) -> Started:
    """Start the image's entry with ``words``, a job mounted and volumes of its own."""
    folder = WORK / "runs" / name
    for part in ("job", "cache", "given"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        os.chown(folder / part, 10001, 0)
    (folder / "given/job.json").write_text(json.dumps({**TOY, "hyperparameters": hyperparameters}))
    (folder / "config.json").write_text(json.dumps(bundle(image, root, folder, words)))
    run(["runc", "delete", "--force", f"image-test-{name}"], check=False)
    process = subprocess.Popen(
        ["runc", "run", "--bundle", str(folder), f"image-test-{name}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return Started(f"image-test-{name}", process, folder / "job")


def bundle(image: Mapping[str, Any], root: Path, folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """An OCI runtime configuration: what the image says, a read-only root, and no network."""

    def bind(source: Path, place: str, *options: str) -> dict[str, Any]:
        return {"destination": place, "type": "bind", "source": str(source), "options": ["rbind", *options]}

    def system(place: str, kind: str, *options: str) -> dict[str, Any]:
        return {"destination": place, "type": kind, "source": kind, "options": list(options)}

    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": 10001, "gid": 0}, "args": [*image["Entrypoint"], *words],
            "cwd": image["WorkingDir"], "env": image["Env"], "noNewPrivileges": True,
        },
        "mounts": [
            system("/proc", "proc"),
            system("/dev", "tmpfs", "nosuid", "mode=755", "size=65536k"),
            system("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
            bind(folder / "job", "/job"), bind(folder / "cache", "/cache"),
            bind(folder / "given", "/run/trainer", "ro"),
        ],
        "linux": {"namespaces": [{"type": each} for each in ("pid", "mount", "ipc", "uts", "network")]},
    }  # fmt: skip


def revision() -> str:
    """The commit that is built."""
    return run(["git", "-C", str(ROOT), "rev-parse", "HEAD"]).strip()


def buildah(*words: str, show: bool = False) -> str:
    """Ask buildah, with a store of this test's own."""
    store = ["--root", str(WORK / "store"), "--runroot", str(WORK / "store-run")]
    return run(["buildah", *store, *words], show=show)


def run(words: Sequence[str], *, show: bool = False, check: bool = True) -> str:
    """What a command prints; it must succeed."""
    settings = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": os.environ.get("STORAGE_DRIVER", "overlay")}
    kept = None if show else subprocess.PIPE
    done = subprocess.run(
        list(words), stdout=kept, stderr=kept, text=True, env={**os.environ, **settings}, check=False
    )
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words[:8])} ended with {done.returncode}: {done.stderr}")
    return done.stdout or ""


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
