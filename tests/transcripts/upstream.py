"""The provider's API of the transcripts. What it does with a request is named by the first part of its path."""

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl

from tests.transcripts.node import start_server

BIG = 300 * 1024


@dataclass(frozen=True)
class Arrived:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_whole: bool


class Upstream:
    """`/echo` answers what it got · `/status/N` · `/headers` unusual ones · `/stream` in chunks · `/cut` breaks its body
    off · `/close` hangs up without a byte · `/bad` no HTTP · `/hold` waits for `release` before its head · `/half` sends
    half of its body and waits · `/big` more than is stored · `/empty` 204 · `/redirect` · `/owned` a file."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self.waiting = threading.Semaphore(0)
        self._gate = threading.Event()
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                upstream._answer(self)

            def log_message(self, *_: object) -> None: ...

        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            setattr(Handler, f"do_{method}", Handler.handle_one)
        self._server = start_server(Handler)
        self.authority = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = "http://" + self.authority

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def release(self) -> None:
        """Lets go on what waits, and begins anew."""
        gate, self._gate = self._gate, threading.Event()
        gate.set()

    def release_next(self) -> None:
        """From now on nothing waits."""
        self._gate.set()

    def holds_again(self) -> None:
        while self.waiting.acquire(blocking=False):
            pass
        self._gate = threading.Event()

    def wait_arrival(self) -> None:
        assert self.waiting.acquire(timeout=20), "nothing has arrived"

    def take(self) -> list[Arrived]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        target, gate = handler.path, self._gate
        path, _, query = target.partition("?")
        body, is_whole = _read_body(handler)
        if handler.headers.get("X-Unlisted") is None:
            headers = tuple(handler.headers.items())
            self.arrived.append(Arrived(handler.command, target, headers, body, is_whole))
        first, _, rest = path.strip("/").partition("/")
        if not is_whole:
            handler.close_connection = True
            return
        match first:
            case "hold":
                self.waiting.release()
                gate.wait(30)
                self._send(handler, 200, b'{"held":true}')
            case "half":
                self._send_head(handler, 200, [("Content-Type", "text/plain"), ("Content-Length", "2000")])
                handler.wfile.write(b"h" * 1000)
                self.waiting.release()
                gate.wait(30)
                handler.wfile.write(b"H" * 1000)
            case "cut":
                self._send_head(handler, 200, [("Content-Type", "text/plain"), ("Content-Length", "2000")])
                handler.wfile.write(b"c" * 1000)
                handler.close_connection = True
            case "close":
                handler.close_connection = True
            case "bad":
                handler.wfile.write(b"this is not HTTP\r\n\r\n")
                handler.close_connection = True
            case "wait":
                time.sleep(float(rest))
                self._send(handler, 200, b'{"waited":true}')
            case "stream":
                self._send_head(
                    handler, 200, [("Content-Type", "text/plain"), ("Transfer-Encoding", "chunked")]
                )
                for part in (b"one ", b"two ", b"three"):
                    handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                handler.wfile.write(b"0\r\n\r\n")
            case "big":
                self._send(handler, 200, b"b" * BIG, kind="text/plain")
            case "empty":
                self._send_head(handler, 204, [])
            case "status":
                self._send(handler, int(rest), json.dumps({"status": int(rest)}).encode())
            case "redirect":
                location = dict(parse_qsl(query)).get("to", self.url + "/echo")
                self._send(handler, 302, b"", more=[("Location", location)])
            case "headers":
                self._send(handler, 200, b"{}", more=_UNUSUAL)
            case _ if target in self.files:
                kind, content = self.files[target]
                self._send(handler, 200, content, kind=kind)
            case "echo" | "":
                told = {"method": handler.command, "target": target, "body": body.decode("latin-1")[:200]}
                self._send(handler, 200, json.dumps(told).encode(), more=[("ETag", '"echo"')])
            case _:
                self._send(handler, 404, b'{"error":"not here"}')

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        more: list[tuple[str, str]] | None = None,
    ) -> None:
        self._send_head(
            handler, status, [("Content-Type", kind), ("Content-Length", str(len(body))), *(more or [])]
        )
        if handler.command != "HEAD" and status != 304:
            handler.wfile.write(body)

    def _send_head(
        self, handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]]
    ) -> None:
        handler.send_response_only(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.flush()


_UNUSUAL = [
    ("Set-Cookie", "a=b"),
    ("Strict-Transport-Security", "max-age=1"),
    ("Clear-Site-Data", '"*"'),
    ("PAYMENT-RESPONSE", "forged"),
    ("Tollway-Payment-State", "none"),
    ("Settlement-Overrides", "{}"),
    ("X-Own", "one"),
    ("X-Own", "two"),
    ("Connection", "X-Hop"),
    ("X-Hop", "hop"),
    ("Cache-Control", "max-age=60"),
    ("Access-Control-Allow-Origin", "https://other.example"),
    ("Vary", "Accept"),
    ("Server", "provider"),
]


def _read_body(handler: BaseHTTPRequestHandler) -> tuple[bytes, bool]:
    length = handler.headers.get("Content-Length")
    if length is not None:
        try:
            body = handler.rfile.read(int(length))
        except OSError:
            return b"", False
        return body, len(body) == int(length)
    if handler.headers.get("Transfer-Encoding") != "chunked":
        return b"", True
    body = b""
    while True:
        try:
            size = handler.rfile.readline()
            if not size.strip():
                return body, False
            part = handler.rfile.read(int(size, 16))
            handler.rfile.readline()
        except OSError:
            return body, False
        body += part
        if not part:
            return body, True
