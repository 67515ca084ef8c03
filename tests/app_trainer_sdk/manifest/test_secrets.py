"""What a URL hides is not kept."""

from __future__ import annotations

import pytest

from app_trainer_sdk.manifest.secrets import cut_url, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [("https://a/b?X-Amz-Signature=s", "https://a/b"), ("https://me:word@a:1/b#t", "https://a:1/b"),
     ("https://a/b", "https://a/b"), ("file:///a", "file:///a"), ("https://me:w@[x?y", "[x")],
)  # fmt: skip
def test_urls_are_cut(url, shown):
    assert cut_url(url) == shown


def test_every_url_of_a_document_is_cut_and_pointed_to():
    """Wherever it stands; what is no URL stays."""
    document = {"inputs": {"a/b": {"url": "https://h/p?s=1"}}, "list": ["https://u@h/", "C:/x?y", 1, None]}
    kept, cut = without_secrets(document)

    assert kept == {"inputs": {"a/b": {"url": "https://h/p"}}, "list": ["https://h/", "C:/x?y", 1, None]}
    assert cut == ["/inputs/a~1b/url", "/list/0"]
