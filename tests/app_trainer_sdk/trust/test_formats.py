"""Nothing that can run code is read unless the job says so by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.job import read_job
from app_trainer_sdk.trust.formats import refuse_remote_code, refuse_untrusted

ROOT = Path(__file__).parents[3]
TOY = {"trainer": "t", "model": "m"}


def folder(tmp_path, *names):
    for name in names:
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("names", "refused"),
    [(["pytorch_model.bin", "config.json"], True), (["model.PT"], True),
     (["model.safetensors", "x.bin"], False),
     (["model.gguf"], False), (["model.onnx"], False), (["config.json"], False)],
)  # fmt: skip
def test_a_folder_with_nothing_but_pickles_is_refused(tmp_path, names, refused):
    """With its pointer and the word; safetensors beside them are read instead."""
    place = folder(tmp_path, *names)
    if refused:
        with pytest.raises(BadJob, match=r'/weights/base: found .*"pickle" to /allow'):
            refuse_untrusted({"base": place}, ["remote_code"])
    refuse_untrusted({"base": place}, ["pickle"] if refused else [])


def test_every_set_is_told_at_once(tmp_path):
    one, two = tmp_path / "a.bin", tmp_path / "b.pth"

    with pytest.raises(BadJob) as told:
        refuse_untrusted({"base": one, "vae": two}, [])
    assert [each.pointer for each in told.value.problems] == ["/weights/base", "/weights/vae"]


def test_a_model_s_own_python_is_refused_and_other_errors_pass(tmp_path):
    wish = ValueError("contains custom code ... set trust_remote_code=True")

    with pytest.raises(BadJob, match='"remote_code" to /allow'):
        refuse_remote_code(wish, tmp_path, ["pickle"])
    refuse_remote_code(wish, tmp_path, ["remote_code"])
    refuse_remote_code(ValueError("something else"), tmp_path, [])


def test_a_job_allows_by_name_and_is_told_what_it_may_have_meant():
    """A job that says nothing is the job it always was."""
    assert read_job({**TOY, "allow": ["pickle"]}).allowed == {"pickle"}
    assert "allow" not in read_job(TOY).document()

    with pytest.raises(BadJob, match=r"/allow/0.*'pickle'"):
        read_job({**TOY, "allow": ["pickel"]})


#: The only files that call what runs code when it reads.
OWNERS = {
    "torch.load": {"app_trainer_sdk/training/tensors.py"},
    "pickle.load": set(),
    "pickle.loads": {"app_trainer_sdk/training/phase_process.py"},  # its own bytes, in one process
    "joblib.load": set(),
}


def calls():
    """Every call in the SDK and the images: its file, its name as written, its node."""
    for package in ("app_trainer_sdk", "trainer_images"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield str(path.relative_to(ROOT)), ast.unparse(node.func), node


@pytest.mark.parametrize("name", OWNERS)
def test_each_way_to_read_a_pickle_has_one_owner(name):
    assert {file for file, called, _ in calls() if called == name} == OWNERS[name]


def test_every_loader_of_transformers_says_whose_code_may_run():
    """No default of a library decides; and weights only where a pickle may be read."""
    loaders = [
        (file, node) for file, called, node in calls() if called.startswith("Auto") and "pretrained" in called
    ]

    assert loaders
    for file, node in loaders:
        keywords = {each.arg: ast.unparse(each.value) for each in node.keywords}

        assert keywords.get("trust_remote_code") in ("own_code", "False"), file
        if "weights_only" in keywords:
            assert keywords["weights_only"] == "True"
    assert any("weights_only=True" in ast.unparse(node) for _, node in loaders)
