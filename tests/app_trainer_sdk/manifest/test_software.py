"""Packages, source and revision, told so that two machines can be compared."""

from __future__ import annotations

import subprocess
from importlib.metadata import distributions, version

from app_trainer_sdk.manifest.software import (
    SDK,
    _git,
    describe_code,
    installed_packages,
    source_digest,
)


def test_every_package_has_its_version_and_digest():
    packages = installed_packages()

    assert packages["torch"].version == version("torch")
    assert packages["torch"].digest.startswith("sha256:")
    assert list(packages) == sorted(packages)
    assert {each.metadata["Name"].lower().replace("_", "-") for each in distributions()} == packages.keys()


def record(tmp_path, *lines):
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "RECORD").write_text("\n".join(lines))
    return installed_packages([str(tmp_path)])["x"].digest


def test_the_digest_is_of_the_package_and_not_of_its_installation(tmp_path):
    """Order, compiled files, scripts and the installer's notes do not matter; a file's content does."""
    one = record(tmp_path, "x.py,sha256=a,1", "y.py,sha256=b,1")
    two = record(
        tmp_path, "y.py,sha256=b,1", "x.py,sha256=a,1", "__pycache__/x.pyc,,", "../../../bin/x,sha256=c,1",
        "x-1.dist-info/INSTALLER,sha256=d,1", "x-1.dist-info/RECORD,,",
    )  # fmt: skip

    assert one == two
    assert record(tmp_path, "x.py,sha256=z,1", "y.py,sha256=b,1") != one


def test_source_is_named_by_name_and_content(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = source_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")

    assert source_digest(tmp_path) != before
    assert source_digest(tmp_path / "b.py") == source_digest(tmp_path / "b.py")


def test_an_image_tells_its_revision_and_a_platform_its_digest():
    told = {"APP_TRAINER_REVISION": "abc", "APP_TRAINER_IMAGE_DIGEST": "sha256:1"}
    code = describe_code("toy", "app_trainer_sdk.testing.toys", "1", told)

    assert (code.revision, code.changed, code.image_digest) == ("abc", None, "sha256:1")
    assert code.trainer_digest == source_digest(SDK / "testing")
    assert describe_code("x", "no_such.module", None, told).trainer_digest is None


def test_a_checkout_tells_its_commit_and_whether_it_was_changed(tmp_path):
    """Nothing where there is none."""
    package = tmp_path / "package"
    package.mkdir()

    assert _git(package) == (None, None)

    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True
        )

    (package / "a.py").write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD").stdout.strip()

    assert _git(package) == (commit, False)

    (package / "a.py").write_text("2")

    assert _git(package) == (commit, True)
