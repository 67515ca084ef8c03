"""Owns connections: one pool, its certificates, proxies and redirects. Nobody else in transfers knows urllib3.

The library's own retries and redirects are off: they would send signed headers again and to strangers, and
log the URL. It and TLS are loaded with the first connection: most of a start needs none. Proxies come from the
environment, as everywhere. This file must not know files or parts.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final
from urllib.parse import unquote, urljoin, urlsplit

from app_trainer_sdk import __version__
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.addresses import Guard, HostRefused, origin
from app_trainer_sdk.transfers.faults import Fault, Unusable
from app_trainer_sdk.transfers.lines import pools

if TYPE_CHECKING:
    import ssl

    import urllib3

    Answer = urllib3.BaseHTTPResponse

REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5
SHORT_BYTES = 64 * 1024
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 30.0
CA_FILE = PREFIX + "CA_FILE"


@final
class Web:
    """Asks servers, following redirects by hand.

    Args:
        guard: who may be spoken to; each hop is checked, and each connection again once its address is known.
        connections: kept open for each host.
        connect_seconds: for a connection to come about.
        silence_seconds: between two pieces of an answer, and for its head as a whole; how long a whole answer
            takes is not limited.
        ca_file: certificates to trust instead of the machine's; None for ``APP_TRAINER_CA_FILE``.
    """

    def __init__(
        self, guard: Guard, *, connections: int = 32, connect_seconds: float = CONNECT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS, ca_file: str | None = None,
    ) -> None:  # fmt: skip
        self._guard = guard
        self._connections = connections
        self._timeouts = {"connect": connect_seconds, "read": silence_seconds}
        self._patience = silence_seconds
        self._ca_file = ca_file or os.environ.get(CA_FILE) or None
        self._managers: dict[tuple[str | None, bool], urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        logging.getLogger("urllib3.connectionpool").addFilter(_without_queries)

    @contextlib.contextmanager
    def open(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *,
        credentials: Mapping[str, str] | None = None, body: Any = None,
    ) -> Iterator[Answer]:  # fmt: skip
        """One request; GET and HEAD follow redirects. The body is read by the caller; leaving closes it.

        Args:
            method: such as ``GET``.
            url: where.
            headers: sent to every hop.
            credentials: headers for the first host only.
            body: what is sent: bytes or a file.

        Raises:
            Fault: no answer, too many redirects, or the connection broke while the answer was read.
            BadJob: an address that must not be spoken to.
        """
        import ssl

        import urllib3

        answer: Answer | None = None
        try:
            answer = self._follow(method, url, dict(headers or {}), _credentials(url, credentials), body)
            yield answer
        except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise Fault(f"{shown_url(url)}: {_reason(error)}") from None
        finally:
            if answer is not None:
                answer.close()

    def close(self) -> None:
        """Close what is open and idle."""
        for manager in self._managers.values():
            manager.clear()

    def _follow(
        self, method: str, url: str, headers: dict[str, str], credentials: dict[str, str], body: Any
    ) -> Answer:
        asked = url
        headers = {"Accept-Encoding": "identity", "User-Agent": f"app-trainer-sdk/{__version__}", **headers}
        for _ in range(MOST_REDIRECTS + 1):
            answer = self._ask(method, url, {**headers, **credentials}, body)
            place = answer.headers.get("Location")
            if answer.status not in REDIRECTS or place is None or method not in ("GET", "HEAD"):
                return answer
            _leave(answer)
            url, credentials = _next_hop(url, place, credentials)
        raise Unusable(f"{shown_url(asked)}: more than {MOST_REDIRECTS} redirects")

    def _ask(self, method: str, url: str, headers: dict[str, str], body: Any) -> Answer:
        try:
            self._guard.check(url)
            answer = self.manager(url).request(
                method, url, headers=headers, body=body, redirect=False, retries=False, preload_content=False,
                decode_content=False,
            )  # fmt: skip
        except ValueError as error:  # of the URL or a header; its text would hold them
            raise Unusable(f"{shown_url(url)}: a request that cannot be made: {type(error).__name__}") from None
        if answer.status < 200:  # the answer is still to come: the next request must not take it for its own
            answer.close()
            raise Fault(f"{shown_url(url)} answered {answer.status} and no more")
        return answer

    @functools.cached_property
    def _proxies(self) -> Mapping[str, str]:
        """By scheme, as the environment had them at the first request."""
        from urllib.request import getproxies

        return getproxies()

    def manager(self, url: str) -> urllib3.PoolManager:
        """Whose connections lead to a URL: straight there, or to the environment's proxy."""
        from urllib.request import proxy_bypass

        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all")
        if proxy and proxy_bypass(parts.hostname or ""):
            proxy = None
        secure = "https" in (parts.scheme, urlsplit(proxy or "").scheme)
        with self._lock:
            if (proxy, secure) not in self._managers:
                self._managers[proxy, secure] = self._new_manager(proxy, secure)
            return self._managers[proxy, secure]

    def _new_manager(self, proxy: str | None, secure: bool) -> urllib3.PoolManager:
        import urllib3

        options: dict[str, Any] = {
            "num_pools": 32, "maxsize": self._connections, "retries": False,
            "timeout": urllib3.Timeout(**self._timeouts),
        }  # fmt: skip
        if secure:  # reading a machine's certificates takes longer than a small file
            options["ssl_context"] = trust(self._ca_file)
        if proxy is None:
            manager = urllib3.PoolManager(**options)
            manager.pool_classes_by_scheme = pools(self._patience, reached=self._check_reached)
            return manager
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.scheme not in ("http", "https"):
            raise BadJob(
                f"a proxy of kind {parts.scheme}", expected="an http proxy", setting="HTTPS_PROXY or HTTP_PROXY"
            )
        told = _basic(parts.username, parts.password, "proxy_basic_auth")
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        manager = urllib3.ProxyManager(place, proxy_headers=told, **options)
        manager.pool_classes_by_scheme = pools(self._patience)
        return manager

    def _check_reached(self, host: str, address: str) -> None:
        """A name is looked up again for the connection, and may mean another address than when checked."""
        if not self._guard.names(host) and not self._guard.permits(address):
            raise HostRefused(host, address)


def trust(ca_file: str | None) -> ssl.SSLContext:
    """Certificates to trust: those of ``ca_file`` alone, else the machine's (``SSL_CERT_FILE`` moves them)."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise BadJob(
            f"cannot read {ca_file}: {error}", expected="certificates in PEM", setting=CA_FILE
        ) from None
    if ca_file is None and not context.get_ca_certs() and not ssl.get_default_verify_paths().capath:
        import certifi  # a slim system without certificates; huggingface_hub brings it

        context.load_verify_locations(certifi.where())
    return context


def _leave(answer: Answer) -> None:
    """End an answer that is not read; a short one is, so that its connection can be used again."""
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) <= SHORT_BYTES:
        answer.drain_conn()
    answer.close()


def _next_hop(url: str, place: str, credentials: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Where a redirect leads, and what may be told there: another host gets no credentials."""
    try:
        there = urljoin(url, place)
        parts = urlsplit(there)
        known = parts.scheme in ("http", "https") and parts.hostname and origin(there)
    except ValueError:
        known = False
    if not known:
        raise Unusable(f"{shown_url(url)}: a redirect to no http address")
    if urlsplit(url).scheme == "https" and parts.scheme == "http":
        raise Unusable(f"{shown_url(url)}: a redirect from https to http")
    return there, credentials if origin(there) == origin(url) else {}


def _credentials(url: str, said: Mapping[str, str] | None) -> dict[str, str]:
    parts = urlsplit(url)
    return {**_basic(parts.username, parts.password, "basic_auth"), **(said or {})}


def _basic(name: str | None, password: str | None, field: str) -> dict[str, str]:
    if name is None:
        return {}
    import urllib3

    told = f"{unquote(name)}:{unquote(password or '')}"
    return dict(urllib3.make_headers(**{field: told}))  # type: ignore[arg-type]


def _reason(error: Exception) -> str:
    import ssl

    import urllib3

    if isinstance(error, urllib3.exceptions.ReadTimeoutError | TimeoutError):
        return "silence"
    if isinstance(error, urllib3.exceptions.SSLError | ssl.SSLError):
        return f"{type(error).__name__}: {str(error)[:120]}"
    return type(error).__name__


def _without_queries(record: logging.LogRecord) -> bool:
    """urllib3 logs each request's target at DEBUG: without its query, which may be a signature."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            each.partition("?")[0] if isinstance(each, str) and "?" in each else each for each in record.args
        )
    return True
