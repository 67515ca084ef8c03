"""Writes the locks of an image, ``image-<accelerator>.txt``: the exact version and hash of everything in it.

::

    make lock

``constraints.txt`` is the one source of versions; pip resolves, and tells which file it would take of each
package, for Linux on x86-64. What the index does not describe is fetched for that, some 3 GB for CUDA. PyPI's
torch is CUDA's; that for the CPU is on PyTorch's own index, of which pip must be told::

    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make lock

This file must not know how an image is built.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Rows = dict[str, tuple[str, frozenset[str]]]

ROOT = Path(__file__).parents[1]
#: Of the image's base, and the one that the vendor's torch images for ROCm have.
PYTHON, ROCM_PYTHON = "3.11", "3.12"
#: Whatever runs on glibc 2.28.
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64"]
HEAD = """\
# {packages} packages of an image for {accelerator}: Linux, x86-64, Python {python}. Written by `make lock`.
"""


def main() -> int:
    """Write a lock for each accelerator."""
    if sys.version_info[:2] != (3, 11):
        sys.stderr.write(f"lock: found Python {sys.version.split()[0]}; expected {PYTHON}, as in the image\n")
        return 64
    write("cpu", PYTHON, rows_of(ask_pip(image_requirements(), torch="=={}+cpu")))
    cuda = ask_pip(image_requirements(), torch="==={}")
    write("cuda", PYTHON, rows_of(cuda))
    write("rocm", f"{PYTHON} and {ROCM_PYTHON}", beside_torch(cuda))
    return 0


def beside_torch(installed: Iterable[dict]) -> Rows:
    """What torch does not bring, for both Pythons: the vendor's torch stays, and what came with it."""
    rows = rows_of(installed)
    needs = {normal_name(each): each["metadata"].get("requires_dist", ()) for each in installed}
    names = reached(image_requirements(), needs, without={"torch"})
    pinned = [Requirement(f"{name}=={rows[name][0]}") for name in sorted(names)]
    others = rows_of(ask_pip(pinned, python=ROCM_PYTHON))
    return {name: (version, rows[name][1] | hashes) for name, (version, hashes) in others.items()}


def image_requirements() -> list[Requirement]:
    """What an image is made of: the SDK, every trainer in it, and what builds the package."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    trainers = told["project"]["entry-points"]["app_trainer_sdk.trainers"]
    extras = told["project"]["optional-dependencies"]
    lines = [*told["project"]["dependencies"], *told["build-system"]["requires"]]
    lines += [line for name in trainers for line in extras[name.replace("_", "-")]]
    return [Requirement(line) for line in sorted(set(lines))]


def reached(
    roots: Iterable[Requirement], needs: Mapping[str, Iterable[str]], *, without: Collection[str] = ()
) -> set[str]:
    """Normal names of all packages that ``roots`` lead to, by the markers of this Python.

    Args:
        roots: where to begin.
        needs: by normal name what a package requires.
        without: what is neither taken nor followed.
    """
    waiting, seen = list(roots), set[tuple[str, str]]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} if name not in without else ():
            if (name, extra) not in seen:
                seen.add((name, extra))
                deeper = map(Requirement, needs.get(name, ()))
                waiting += [
                    each for each in deeper if not each.marker or each.marker.evaluate({"extra": extra})
                ]
    return {name for name, _ in seen}


def ask_pip(asked: Sequence[Requirement], *, torch: str = "=={}", python: str = PYTHON) -> list[dict]:
    """What pip would install, with the file of each package; for another Python exactly what is asked."""
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        text = (ROOT / "constraints.txt").read_text()
        chosen = "torch" + torch.format(r"\1")
        constraints.write_text(re.sub(r"^torch==(.+)$", chosen, text, flags=re.MULTILINE))
        words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        words += ["--only-binary", ":all:", "--constraint", str(constraints), "--report", str(report)]
        if python != PYTHON:
            words += ["--no-deps", "--python-version", python, "--target", folder]
            words += [word for each in PLATFORMS for word in ("--platform", each)]
        subprocess.run([*words, *map(str, asked)], check=True)
        return json.loads(report.read_text())["install"]


def rows_of(installed: Iterable[dict]) -> Rows:
    """Version and hashes by normal name."""
    return {
        normal_name(each): (
            each["metadata"]["version"],
            frozenset({each["download_info"]["archive_info"]["hashes"]["sha256"]}),
        )
        for each in installed
    }


def normal_name(installed: dict) -> str:
    """A package's name as pip compares it."""
    return canonicalize_name(installed["metadata"]["name"])


def write(accelerator: str, python: str, rows: Rows) -> None:
    """Write a lock that pip reads."""
    path = ROOT / "requirements" / f"image-{accelerator}.txt"
    text = HEAD.format(packages=len(rows), accelerator=accelerator, python=python)
    for name, (version, hashes) in sorted(rows.items()):
        lines = [f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(hashes))]
        text += " \\\n    ".join(lines) + "\n"
    path.write_text(text)
    sys.stdout.write(f"{path.relative_to(ROOT)}: {len(rows)} packages\n")


if __name__ == "__main__":
    sys.exit(main())
