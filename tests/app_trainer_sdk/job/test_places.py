"""What a job may name is a path or a URL that can be, or refused with its pointer."""

from __future__ import annotations

import pytest
from readers import MINIMAL

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.job import read_job


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a",
        "http://",
        "https://[half",
        "http://h:99999/a",
        "file://elsewhere/a",
        "file:relative",
        "s3://bucket/key",
        "htp:/nowhere",
        "a\0b",
        "",
    ],
)
def test_a_place_that_cannot_be_read_is_refused_with_the_job(url: str):
    """Nothing has begun yet when an unknown kind of URL is told, under the input's own pointer."""
    with pytest.raises(BadJob, match="/inputs/dataset/url"):
        read_job({**MINIMAL, "inputs": {"dataset": url}})


def test_what_looks_like_a_url_is_told_as_one():
    """And not as a file that is missing; a path with a colon can still be said."""
    with pytest.raises(BadJob, match="htp: looks like a URL with an unknown scheme"):
        read_job({**MINIMAL, "inputs": {"dataset": "htp:/nowhere"}})
    assert read_job({**MINIMAL, "inputs": {"dataset": "./htp:/nowhere"}})


@pytest.mark.parametrize("url", ["http://[half", "http://host:99999/", "ftp://host/", "http://", "host/path"])
def test_a_receiver_that_cannot_be_is_refused_with_the_job(url: str):
    """A run must not find out at its end that nobody could hear it."""
    with pytest.raises(BadJob, match="/callbacks/url"):
        read_job({**MINIMAL, "callbacks": url})
