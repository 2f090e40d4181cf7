"""The provider's API of the transcripts. What it does with a request is named by the first part of its path."""

import contextlib
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl

from tests.system.transcripts.node import start_server

BIG = 300 * 1024
HELD_S = 120.0
PART_S = 0.05
"""Between two parts of a body: they must not arrive as one."""


@dataclass(frozen=True)
class Arrived:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_whole: bool


class Upstream:
    """`/echo` answers what it got · `/status/N` · `/headers` unusual ones · `/stream` in chunks · `/cut` breaks its body
    off · `/close` hangs up without a byte · `/bad` no HTTP · `/never` waits for the
    other side to hang up · `/hold` waits for `release` before its head · `/half` sends
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
        assert self.waiting.acquire(timeout=HELD_S), "nothing has arrived"

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
                gate.wait(HELD_S)
                self._send(handler, 200, b'{"held":true}')
            case "half":
                self._send_head(handler, 200, [_TEXT, ("Content-Length", "2000")], b"h" * 1000)
                self.waiting.release()
                gate.wait(HELD_S)
                time.sleep(PART_S)
                handler.wfile.write(b"H" * 1000)
            case "cut":
                self._send_head(handler, 200, [_TEXT, ("Content-Length", "2000")], b"c" * 1000)
                time.sleep(PART_S)
                handler.close_connection = True
            case "close":
                handler.close_connection = True
            case "bad":
                handler.wfile.write(b"this is not HTTP\r\n\r\n")
                handler.close_connection = True
            case "never":
                with contextlib.suppress(OSError):
                    handler.connection.recv(1)  # until the gateway hangs up
                handler.close_connection = True
            case "stream":
                self._send_head(handler, 200, [_TEXT, ("Transfer-Encoding", "chunked")], b"4\r\none \r\n")
                for part in (b"4\r\ntwo \r\n", b"5\r\nthree\r\n", b"0\r\n\r\n"):
                    time.sleep(PART_S)
                    handler.wfile.write(part)
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
        is_bare = handler.command == "HEAD" or status == 304
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *(more or [])]
        self._send_head(handler, status, headers, b"" if is_bare else body)

    def _send_head(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        first: bytes = b"",
    ) -> None:
        """In one piece with the first part of the body, so that the gateway reads both at once every time."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        handler.wfile.write(f"HTTP/1.1 {status} Told\r\n{lines}\r\n".encode() + first)


_TEXT = ("Content-Type", "text/plain")
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
