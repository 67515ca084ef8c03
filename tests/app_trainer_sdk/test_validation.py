"""A pydantic refusal becomes one line for one mistake, with the pointer into the document as it was written."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app_trainer_sdk.validation import SHOWN_VALUE_CHARACTERS, expectation, find_problems, show


class Part(BaseModel):
    """Base of the toys."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class File(Part):
    """A nested object."""

    path: str
    size: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    kind: Literal["zip", "tar"] = "zip"

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        if value.startswith("/"):
            raise ValueError("a path below the job's directory")
        return value


class Tree(Part):
    """A document that holds itself, lists, mappings and unions."""

    file: File | None = None
    files: list[File] = []
    by_name: dict[str, File] = {}
    named: dict[Annotated[str, Field(pattern="^[a-z]+$")], int] = {}
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    words: list[int | str] = []
    title: Annotated[str, Field(min_length=1)] = "t"
    names: Annotated[list[str], Field(min_length=1)] | Literal["all"] = "all"
    below: Tree | None = None


def told(document: Any, **keywords: str) -> list[str]:
    return [str(problem) for problem in find_problems(Tree, document, **keywords)]


def test_a_right_document_has_no_problem():
    """Nested, recursive, in lists and mappings."""
    assert told({"files": [{"path": "a", "size": 3}], "below": {"by_name": {"x": {"path": "b"}}}}) == []


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"file": {"path": 3}}, "/file/path: found 3; expected a string"),
        (
            {"file": {"path": "a", "size": 65}},
            "/file/size: found 65; expected an integer from 1 to 64 or 'auto'",
        ),
        (
            {"file": {"path": "a", "size": "x"}},
            "/file/size: found 'x'; expected an integer from 1 to 64 or 'auto'",
        ),
        ({"file": 3}, "/file: found 3; expected an object or null"),
        ({"file": {}}, "/file/path: found nothing; expected a string"),
        ({"files": 3}, "/files: found 3; expected a list"),
        ({"files": [{"path": "a"}, {"path": None}]}, "/files/1/path: found None; expected a string"),
        ({"files": [{}]}, "/files/0/path: found nothing; expected a string"),
        ({"by_name": {"k": {"path": []}}}, "/by_name/k/path: found []; expected a string"),
        ({"words": [1, 2.5]}, "/words/1: found 2.5; expected an integer or a string"),
        ({"title": ""}, "/title: found ''; expected a string, not an empty one"),
        ({"title": 0}, "/title: found 0; expected a string"),
        ({"names": []}, "/names: found []; expected a list or 'all', not an empty one"),
        ({"rate": 0}, "/rate: found 0; expected a finite number above 0"),
        ({"rate": float("nan")}, "/rate: found nan; expected a finite number above 0"),
        ({"below": {"below": {"rate": "1"}}}, "/below/below/rate: found '1'; expected a finite number above 0"),
        (
            {"file": {"path": "a", "kind": "zp"}},
            "/file/kind: found 'zp'; expected one of 'zip', 'tar' (did you mean 'zip'?)",
        ),
        ({"file": {"path": "/etc"}}, "/file/path: found '/etc'; expected a path below the job's directory"),
        ({"named": {"A B": 1}}, "/named/A B: found the name 'A B'; expected a name matching ^[a-z]+$"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(document, expected: str):
    """Unions are told as one expectation, at the place a person wrote."""
    (line,) = told(document)

    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"rte": 1}, "/rte"),
        ({"files": [{"path": "a", "pth": 1}]}, "/files/0/pth"),
        ({"file": {"path": "a", "pth": 1}}, "/file/pth"),
        ({"below": {"below": {"rte": 1}}}, "/below/below/rte"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest(document, pointer: str):
    """Unknown keys are refused where they stand."""
    (line,) = told(document)

    assert line.startswith(
        f"{pointer}: found an unknown key '{pointer.rpartition('/')[2]}'; expected only known keys"
    )
    assert "did you mean 'rate'" in line or "did you mean 'path'" in line


def test_all_mistakes_come_in_document_order():
    """Not only the first."""
    lines = told({"file": {"path": 3, "size": 0}, "rate": 2, "nope": 1})

    assert [line.partition(":")[0] for line in lines] == ["/file/path", "/file/size", "/rate", "/nope"]


def test_a_pointer_is_escaped():
    """``/`` and ``~`` in a key are written as RFC 6901 says."""
    (line,) = told({"by_name": {"a/b~c": {"path": 1}}})

    assert line.startswith("/by_name/a~1b~0c/path: ")


def test_a_document_inside_a_larger_one():
    """The pointer begins where the document stands."""
    (line,) = told({"rate": 2}, pointer="/jobs/3")

    assert line.startswith("/jobs/3/rate: ")


@pytest.mark.parametrize("document", [3, None, [], "x"])
def test_a_document_that_is_no_object(document):
    """A wrong document as a whole is told at the root."""
    assert [f"/: found {document!r}; expected an object"] == told(document)


def test_a_long_value_is_cut():
    """A value that would bury the sentence is shown by its beginning."""
    assert len(show("x" * 1_000)) == SHOWN_VALUE_CHARACTERS
    assert show("x" * 1_000).endswith("…")
    assert show("short") == "'short'"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 64}, "an integer from 1 to 64"),
        ({"type": "integer", "minimum": 1}, "an integer of at least 1"),
        ({"type": "integer", "maximum": 1000}, "an integer of at most 1,000"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "a finite number of at least 0 below 1"),
        (
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "a finite number above 0 and below 1",
        ),
        ({"type": "string", "pattern": "^a$"}, "a string matching ^a$"),
        ({"enum": ["a", 2]}, "one of 'a', 2"),
        ({"const": "auto"}, "'auto'"),
        ({"anyOf": [{"type": "boolean"}, {"const": "auto"}]}, "true or false or 'auto'"),
        ({"oneOf": [{"type": "array"}, {"type": "null"}]}, "a list or null"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, "an object"),
        ({}, "a value"),
    ],
)
def test_a_schema_in_words(schema, words: str):
    """Bounds, choices and alternatives as a person would say them."""
    assert words == expectation(schema)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["file", "files", "by_name", "path", "size", "kind", "below", "rate", "words", "a/b"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_every_pointer_leads_into_the_document(document):
    """Whatever is wrong, the pointer's parent is in the document, and each pointer is told once."""
    pointers = [problem.pointer for problem in find_problems(Tree, document)]

    assert len(set(pointers)) == len(pointers)
    for pointer in pointers:
        here = document
        for step in pointer.split("/")[1:-1]:
            key = step.replace("~1", "/").replace("~0", "~")
            here = here[int(key)] if isinstance(here, list) else here[key]
        assert isinstance(here, dict | list) or not pointer
