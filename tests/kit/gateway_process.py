"""One real gateway process: started, waited for, stopped, killed, paused, started again at its port; its log is read from a
file. `Forkserver` starts it in a tenth of a second; a command line starts it as an operator does.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.kit.fixed_limits import INSTALL, TEST_PREFIX
from tests.kit.forkserver import Forkserver
from tests.kit.waits import DEADLINE_S
from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.siwe import parse_origin
from tollway.ids import ChainId

ROOT = Path(__file__).parents[2]
TOLLWAY = (sys.executable, "-c", "from tollway.cli import main; main()")
"""The command `tollway` of the code under test."""
TOLLWAY_WITH_LIMITS = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); {INSTALL}; from tollway.cli import main; main()",
)
ANSWER_DEADLINE_S = 5.0
POLL_S = 0.01
LOG_CHARS_MAX = 8_000


class Process(Protocol):
    """What `subprocess.Popen` and `ForkedProcess` share."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class GatewayProcess:
    """A gateway at one port of loopback. `base_url`: where it listens; `public_url`: what its settings say; `env`: its
    environment, which may change before `restart`. Starts at once; `wait_ready` returns when it serves."""

    def __init__(
        self,
        *,
        env: dict[str, str],
        folder: Path,
        name: str = "gateway",
        forkserver: Forkserver | None = None,
    ) -> None:
        self.env = env
        self.port = int(env["TOLLWAY_LISTEN"].rpartition(":")[2])
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.public_url = env["TOLLWAY_PUBLIC_URL"]
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._forkserver = forkserver
        self.process: Process = self._start()

    def _start(self) -> Process:
        if self._forkserver is not None:
            return self._forkserver.start(env=self.env, log=self.log, folder=self._folder)
        has_limits = any(name.startswith(TEST_PREFIX) for name in self.env)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                (*(TOLLWAY_WITH_LIMITS if has_limits else TOLLWAY), "serve"),
                env=self.env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(self) -> None:
        """Another process with `env`, at the same port, once this one has ended. Does not wait until it is ready."""
        self.process = self._start()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def print_log(self) -> None:
        """For a test that fails."""
        print(
            f"---- log of {self.base_url}, exit code {self.process.poll()}\n{self.read_log()[-LOG_CHARS_MAX:]}"
        )

    async def wait_ready(self, *, path: str = "/readyz") -> None:
        """Returns when `path` answers with 200. A process that ends fails at once, with its log."""

        async def is_ready() -> bool:
            assert self.is_running, (
                f"the gateway ended: {self.process.returncode}\n{self.read_log()[-4_000:]}"
            )
            return await answers(self.port, path)

        await poll(is_ready, what="readiness")

    async def wait_ended(self) -> int:
        """The exit code; minus the signal's number if a signal ended it."""
        await poll(lambda: not self.is_running, what="the gateway's end")
        assert self.process.returncode is not None
        return self.process.returncode

    async def stop(self) -> int:
        """As an operator does: SIGTERM. Gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.wait_ended()

    def kill(self) -> None:
        """SIGKILL; the process has ended when this returns."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def pause(self) -> None:
        """SIGSTOP: the process keeps its connections and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill_and_restart(self) -> None:
        """SIGKILL, and a new process with `env` at the same port. Does not wait until it is ready."""
        self.kill()
        assert self.process.returncode == -signal.SIGKILL, "it had ended before it was killed"
        self.start()

    def memory_kib(self, kind: str = "VmHWM") -> int:
        """Resident memory: now (`VmRSS`) or the maximum so far (`VmHWM`)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(kind + ":"):
                return int(line.split()[1])
        raise LookupError(kind)


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with `settings` and no other setting of Tollway."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLWAY_")}
    return {**kept, "PYTHONFAULTHANDLER": "1", **settings}


def sign_control(
    wallet: Wallet, *, public_url: str, chain_id: ChainId, method: str, path: str, body: bytes = b""
) -> list[tuple[str, str]]:
    """The headers of a request of the control plane with exactly that body, signed by the wallet (ERC-8128). Good for one time."""
    headers = [("Content-Type", "application/json")] if body else []
    raw_path, _, query = path.encode().partition(b"?")
    request = SignedRequest(
        method=method,
        raw_path=raw_path,
        query=query,
        headers=[(name.lower().encode(), value.encode()) for name, value in headers],
        body=body,
    )
    signed = wallet.sign_request(
        request,
        origin=parse_origin(public_url),
        chain_id=chain_id,
        now_s=int(time.time()),
        nonce=secrets.token_hex(16),
    )
    return [*headers, *signed]


async def poll(test: Callable[[], Any], *, what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first true result of `test`, which may be a coroutine function; an AssertionError after the deadline, which ends a test that hangs and is longer
    than a busy machine pauses."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = test()
        found = await found if isinstance(found, Awaitable) else found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come within {deadline_s} s"
        await asyncio.sleep(POLL_S)


def is_busy(pid: int) -> bool:
    """Whether a thread of that process runs, or would if a processor were free. Unknown, hence no, outside Linux."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False


async def listens(port: int) -> bool:
    """Whether a server takes connections at this port of loopback."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def answers(port: int, path: str) -> bool:
    """Whether a GET at this port of loopback gets a 200."""
    with contextlib.suppress(OSError, EOFError):
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            return await _get(port, path) == 200
    return False


async def _get(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.readuntil(b"\r\n"))[9:12])
    finally:
        writer.close()
