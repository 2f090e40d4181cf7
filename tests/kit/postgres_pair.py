"""A PostgreSQL primary and its synchronous standby, on loopback ports of their own: to be stopped, killed and promoted."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from tests.kit.postgres_programs import find_user, run_program, start_server
from tollway.storage.engine.database import connect_database
from tollway.storage.engine.migrate import upgrade

DATABASE = "tollway"
STANDBY = "standby"
ANSWER_DEADLINE_S = 30.0
_CONFIG = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_buffers = 16MB
max_connections = 80
fsync = off  # only processes die here; what they have handed to the system stays
wal_receiver_status_interval = 1s
wal_retrieve_retry_interval = 100ms
"""


class PostgresNode:
    """One server. `folder` holds its data, `port` is where it listens."""

    def __init__(self, folder: Path, port: int, *, user: str | None) -> None:
        self.folder = folder
        self.port = port
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str) -> None:
        """One of PostgreSQL's programs, to its end."""
        run_program(program, *arguments, user=self._user)

    async def start(self) -> None:
        self._process = start_server(
            self.folder, "-p", str(self.port), log=self.folder / "server.log", user=self._user
        )
        await self.wait_answering()

    async def wait_answering(self) -> None:
        deadline = time.monotonic() + ANSWER_DEADLINE_S
        while True:
            try:
                await self.ask("SELECT 1", database="postgres")
            except (OSError, asyncpg.PostgresError):
                assert time.monotonic() < deadline, self.read_log()[-4000:]
                await asyncio.sleep(0.02)
            else:
                return

    async def ask(self, *statements: str, database: str = DATABASE) -> Any:
        """The one value that the last of them gives."""
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="postgres", database=database, timeout=5
        )
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    async def stop(self) -> None:
        """As an operator does: sessions are ended, everything is written."""
        await self._end(signal.SIGINT)

    async def kill(self) -> None:
        """All its processes at once, as when the power goes."""
        assert self._process is not None
        family = self._family()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        await asyncio.to_thread(psutil.wait_procs, family, 20)
        await asyncio.to_thread(self._process.wait, 20)

    def pause(self) -> None:
        """It goes on holding its connections and says nothing any more."""
        for one in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()

    def go_on(self) -> None:
        for one in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()

    def limit_files(self, file_bytes_max: int | None) -> None:
        """Limits the size of the files that its processes may write, present and future ones: a full disk. A process
        may not limit those of another user, so it runs as theirs."""
        limit = "unlimited" if file_bytes_max is None else str(file_bytes_max)
        for one in self._family():
            command = ["prlimit", "--pid", str(one.pid), f"--fsize={limit}:"]
            done = subprocess.run(
                command, user=self._user, cwd="/", capture_output=True, timeout=ANSWER_DEADLINE_S, check=False
            )
            assert done.returncode == 0 or not one.is_running(), done.stderr

    async def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        await asyncio.to_thread(self._process.wait, 30)

    def _family(self) -> list[psutil.Process]:
        assert self._process is not None
        postmaster = psutil.Process(self._process.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def read_log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    async def end(self) -> None:
        """Ends it in any state."""
        if self._process is not None and self._process.poll() is None:
            await self.kill()


class PostgresPair:
    """`primary` takes writes and waits for `standby` with each durable commit, once `replicate` was called."""

    def __init__(self, folder: Path, ports: tuple[int, int], *, user: str | None) -> None:
        self.primary = PostgresNode(folder / "primary", ports[0], user=user)
        self.standby = PostgresNode(folder / "standby", ports[1], user=user)
        self.url = f"postgresql://postgres@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{DATABASE}"

    async def replicate(self) -> None:
        """Makes the standby, and lets each durable commit of the primary wait for it."""
        origin = f"host=127.0.0.1 port={self.primary.port} user=postgres application_name={STANDBY}"
        self.primary.run(
            "pg_basebackup", "-d", origin, "-D", str(self.standby.folder), "-R", "-c", "fast", "--no-sync"
        )
        await self.standby.start()
        name = f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'"
        await self.primary.ask(name, "SELECT pg_reload_conf()")
        deadline = time.monotonic() + ANSWER_DEADLINE_S
        while await self.primary.ask("SELECT max(sync_state) FROM pg_stat_replication") != "sync":
            assert time.monotonic() < deadline, self.standby.read_log()[-4000:]
            await asyncio.sleep(0.02)

    def promote(self) -> None:
        self.standby.run("pg_ctl", "promote", "-D", str(self.standby.folder))


@contextlib.asynccontextmanager
async def run_pair(find_port: Any) -> AsyncIterator[PostgresPair]:
    """A primary with the tables of this version; the standby comes with `replicate`."""
    folder = Path(tempfile.mkdtemp(prefix="pair-"))
    user = find_user(folder)
    pair = PostgresPair(folder, (find_port(), find_port()), user=user)
    try:
        # Small segments of the log: so that a limit for the size of files meets the tables first.
        pair.primary.run(
            "initdb", "--auth=trust", "-U", "postgres", "--encoding=utf8", "--no-sync", "--wal-segsize=1",
            "-D", str(pair.primary.folder),
        )  # fmt: skip
        with (pair.primary.folder / "postgresql.conf").open("a") as config:
            config.write(_CONFIG)
        await pair.primary.start()
        await pair.primary.ask(f"CREATE DATABASE {DATABASE}", "SELECT 1", database="postgres")
        database = connect_database(pair.url)
        try:
            await upgrade(database)
        finally:
            await database.close()
        yield pair
    finally:
        await pair.primary.end()
        await pair.standby.end()
        shutil.rmtree(folder, ignore_errors=True)
