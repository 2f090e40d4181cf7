"""HTTP/1.1 over a socket, as the transcripts want it: what is sent goes out byte for byte, and what comes back is kept
with the order and the spelling of its headers. A connection serves one request."""

import socket
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

DEADLINE_S = 120.0


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_broken: bool = False
    interim: list[int] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return from_json(self.body)

    @property
    def code(self) -> str | None:
        return str(self.json.get("code")) if b"problem+json" in self.content_type else None

    @property
    def content_type(self) -> bytes:
        return (self.find("Content-Type") or "").encode()

    def find(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


LOST = Answer(status=0, headers=[], body=b"", is_broken=True)
"""The connection ended before any answer."""


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""

    def close(self) -> None:
        self._socket.close()

    def send(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def reset(self) -> None:
        """Ends as a caller that is gone: with RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._socket.close()

    def receive(self, method: str) -> Answer:
        try:
            return self._receive(method)
        except ConnectionError:
            return LOST

    def read_head(self) -> tuple[int, list[tuple[str, str]]]:
        head = self._take_until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        pairs = [line.split(":", 1) for line in lines if line]
        return int(first.split(" ")[1]), [(name, value.strip()) for name, value in pairs]

    def _receive(self, method: str) -> Answer:
        interim = []
        while True:
            status, headers = self.read_head()
            if status >= 200:
                break
            interim.append(status)
        answer = Answer(status=status, headers=headers, body=b"", interim=interim)
        if method == "HEAD" or status in (204, 304):
            return answer
        length = answer.find("Content-Length")
        try:
            if length is not None:
                self._read_length(answer, int(length))
            elif answer.find("Transfer-Encoding") == "chunked":
                self._read_chunks(answer)
            else:
                self._read_rest(answer)
        except ConnectionError:
            answer.is_broken = True
        return answer

    def _read_length(self, answer: Answer, length: int) -> None:
        while len(self._read) < length:
            try:
                self._fill()
            except ConnectionError:
                answer.body = self._read
                raise
        answer.body, self._read = self._read[:length], self._read[length:]

    def _read_chunks(self, answer: Answer) -> None:
        while True:
            size = int(self._take_until(b"\r\n").strip(), 16)
            while len(self._read) < size + 2:
                try:
                    self._fill()
                except ConnectionError:
                    answer.body += self._read[:size]
                    raise
            answer.body += self._read[:size]
            self._read = self._read[size + 2 :]
            if size == 0:
                return

    def _read_rest(self, answer: Answer) -> None:
        while True:
            try:
                self._fill()
            except ConnectionError:
                answer.body = self._read
                return

    def _take_until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            self._fill()
        taken, _, self._read = self._read.partition(mark)
        return taken

    def _fill(self) -> None:
        more = self._socket.recv(65536)
        if not more:
            raise ConnectionResetError("closed")
        self._read += more


def write_request(method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
