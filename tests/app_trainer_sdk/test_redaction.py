"""What may be a secret is cut out of texts, logs and documents, by its form or because it is known."""

from __future__ import annotations

import logging

import pytest

from app_trainer_sdk import redaction
from app_trainer_sdk.redaction import (
    RedactingFilter,
    redact,
    redacted,
    remember,
    remember_document,
    remember_environment,
    shown_document,
    shown_url,
    without_secret_variables,
    without_secrets,
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test remembers is forgotten after it."""
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_pattern", None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://h/a/b?X-Amz-Signature=abc&x=1 failed", "GET https://h/a/b?[redacted] failed"),
        ("at 'https://user:pass@h.example:8443/a'.", "at 'https://h.example:8443/a'."),
        ("s3://bucket/key?versionId=7", "s3://bucket/key?[redacted]"),
        ("with url: /rows?Signature=abcdefgh (Caused by", "with url: /rows?[redacted] (Caused by"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer [redacted]"),
        ("sig=abcdefgh%3D&sp=r", "sig=[redacted]&sp=r"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "[redacted]"),
        ("hf_abcdefghijklmnopqrstuvwx", "[redacted]"),
        ("loss 0.25 at update 3; change /hyperparameters/learning_rate", None),
        ("is it /data or not? 3 tokens: <pad>", None),
        ("https://h.example/docs#section", None),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret(text: str, shown: str | None):
    """Queries, users, bearer tokens and signatures go; ordinary text stays as it is."""
    assert redact(text) == (text if shown is None else shown)
    assert redact(redact(text)) == redact(text)


def test_what_is_known_goes_wherever_it_stands():
    """The token, the secret and parts of the job's URLs, as written and as unquoted; short words stay."""
    remember_environment(
        {"APP_TRAINER_CALLBACK_TOKEN": "tkn-12345", "APP_TRAINER_CALLBACK_SECRET": "s1s1s1 s2s2s2"}
    )
    remember_document(
        {
            "inputs": {"a": {"url": "https://u:pw-word@h/x?odd=Very%2FSecret1&n=1"}},
            "list": ["https://h/y?aQuery123"],
        }
    )
    remember("", None, "abc")
    text = "tkn-12345 s1s1s1 s2s2s2 pw-word Very%2FSecret1 Very/Secret1 aQuery123 abc n=1"

    assert redact(text) == " ".join(["[redacted]"] * 7) + " abc n=1"
    assert redacted({"a": ["x tkn-12345", 1, None], "b": {"c": b"raw"}}) == {
        "a": ["x [redacted]", 1, None], "b": {"c": b"raw"}
    }  # fmt: skip


def test_a_job_on_disk_keeps_what_identifies_a_file_and_no_secret():
    """A fresh signature makes no other job, another query does; it can be stored again without a change."""

    def stored(query: str) -> str:
        document = {"inputs": {"d": {"url": f"https://me:pw@h.example/rows{query}"}}, "n": 1}
        kept = without_secrets(document)
        assert without_secrets(kept) == kept
        url: str = kept["inputs"]["d"]["url"]
        return url

    assert stored("?X-Amz-Signature=a&X-Amz-Date=1") == stored("?X-Amz-Signature=b") == "https://h.example/rows"
    assert stored("?file=a&Signature=1&Expires=2") == stored("?Signature=3&file=a") != stored("?file=b")
    assert "VerySecret" not in stored("?VerySecret")
    assert without_secrets({"url": "/data/rows?x.jsonl", "other": "file:///a%20b"}) == {
        "url": "/data/rows?x.jsonl", "other": "file:///a%20b"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("url", "shown"),
    [("https://a/b?X-Amz-Signature=s", "https://a/b"), ("https://me:word@a:1/b?q=1#t", "https://a:1/b"),
     ("https://a/b", "https://a/b"), ("file:///a", "file:///a"), ("https://me:w@[x?y", "[x")],
)  # fmt: skip
def test_a_shown_url_hides_query_and_user(url: str, shown: str):
    """Text that is no URL is cut where one would begin to hide something."""
    assert shown_url(url) == shown


def test_every_url_of_a_shown_document_is_cut_and_pointed_to():
    """Wherever it stands; what is no URL stays."""
    document = {"inputs": {"a/b": {"url": "https://h/p?s=1"}}, "list": ["https://u@h/", "C:/x?y", 1, None]}
    kept, cut = shown_document(document)

    assert kept == {"inputs": {"a/b": {"url": "https://h/p"}}, "list": ["https://h/", "C:/x?y", 1, None]}
    assert cut == ["/inputs/a~1b/url", "/list/0"]


def test_others_get_no_secret_variables():
    """Ranks and trackers inherit everything but what only the sender of events needs."""
    there = {f"APP_TRAINER_{name}": "x" for name in ("CALLBACK_TOKEN", "CALLBACK_SECRET_FILE", "CACHE_DIR")}

    assert without_secret_variables({**there, "PATH": "p"}) == {"APP_TRAINER_CACHE_DIR": "x", "PATH": "p"}


def test_log_records_are_redacted_with_their_tracebacks(caplog: pytest.LogCaptureFixture):
    """Message, arguments and the exception's text; a record that is formatted twice too."""
    log = logging.getLogger("test_redaction")
    caplog.handler.addFilter(RedactingFilter())
    try:
        raise RuntimeError("GET https://h/x?sig=planted1")
    except RuntimeError:
        log.exception("could not read %s", "https://h/y?sig=planted2")

    assert "https://h/y?[redacted]" in caplog.text
    assert "RuntimeError: GET https://h/x?[redacted]" in caplog.text
    assert "planted" not in caplog.text
