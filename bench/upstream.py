"""The upstream of every benchmark: a small JSON response to any request, one with its usage at /completion, and 100 MiB at /blob.
Beside it an x402 facilitator at /facilitator that accepts everything at once.

nginx with one worker where it is available, so that the upstream is never the bottleneck. Else, or with `python
bench/upstream.py PORT`, a minimal server over asyncio.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import uvloop
from children import Child, running
from machine import LOAD_CORE, find_free_port

ANSWER = b'{"symbol":"ETH","price":"3021.17","currency":"USD"}'
USED_PATH = "/completion"
USED_ANSWER = b'{"text":"A meter pays for what it uses.","usage":{"prompt_tokens":12,"completion_tokens":8}}'
PAYER = "0x" + "11" * 20
NETWORK = "eip155:84532"
FACILITATOR: dict[str, dict[str, object]] = {
    "supported": {
        "kinds": [{"x402Version": 2, "scheme": "exact", "network": NETWORK}],
        "extensions": [],
        "signers": {},
    },
    "verified": {"isValid": True, "payer": PAYER},
    "settled": {"success": True, "transaction": "0x" + "44" * 32, "network": NETWORK, "payer": PAYER},
}
BLOB_BYTES = 100 * 2**20
CHUNK = b"\x5a" * 65_536

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/upstream.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  sendfile on;
  keepalive_requests 100000000;
  keepalive_timeout 600s;
  client_body_temp_path {folder}/upstream-temp;
  proxy_temp_path {folder}/upstream-temp;
  fastcgi_temp_path {folder}/upstream-temp;
  uwsgi_temp_path {folder}/upstream-temp;
  scgi_temp_path {folder}/upstream-temp;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /blob {{ root {folder}; }}
    location = {used_path} {{ default_type application/json; return 200 '{used}'; }}
    location = /facilitator/supported {{ default_type application/json; return 200 '{supported}'; }}
    location = /facilitator/verify {{ default_type application/json; return 200 '{verified}'; }}
    location = /facilitator/settle {{ default_type application/json; return 200 '{settled}'; }}
    location / {{ default_type application/json; return 200 '{answer}'; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A running upstream. `kind`: what serves it."""

    url: str
    kind: str
    child: Child

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def serving_upstream(folder: Path, nginx: Path | None) -> AsyncIterator[Upstream]:
    port = find_free_port()
    if nginx is None:
        kind, command = "asyncio", (sys.executable, __file__, str(port))
    else:
        kind, command = "nginx", (str(nginx), "-p", str(folder), "-c", str(folder / "upstream.conf"))
        yes = {name: json.dumps(told) for name, told in FACILITATOR.items()}
        config = NGINX.format(
            folder=folder,
            port=port,
            answer=ANSWER.decode(),
            used_path=USED_PATH,
            used=USED_ANSWER.decode(),
            **yes,
        )
        (folder / "upstream.conf").write_text(config)
        with (folder / "blob").open("wb") as blob:
            for _ in range(BLOB_BYTES // len(CHUNK)):
                blob.write(CHUNK)
        folder.chmod(0o755)  # started by root, its worker runs as another user
    async with running("upstream", command, core=LOAD_CORE, folder=folder) as child:
        url = f"http://127.0.0.1:{port}"
        await child.wait_up(url + "/quote/ETH", status=200)
        yield Upstream(url=url, kind=kind, child=child)


def format_answer(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class ServedConnection(asyncio.Protocol):
    """One connection: responds to each request, whose body may have a Content-Length."""

    _SMALL = format_answer(ANSWER)
    _BLOB_HEAD = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n"
        % BLOB_BYTES
    )
    _OTHERS: ClassVar = {USED_PATH.encode(): format_answer(USED_ANSWER)} | {
        f"/facilitator/{path}".encode(): format_answer(json.dumps(FACILITATOR[name]).encode())
        for path, name in (("supported", "supported"), ("verify", "verified"), ("settle", "settled"))
    }

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, received: bytes) -> None:
        self._buffer += received
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = 0
            if not self._buffer.startswith(b"GET"):
                head = self._buffer[:end].lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            path = self._buffer.split(b" ", 2)[1]
            self._buffer = self._buffer[end + 4 + length :]
            if path == b"/blob":
                self._left = BLOB_BYTES
                self._transport.write(self._BLOB_HEAD)
                self._pour()
            else:
                self._transport.write(self._OTHERS.get(path, self._SMALL))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._pour()

    def _pour(self) -> None:
        while self._left and not self._is_paused:
            self._left -= len(CHUNK)
            self._transport.write(CHUNK)


async def serve_plainly(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(ServedConnection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve_plainly(int(sys.argv[1])))
