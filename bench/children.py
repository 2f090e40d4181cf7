"""The processes of a benchmark: each on its core, its output in a file, stopped at the end of its block."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from machine import count_cpu_s, list_family, prepare_child

UP_DEADLINE_S = 120.0
STOP_DEADLINE_S = 40.0
POLL_S = 0.005


class NotUp(Exception):
    """A process did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def count_cpu_s(self) -> float:
        return count_cpu_s(list_family(self.pid))

    async def wait_up(self, url: str, *, status: int | None = None) -> None:
        """Waits until `url` returns any response, or that status. Raises NotUp with the end of its log."""
        try:
            await wait_up(url, self.process, status=status)
        except NotUp as exc:
            raise NotUp(f"{self.name} did not come up: {self.tell_end()}") from exc

    def tell_end(self) -> str:
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-8:]) or "it said nothing"


async def wait_up(url: str, process: subprocess.Popen[bytes], *, status: int | None = None) -> None:
    """Waits until `url` returns any response, or that status. Raises NotUp with the end of its log."""
    deadline = time.monotonic() + UP_DEADLINE_S
    async with aiohttp.ClientSession() as session:
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotUp(url)
            try:
                async with session.get(url, allow_redirects=False) as answer:
                    if status is None or answer.status == status:
                        return
            except (aiohttp.ClientError, ConnectionError):
                pass
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running(
    name: str,
    command: Sequence[str],
    *,
    core: int,
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Child]:
    """Runs a process. `environment` is added to the environment without the settings of a gateway; `folder`: its
    working directory."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("TOLLWAY_")}
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**own, **(environment or {})},
            preexec_fn=prepare_child(core),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Child(name=name, process=process, log=log)
    finally:
        await asyncio.shield(asyncio.to_thread(stop, process))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, and SIGKILL after a deadline."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
