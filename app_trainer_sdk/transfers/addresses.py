"""Owns which hosts may be spoken to.

URLs in a job come from users: one that names a machine of the platform's own network (a metadata service, a
database, this container) would make the trainer a stranger's hand inside it. So only addresses that are
reachable from anywhere are spoken to, unless the platform's own setting names the host:
``APP_TRAINER_ALLOW_HOSTS=127.0.0.1,store.internal,.cluster.local,10.2.0.0/16``. A job cannot set it. The hosts
of the platform's own URLs, ``APP_TRAINER_JOB_URL`` and ``HF_ENDPOINT``, are named by them. This file must not
know HTTP.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final
from urllib.parse import SplitResult, urlsplit

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.paths import PREFIX

ALLOW_HOSTS = PREFIX + "ALLOW_HOSTS"
#: Variables with URLs that are the platform's and never a job's.
OWN_URLS = (PREFIX + "JOB_URL", "HF_ENDPOINT")
_HOSTS = re.compile(r"\.?[\w-]+(\.[\w-]+)*")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are an IPv4 address


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: what credentials are meant for (RFC 6454)."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", port_of(parts)


def port_of(parts: SplitResult) -> int:
    """The port of a URL, said or usual."""
    return parts.port or (443 if parts.scheme == "https" else 80)


@final
class HostRefused(BadJob):
    """A host that a job must not reach.

    Args:
        host: as the URL names it.
        address: what that is.
        setting: where the URL stands.
    """

    def __init__(self, host: str, address: str, *, setting: str = "the URL") -> None:
        self.host, self.address = host, address
        where = host if host == address else f"{host} ({address})"
        super().__init__(
            f"{where} is not an address of the public internet",
            expected="a public host: a job must not reach into the platform's own network",
            setting=f"{setting}, or the platform's {ALLOW_HOSTS} to name {host}",
        )

    def at(self, setting: str) -> HostRefused:
        """The same, with where in the job the URL stands: the guard does not know it."""
        return HostRefused(self.host, self.address, setting=setting) if setting else self


@dataclass(frozen=True)
class Guard:
    """Who may be spoken to.

    Args:
        allowed: hosts beyond those reachable from anywhere: a name, ``.suffix``, an address or a network.
    """

    allowed: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> Guard:
        """The platform's setting, and the hosts of its own URLs.

        Raises:
            BadJob: something in the setting could never name a host.
        """
        said = [each.strip().lower() for each in os.environ.get(ALLOW_HOSTS, "").split(",")]
        for each in filter(None, said):
            if not _names_hosts(each):
                expected = "names, .suffixes, addresses or networks, without scheme, port and brackets"
                raise BadJob(f"{ALLOW_HOSTS} has {each!r}", expected=expected, setting=ALLOW_HOSTS)
        hosts = [_own_host(name) for name in OWN_URLS]
        return cls(tuple(each for each in (*said, *hosts) if each))

    def check(self, url: str, *, look_up: bool = True) -> None:
        """Refuse a URL whose host is, or resolves to, an address that is not everybody's.

        A name that does not resolve is let through: a proxy may know it, and else connecting fails. Without
        ``look_up`` so is every name but ``localhost``.

        Raises:
            HostRefused: with the setting that allows the host.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        if self.names(host):
            return
        flags = 0 if look_up or host == "localhost" else socket.AI_NUMERICHOST
        try:
            found = socket.getaddrinfo(host, port_of(parts), type=socket.SOCK_STREAM, flags=flags)
        except (OSError, UnicodeError):
            return
        for *_, address in found:
            if not self.permits(str(address[0])):
                raise HostRefused(host, str(address[0]))

    def names(self, host: str) -> bool:
        """Whether the setting names this host."""
        host = host.lower().rstrip(".")
        return any(host == each or (each.startswith(".") and host.endswith(each)) for each in self.allowed)

    def permits(self, text: str) -> bool:
        """Whether an IP address is everybody's, or the setting's."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if _in_networks(address, self.allowed):
            return True
        return all(each.is_global and not each.is_multicast for each in _meant(address))


def _own_host(name: str) -> str:
    """The host of the URL in a variable, empty without one."""
    try:
        return urlsplit(os.environ.get(name, "")).hostname or ""
    except ValueError:
        raise BadJob(f"{name} is no URL", expected="such as https://host/path", setting=name) from None


#: For the control plane's own URLs.
ANYWHERE = Guard(("0.0.0.0/0", "::/0"))


def _names_hosts(text: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_network(text, strict=False)
        return True
    return _HOSTS.fullmatch(text) is not None


def _in_networks(address: _Address, allowed: Sequence[str]) -> bool:
    for each in allowed:
        try:
            network = ipaddress.ip_network(each, strict=False)
        except ValueError:
            continue
        if network.version == address.version and address in network:
            return True
    return False


def _meant(address: _Address) -> list[_Address]:
    """An address and the IPv4 addresses that it stands for: an IPv6 spelling must not get past the guard."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    inside: list[ipaddress.IPv4Address | None] = [address.sixtofour, *(address.teredo or ())]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _TRANSLATED:
        inside.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [address, *(each for each in inside if each is not None)]
