"""A fast HTTP server for benchmarks/download.py: one file, ranges, sendfile, and a limit for each connection.

::

    python benchmarks/download_server.py FILE SHA256 [PEM]

Prints its port. With a key and certificate it speaks TLS, and reads what it would send from file to socket.
``GET /stats`` tells the bytes sent, ``GET /limit/20000000`` limits each connection to so many bytes a second (0
for none). Every path but ``/api/`` is the file, with the headers that huggingface_hub wants.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import threading
import time

RANGE = re.compile(rb"(?i)\r\nrange: bytes=(\d+)-(\d*)")
SLICES_A_SECOND = 50


def next_head(connection: socket.socket, waiting: bytes = b"") -> tuple[bytes, bytes] | None:
    """The head of the next request and what came after it, None when the peer has left.

    Args:
        connection: where requests come.
        waiting: what came already.
    """
    while b"\r\n\r\n" not in waiting:
        piece = connection.recv(65536)
        if not piece:
            return None
        waiting += piece
    head, _, rest = waiting.partition(b"\r\n\r\n")
    return head + b"\r\n", rest


class Server:
    def __init__(self, path: str, sha256: str, certificate: str | None = None) -> None:
        self.file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.file).st_size
        self.etag = sha256
        self.tls: ssl.SSLContext | None = None
        if certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)
        self.sent = 0
        self.limit = 0
        self.lock = threading.Lock()

    def serve(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        waiting = b""
        try:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            while (found := next_head(connection, waiting)) is not None:
                head, waiting = found
                self.answer(connection, head)
        except OSError:
            return
        finally:
            connection.close()

    def answer(self, connection: socket.socket, head: bytes) -> None:
        method, path, _ = head.split(b" ", 2)
        if path == b"/stats" or path.startswith(b"/limit/"):
            if path != b"/stats":
                self.limit = int(path.rpartition(b"/")[2])
            body = str(self.sent).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            return
        if path.startswith(b"/api/"):  # huggingface_hub asks for more than the file
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        asked = RANGE.search(head)
        start, end = 0, self.size
        if asked:
            start, end = int(asked[1]), min(self.size, int(asked[2] or self.size - 1) + 1)
        said = [b"HTTP/1.1 206 Partial Content" if asked else b"HTTP/1.1 200 OK"]
        if asked:
            said.append(b"Content-Range: bytes %d-%d/%d" % (start, end - 1, self.size))
        said += [
            b"Content-Length: %d" % (end - start),
            b'ETag: "%s"' % self.etag.encode(),
            b"Accept-Ranges: bytes",
        ]
        said += [b"X-Repo-Commit: " + b"1" * 40, b"", b""]
        connection.sendall(b"\r\n".join(said))
        if method != b"HEAD":
            self.send(connection, start, end)

    def send(self, connection: socket.socket, start: int, end: int) -> None:
        began, first = time.perf_counter(), start
        while start < end:
            most = self.limit // SLICES_A_SECOND if self.limit else 4 << 20
            count = self.send_some(connection, start, min(most, end - start))
            start += count
            with self.lock:
                self.sent += count
            if self.limit and (ahead := (start - first) / self.limit - (time.perf_counter() - began)) > 0:
                time.sleep(ahead)

    def send_some(self, connection: socket.socket, start: int, count: int) -> int:
        if self.tls is None:
            return os.sendfile(connection.fileno(), self.file, start, count)
        piece = os.pread(self.file, min(count, 1 << 20), start)
        connection.sendall(piece)
        return len(piece)


if __name__ == "__main__":
    Server(*sys.argv[1:]).serve()
