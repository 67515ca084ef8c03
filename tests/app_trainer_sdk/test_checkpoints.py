"""Looking at checkpoints without torch: what is whole, and why the rest is not."""

from __future__ import annotations

import json
import subprocess
import sys

from app_trainer_sdk.checkpoints import find_checkpoints, inspect_checkpoint, main
from app_trainer_sdk.files import sha256_file, write_json


def make(folder, step, *, run="j", content=b"weights"):
    """A checkpoint folder of one file, as a save leaves it."""
    folder = folder / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    path = folder / "model.safetensors"
    path.write_bytes(content)
    files = {path.name: {"size": len(content), "sha256": sha256_file(path)}}
    write_json(folder / "manifest.json", {"run": run, "step": step, "files": files})
    return folder


def test_the_list_tells_step_size_run_and_why_not(tmp_path, capsys):
    """Newest first; a cut file and a missing manifest are named."""
    make(tmp_path, 10)
    (make(tmp_path, 20) / "model.safetensors").write_bytes(b"wei")
    (make(tmp_path, 30) / "manifest.json").unlink()

    code = main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert [line.split()[0] for line in lines[1:]] == ["step-00000030", "step-00000020", "step-00000010"]
    assert "it has no manifest" in lines[1]
    assert "has 3 bytes, the manifest says 7" in lines[2]
    assert lines[3].endswith("valid")


def test_json_for_programs(tmp_path, capsys):
    """--json prints the same facts."""
    make(tmp_path, 10, run="other")
    main([str(tmp_path), "--json"])
    (entry,) = json.loads(capsys.readouterr().out)

    assert (entry["step"], entry["run"], entry["problem"], entry["size_bytes"]) == (10, "other", "", 7)


def test_without_a_valid_one_the_exit_code_says_so(tmp_path, capsys):
    """66: there is nothing to resume from."""
    assert main([str(tmp_path)]) == 66
    assert "no checkpoint in" in capsys.readouterr().out


def test_a_changed_byte_is_found_by_its_digest_only(tmp_path):
    """Size alone does not see it."""
    folder = make(tmp_path, 10)
    (folder / "model.safetensors").write_bytes(b"weightz")

    assert inspect_checkpoint(folder, digests=False).problem == ""
    assert "digest" in inspect_checkpoint(folder).problem


def test_other_folders_are_no_checkpoints(tmp_path):
    """Only names like step-00000010 count; what a kill left half written does not."""
    for name in ("step-1", "checkpoint-10", ".step-00000010.77.tmp"):
        (tmp_path / name).mkdir()

    assert find_checkpoints(tmp_path) == []


def test_looking_needs_no_torch(tmp_path):
    """The command runs where torch cannot be imported."""
    make(tmp_path, 10)
    code = "import sys; sys.modules['torch'] = None\n"
    code += "from app_trainer_sdk.checkpoints import main; main([sys.argv[1]])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)

    assert "valid" in done.stdout


def test_a_manifest_of_the_wrong_shape_is_a_reason_not_an_error(tmp_path):
    """Whatever stands in it, the folder is told as not valid."""
    folder = make(tmp_path, 10)
    write_json(folder / "manifest.json", {"run": "x", "step": 10, "files": {"a": 3}})

    assert "cannot be read" in inspect_checkpoint(folder).problem
