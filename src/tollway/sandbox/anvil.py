"""Runs a test chain: the real anvil binary as a child of this process, on loopback, gone when we are gone.

Must never listen beyond loopback, never leave a process or a file behind, and never touch a process that it did not start.
"""

import asyncio
import ctypes
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import aiohttp

from tollway.ids import ChainId
from tollway.sandbox.chain_driver import ChainDriver

SANDBOX_CHAIN_ID = ChainId(84532)
"""Base Sepolia's: unmodified clients refuse chains that they do not know."""

_LISTENING = re.compile(rb"Listening on 127\.0\.0\.1:([0-9]+)")
_START_DEADLINE_S = 15.0
_STOP_DEADLINE_S = 3.0
_POLL_S = 0.005
_PR_SET_PDEATHSIG = 1


class AnvilUnavailable(Exception):
    """The test chain cannot be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anvil:
    """A running test chain."""

    rpc_url: str
    chain_id: ChainId
    pid: int


@asynccontextmanager
async def run_anvil(*, port: int = 0, chain_id: ChainId = SANDBOX_CHAIN_ID) -> AsyncIterator[Anvil]:
    """Starts anvil and waits until it answers; stops it on the way out. `port` 0 takes any free one.

    `finalized` is the block two below the head (one slot to an epoch), so that it moves within a test. The child stays
    in our process group and, on Linux, is killed by the kernel when we die without a word.
    Raises `AnvilUnavailable` when there is no binary, the port is taken or it does not answer in time.
    """
    binary = find_anvil()
    with tempfile.TemporaryFile() as output:
        process = _spawn(binary, port=port, chain_id=chain_id, output=output)
        try:
            anvil = await _wait_until_ready(process, output, chain_id)
            yield anvil
        finally:
            await _stop(process)


def find_anvil() -> Path:
    """The binary itself, not the Node launcher beside it: from the checkout's node_modules, else from PATH."""
    name = "anvil.exe" if sys.platform == "win32" else "anvil"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    package = f"anvil-{sys.platform}-{machine}"
    for root in _checkouts():
        binary = root / "node_modules" / "@foundry-rs" / package / "bin" / name
        if binary.is_file():
            return binary
    on_path = shutil.which("anvil")
    if on_path is None:
        raise AnvilUnavailable(
            "no anvil here: run `make install` in the project's checkout, or put anvil on PATH"
        )
    return Path(on_path)


def _checkouts() -> Iterator[Path]:
    yield from Path(__file__).resolve().parents
    here = Path.cwd()
    yield from (here, *here.parents)


def _spawn(binary: Path, *, port: int, chain_id: ChainId, output: IO[bytes]) -> subprocess.Popen[bytes]:
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--chain-id", str(chain_id), "--accounts", "1"]
    arguments += ["--slots-in-an-epoch", "1", "--color", "never"]
    return subprocess.Popen(
        [str(binary), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_kill_with_parent(),  # two system calls; the library is loaded before the fork
    )


def _kill_with_parent() -> Callable[[], None] | None:
    """What the child does before it becomes anvil, on systems whose kernel can tie it to us."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return set_death_signal


async def _wait_until_ready(process: subprocess.Popen[bytes], output: IO[bytes], chain_id: ChainId) -> Anvil:
    deadline = time.monotonic() + _START_DEADLINE_S
    while (port := _read_port(output)) is None:
        if process.poll() is not None:
            raise AnvilUnavailable(f"anvil stopped at once: {_last_line(output)}")
        if time.monotonic() > deadline:
            raise AnvilUnavailable("anvil did not come up in time")
        await asyncio.sleep(_POLL_S)
    rpc_url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as session:
        driver = ChainDriver(session, rpc_url, chain_id)
        served = int(await driver.rpc("eth_chainId"), 16)
        if served != chain_id:
            raise AnvilUnavailable(f"port {port} serves chain {served}, not {chain_id}")
        # It would write a line for each request into a file that nobody reads.
        await driver.rpc("anvil_setLoggingEnabled", False)
    return Anvil(rpc_url=rpc_url, chain_id=chain_id, pid=process.pid)


def _read_port(output: IO[bytes]) -> int | None:
    match = _LISTENING.search(os.pread(output.fileno(), 65_536, 0))
    return int(match[1]) if match else None


def _last_line(output: IO[bytes]) -> str:
    lines = os.pread(output.fileno(), 65_536, 0).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


async def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL after a deadline. Reaps the child even when the stop itself is cancelled."""
    process.terminate()
    deadline = time.monotonic() + _STOP_DEADLINE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 -- a process, not an event
            await asyncio.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=_STOP_DEADLINE_S)
