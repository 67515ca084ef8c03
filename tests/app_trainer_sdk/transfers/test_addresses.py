"""A job's URLs reach the public internet and nothing of the platform's own, unless the platform says so."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.transfers.addresses import Guard, origin

PRIVATE = [
    "127.0.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "::1",
    "fe80::1%eth0", "fd00::1", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe", "::", "2002:7f00:1::", "224.0.0.1", "255.255.255.255", "no address",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_a_network_of_ones_own(address: str):
    """Loopback, private, link-local (metadata services) and their IPv6 spellings."""
    assert not Guard().permits(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_everybody(address: str):
    """What anybody could ask."""
    assert Guard().permits(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "localhost"])
def test_every_spelling_is_looked_up(host: str):
    """As the system would understand it when it connects; the message names the setting."""
    with pytest.raises(BadJob, match="APP_TRAINER_ALLOW_HOSTS to name"):
        Guard().check(f"http://{host}/x?sig=secret")


def test_the_platforms_setting_names_exceptions(monkeypatch: pytest.MonkeyPatch):
    """A host, a suffix, an address, a network; the platform's own URLs name their hosts."""
    monkeypatch.setenv("APP_TRAINER_ALLOW_HOSTS", "store.internal, .svc.local,10.1.0.0/16")
    monkeypatch.setenv("APP_TRAINER_JOB_URL", "https://control.internal:8443/job?token=x")
    guard = Guard.from_environment()

    for host in ("store.internal", "Store.Internal.", "a.svc.local", "control.internal"):
        assert guard.names(host)
    assert not guard.names("svc.local")
    assert guard.permits("10.1.2.3")
    assert not guard.permits("10.2.2.3")
    assert not guard.names("internal")


@pytest.mark.parametrize("name", ["HF_ENDPOINT", "APP_TRAINER_JOB_URL"])
def test_a_url_of_the_platform_that_is_none(monkeypatch: pytest.MonkeyPatch, name: str):
    """Told as what it is, before anything is asked."""
    monkeypatch.setenv(name, "http://[half")
    with pytest.raises(BadJob, match=f"{name} is no URL"):
        Guard.from_environment()


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Every address it has is looked at; a name that does not resolve is left to the connection."""

    def looked_up(host: str, *rest: Any, **more: Any) -> list[Any]:
        if host == "gone.example":
            raise socket.gaierror
        return [(2, 1, 6, "", (each, 80)) for each in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    with pytest.raises(BadJob, match=r"mixed\.example \(10\.0\.0\.1\)"):
        Guard().check("https://mixed.example/")
    Guard().check("https://gone.example/")


def test_an_origin_is_scheme_host_and_port():
    """What credentials are meant for."""
    assert origin("https://a/x") == origin("https://a:443/y?z") == ("https", "a", 443)
    assert origin("https://a/") != origin("http://a/")
