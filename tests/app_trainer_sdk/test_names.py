"""Names below a folder stay there, and each file has one spelling."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.names import clash, unsafe_name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"), ("/etc/passwd", "absolute"), ("C:/x", "absolute"), ("c:x", "absolute"),
        ("../x", "leaves"), ("a/../../x", "leaves"), ("a/..", "leaves"), ("a\\b", "backslash"),
        ("a\0b", "control"), ("a\nb", "control"), ("a//b", "empty part"), ("./a", "empty part"),
        ("a/", "empty part"), ("x" * 256, "255 bytes"), ("\u00e9" * 128, "255 bytes"), ("\ud800", "no text"),
    ],
)  # fmt: skip
def test_names_that_are_refused(name: str, why: str):
    """Each with its reason."""
    assert why in unsafe_name(name)


@pytest.mark.parametrize("name", ["a", "a/b.json", "a b", "..a", "a..", "\u00e9/\u65e5", "x" * 255])
def test_names_that_are_taken(name: str):
    """Dots and other scripts are no danger by themselves."""
    assert unsafe_name(name) == ""


@given(st.text(max_size=12), st.lists(st.sampled_from(["..", ".", "", "a", "b"]), max_size=5))
def test_no_name_leaves_its_folder(text: str, parts: list[str]):
    """Whatever is taken lies below the folder."""
    for name in (text, "/".join(parts)):
        if not unsafe_name(name):
            assert os.path.normpath(f"/folder/{name}").startswith("/folder/")


@pytest.mark.parametrize(
    ("names", "why"),
    [(["a", "b/a"], ""), (["a", "a"], "twice"), (["a", "a/b"], "folder"), (["a/b", "a"], "folder")],
)
def test_files_that_cannot_lie_side_by_side(names: list[str], why: str):
    """The same name, or one below another."""
    assert (why in clash(names)) is bool(why) or clash(names) == ""
    assert bool(clash(names)) is bool(why)
