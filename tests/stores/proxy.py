"""A proxy before an S3 service: it records every request, and spoils those that a test wants spoiled."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "host", "expect", "date", "server"}


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # with the bucket, percent-encoded
    query: dict[str, list[str]]
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An answer in place of the service's."""

    status: int
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def body(self) -> bytes:
        return (
            self.text or f"<Error><Code>{self.code}</Code><Message>as the test wants</Message></Error>"
        ).encode()


Spoiled = (
    Reply
    | Literal["drop", "lose", "cut"]  # hang up at once; hang up after applying; send half of the body
    | Callable[[int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]]  # change the service's answer
)


class S3Proxy:
    """`rule(request)` says how to spoil a request, None to let it pass.

    `requests` is what came, `most` how many of those that count were passed on at once.
    """

    def __init__(self, upstream: str) -> None:
        self.requests: list[Request] = []
        self.counts: Callable[[Request], bool] = lambda request: True
        self.most = self._now = 0
        self._counting = threading.Lock()
        self.rule: Callable[[Request], Spoiled | None] = lambda request: None
        self._upstream = urlsplit(upstream).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def methods(self) -> list[str]:
        return [request.method for request in self.requests]

    def forward(self, request: Request, raw_path: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self._upstream, timeout=30)
        counts = self.counts(request)
        with self._counting:
            self._now += counts
            self.most = max(self.most, self._now)
        try:
            headers = {name: value for name, value in request.headers.items() if name not in _HOP}
            connection.request(request.method, raw_path, request.body, {**headers, "host": self._upstream})
            reply = connection.getresponse()
            kept = {name: value for name, value in reply.getheaders() if name.lower() not in _HOP}
            if request.method == "HEAD":
                kept["Content-Length"] = reply.getheader("Content-Length", "0")
            return reply.status, kept, reply.read()
        finally:
            connection.close()
            with self._counting:
                self._now -= counts

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy

    def log_message(self, *_: Any) -> None:
        pass

    def handle_expect_100(self) -> bool:
        return super().handle_expect_100()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = parse_qs(parts.query, keep_blank_values=True)
        request = Request(self.command, parts.path, query, headers, body)
        self.proxy.requests.append(request)
        spoiled = self.proxy.rule(request)
        if spoiled == "drop":
            self.close_connection = True
            return
        if isinstance(spoiled, Reply):
            status, given, data = spoiled.status, dict(spoiled.headers), spoiled.body
        else:
            status, given, data = self.proxy.forward(request, self.path)
        if spoiled == "lose":
            self.close_connection = True
            return
        if callable(spoiled):
            status, given, data = spoiled(status, given, data)
        self._answer(status, given, b"" if self.command == "HEAD" else data, cut=spoiled == "cut")

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "date":
                self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def send_response(self, code: int, message: str | None = None) -> None:
        self.send_response_only(code, message)
        self.send_header("Date", getattr(self.proxy, "date", None) or self.date_time_string())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - http.server's names
