"""Connections: what is sent to whom, where redirects end, and which address is really reached."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from loopback import reply

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.faults import Fault, Unusable
from app_trainer_sdk.transfers.web import Web, trust

LOCAL = Guard(("127.0.0.1", "localhost"))
#: For 127.0.0.1 only, with its key: good for nothing but these tests.
CERTIFICATE = Path(__file__).parent / "localhost.pem"


def test_a_body_can_be_sent_and_its_answer_read(serve: Any):
    """The half that uploads uses the same connections; what is not GET or HEAD follows no redirect."""
    server = serve(lambda handler, request: reply(handler, 307, b"no", Location="/there"))
    with Web(LOCAL).open("POST", f"{server.url}/x", {"A": "b"}, body=b"bytes") as answer:
        assert (answer.status, answer.read()) == (307, b"no")

    assert [(each.method, each.path, each.body) for each in server.received] == [("POST", "/x", b"bytes")]


def test_a_name_that_means_another_address_when_it_is_connected_to(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """DNS rebinding: public when it was checked, loopback when it was reached; not one byte is sent."""
    server = serve(lambda handler, request: reply(handler))
    answers = [[(2, 1, 6, "", ("8.8.8.8", 80))], [(2, 1, 6, "", server.server_address)]]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **more: answers.pop(0))
    with (
        pytest.raises(BadJob, match=r"rebound\.example \(127\.0\.0\.1\)"),
        Web(Guard()).open("GET", f"http://rebound.example:{server.server_address[1]}/"),
    ):
        pass

    assert server.received == []


@pytest.mark.parametrize("place", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://[", "http://a:99999/"])
def test_redirects_that_lead_nowhere(serve: Any, place: str):
    """Another scheme, no host, no port: the mirror cannot be used."""
    server = serve(lambda handler, request: reply(handler, 302, Location=place))
    with pytest.raises((Unusable, Fault)), Web(LOCAL).open("GET", server.url):
        pass


def test_a_proxy_of_the_environment_is_used(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """With its own credentials, and not for the hosts it is not for."""
    server = serve(lambda handler, request: reply(handler, body=b"by proxy"))
    port = server.server_address[1]
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    web = Web(LOCAL)
    with web.open("GET", "http://weights.invalid/x") as answer:
        assert answer.read() == b"by proxy"
    with web.open("GET", f"{server.url}/direct") as answer:
        assert answer.read() == b"by proxy"

    assert [each.path for each in server.received] == ["http://weights.invalid/x", "/direct"]
    headers = {name.lower(): value for name, value in server.received[0].headers.items()}
    assert headers["proxy-authorization"].startswith("Basic ")


def test_certificates_are_those_that_were_named(tmp_path: Any):
    """A file that cannot be read is told with its setting, and never passed over."""
    with pytest.raises(BadJob, match="APP_TRAINER_CA_FILE"):
        trust(str(tmp_path / "no.pem"))
    assert trust(None).verify_mode.name == "CERT_REQUIRED"


def test_a_server_that_is_not_there():
    """A fault with the reason and without the query."""
    with pytest.raises(Fault) as caught, Web(LOCAL).open("GET", "http://127.0.0.1:9/x?sig=secret"):
        pass

    assert str(caught.value) == "http://127.0.0.1:9/x: NewConnectionError"


def test_https_with_a_certificate_of_ones_own(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """Trusted when the platform's setting names it, and refused when it does not."""
    server = serve(lambda handler, request: reply(handler, body=b"secure"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http://", "https://")
    with pytest.raises(Fault, match="CERTIFICATE_VERIFY_FAILED"), Web(LOCAL).open("GET", url):
        pass
    monkeypatch.setenv("APP_TRAINER_CA_FILE", str(CERTIFICATE))
    with Web(LOCAL).open("GET", url) as answer:
        assert answer.read() == b"secure"


def test_a_redirect_from_https_to_http_is_refused(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """What was asked for in secret is not said aloud."""
    server = serve(lambda handler, request: reply(handler, 302, Location="http://127.0.0.1/x"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("APP_TRAINER_CA_FILE", str(CERTIFICATE))
    with (
        pytest.raises(Unusable, match="from https to http"),
        Web(LOCAL).open("GET", server.url.replace("http://", "https://")),
    ):
        pass
