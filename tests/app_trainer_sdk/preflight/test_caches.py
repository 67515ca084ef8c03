"""Where libraries write: as asked, as usual, or below the cache, and never silently elsewhere."""

from __future__ import annotations

from app_trainer_sdk.preflight.caches import FOLDERS, problem_of, settle_caches


def test_every_folder_is_named_and_can_be_written(tmp_path):
    """Also for a user without anything."""
    settled = settle_caches({"HOME": str(tmp_path / "me")}, tmp_path / "cache")

    assert settled.variables.keys() == FOLDERS.keys() - {"HOME"}
    assert settled.variables["HF_HOME"] == str(tmp_path / "me/.cache/huggingface")
    assert settled.variables["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache/compile")
    assert [each.status for each in settled.findings] == ["ok"]
    assert not list(tmp_path.rglob(".probe-*"))


def test_a_folder_that_cannot_be_written_is_replaced_and_told(tmp_path):
    """Requested, effective, why."""
    (tmp_path / "file").touch()
    home = str(tmp_path / "file/home")
    settled = settle_caches({"HOME": home, "NUMBA_CACHE_DIR": str(tmp_path / "mine")}, tmp_path / "cache")
    [finding] = settled.findings

    assert settled.variables["HOME"] == str(tmp_path / "cache/home")
    assert settled.variables["HF_HOME"] == str(tmp_path / "cache/home/.cache/huggingface")
    assert "NUMBA_CACHE_DIR" not in settled.variables
    assert finding.status == "warning"
    assert all(word in finding.found for word in (home, "Not a directory", settled.variables["HOME"]))


def test_nowhere_to_write_is_one_failure(tmp_path):
    """The variable that mends them all is named once, not every library's."""
    (tmp_path / "file").touch()
    settled = settle_caches({"HOME": str(tmp_path)}, tmp_path / "file/cache")

    [finding] = settled.findings
    assert (finding.status, finding.setting) == ("failed", True)
    assert finding.found == f"nothing can be written in {tmp_path / 'file/cache'}: Not a directory"
    assert "APP_TRAINER_CACHE_DIR" in finding.help
    assert "HF_HOME" in settled.variables


def test_a_folder_is_probed_by_writing(tmp_path):
    assert problem_of(tmp_path / "new/deeper") == ""
    assert problem_of(tmp_path / ("x" * 300)) == "File name too long"
