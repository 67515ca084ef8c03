"""The walls of the layout: which file may import what, and that no new file slips past the line."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "app_trainer_sdk"
#: The one file of the SDK that may import each.
OWNERS = {"bitsandbytes": "training/optim.py", "huggingface_hub": "hub.py", "pynvml": "preflight/nvidia.py"}
#: Packages of the SDK that are not above the line: torch, what authors test with, what they begin from.
BELOW = {"training", "testing", "templates"}


def imported(path):
    """Names of all packages a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_import_linter_watches_every_file_above_the_line():
    """A new module at the top of the package must be named in the contract."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    watched = set(settings["tool"]["importlinter"]["contracts"][0]["source_modules"])
    files = {path for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    rooms = {path.parent for path in PACKAGE.glob("*/__init__.py") if path.parent.name not in BELOW}

    assert {f"app_trainer_sdk.{path.stem}" for path in files | rooms} - watched == set()


@pytest.mark.parametrize("package", OWNERS)
def test_each_heavy_import_has_one_owner(package):
    """Only its owner imports it."""
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "templates" not in path.parts and package in imported(path)
    }

    assert users == {OWNERS[package]}


def test_every_module_above_the_line_imports_without_torch():
    """In one process where torch, numpy and transformers cannot be imported at all."""
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*.py")]
    names = [".".join(each) for each in parts if each[1] not in BELOW and not each[-1].startswith("__")]
    images = [
        f"trainer_images.{path.parent.name}.trainer" for path in (ROOT / "trainer_images").glob("*/trainer.py")
    ]
    code = "import sys\nfor name in ('torch', 'numpy', 'transformers'): sys.modules[name] = None\n"
    code += "".join(f"import {name}\n" for name in [*names, *images])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_images_import_no_other_image():
    """An image stands alone."""
    images = ROOT / "trainer_images"
    for path in images.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainer_images."):
                assert node.module.split(".")[1] == path.parent.name
