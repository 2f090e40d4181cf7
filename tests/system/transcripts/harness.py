"""One gateway process with everything around it: database, two chain nodes, the provider's API, and the clock."""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kit.forkserver import STOP_DEADLINE_S, ForkedProcess, Forkserver
from tests.kit.gateway_process import is_busy
from tests.kit.ports import find_low_port
from tests.system.transcripts import adapter
from tests.system.transcripts.databases import PostgresServer, Rows
from tests.system.transcripts.forks import EPOCH_MS
from tests.system.transcripts.node import Node
from tests.system.transcripts.recorder import Recorder
from tests.system.transcripts.signing import AUTHORITY, Account, checksum, keccak256, sign_request
from tests.system.transcripts.upstream import Upstream
from tests.system.transcripts.wire import LOST, Answer, Connection, write_request

API = "/api/v2"
ROOT = Path(__file__).parents[3]
SECOND_CHAIN = 421614
SECOND_TOKEN = "0x75faf114eafb1BDbe2F0316DF893fd58CE46AA4d"
TICK_MS = 1_000
DEADLINE_S = 120.0
"""Of a wait for an event, on a machine that does much else. It fails the replay."""

QUIET_LOOKS = 15
QUIET_LOOK_S = 0.01

Headers = list[tuple[str, str]]


def start_command(
    forks: Forkserver, *arguments: str, env: dict[str, str], folder: Path, clock: Path
) -> ForkedProcess:
    """A command line of `tollway` under that clock."""
    return forks.start(env=env, log=folder / "log", folder=folder, arguments=arguments, clock=str(clock))


def settings_of(folder: Path, *, database_url: str, port: int, nodes: tuple[str, str]) -> dict[str, str]:
    """The environment of a gateway; the networks stand in a file of that folder."""
    gas_key = keccak256(b"transcript gas").hex()
    config = folder / "tollway.toml"
    config.write_text(adapter.NETWORKS.format(first=nodes[0], second=nodes[1], gas_key=gas_key))
    config.chmod(0o600)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLWAY_")}
    return {
        **kept,
        **adapter.SETTINGS,
        "TOLLWAY_CONFIG": str(config),
        "TOLLWAY_DATABASE_URL": database_url,
        "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
    }


class Clock:
    """Milliseconds in a file, read by the gateway as its time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = EPOCH_MS
        path.write_bytes(self.now_ms.to_bytes(8, "big"))
        self._file = os.open(path, os.O_WRONLY)
        self.held: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000

    def advance(self, seconds: float) -> None:
        with self.held():
            self.now_ms += int(seconds * 1000)
            self._write()

    def _write(self) -> None:
        os.pwrite(self._file, self.now_ms.to_bytes(8, "big"), 0)

    def close(self) -> None:
        os.close(self._file)


class Pending:
    """A request whose answer has not been read."""

    def __init__(self, harness: "Harness", title: str, request: tuple[str, str, Headers, bytes]) -> None:
        self._stage, self._title, self._request = harness, title, request
        self.connection = harness.connect()
        self.answer: Answer = LOST
        self.connection.send(write_request(*request))
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def _receive(self) -> None:
        self.answer = self.connection.receive(self._request[0])

    def finish(self, **options: Any) -> Answer:
        self._receive()
        self.connection.close()
        self._stage.record(self._title, self._request, self.answer, **options)
        return self.answer

    def finish_lost(self) -> None:
        """The gateway is dead: nothing more is heard."""
        self.connection.close()
        self._stage.record_lost(self._title, self._request)

    def leave(self, **options: Any) -> None:
        """The caller goes without an answer."""
        self.connection.reset()
        self._stage.record(self._title, self._request, None, **options)


class Harness:
    """The gateway of one family. `settings`: beside the usual ones."""

    def __init__(
        self,
        forks: Forkserver,
        server: PostgresServer | None,
        *,
        settings: dict[str, str] | None = None,
        counts_rpc: bool = True,
        outlives: bool = False,
    ) -> None:
        self._counts_rpc = counts_rpc
        self._forks = forks
        self.folder = Path(tempfile.mkdtemp(prefix="transcript-"))
        self.folder.chmod(0o755)  # the database server may be another user, and reads the clock
        self.clock = Clock(self.folder / "clock")
        self.node = Node(lambda: self.clock.now_s, chain_id=84532)
        self.second = Node(lambda: self.clock.now_s, chain_id=SECOND_CHAIN, token=SECOND_TOKEN)
        self.upstream = Upstream()
        self.is_postgres = server is not None
        self.database_url = (
            f"sqlite:///{self.folder}/gateway.sqlite3" if server is None else server.make(self.clock.path)
        )
        self._port = find_low_port()
        nodes = (self.node.url, self.second.url)
        self._env = {
            **settings_of(self.folder, database_url=self.database_url, port=self._port, nodes=nodes),
            **(settings or {}),
            **(adapter.RENEWS_OFTEN if outlives and self.is_postgres else {}),
        }
        self._rows = Rows(self.database_url, server)
        literals = {self.upstream.authority: "<upstream>", f"127.0.0.1:{self._port}": "<listen>"}
        if outlives:
            self.clock.held = self._hold_clock
        self.recorder = Recorder(literals)
        self.node.on_random = self.recorder.learn
        self._labels = 0
        self._left_open: set[str] = set()  # calls whose end no exchange writes
        self.start()

    # ---- The process.

    def start(self) -> None:
        self._process = self._fork("serve")
        deadline = time.monotonic() + DEADLINE_S
        while not self._is_ready():
            assert time.monotonic() < deadline, f"never ready\n{self.read_log()}"
            assert self._process.poll() is None, f"ended at once\n{self.read_log()}"
            time.sleep(0.01)
        self._rows.open()
        self._left_open |= self._rows.calls()
        self._wait_quiet()

    @contextlib.contextmanager
    def _hold_clock(self) -> Iterator[None]:
        """Inside, the gateway is not between asking its database for the time and comparing that with its own."""
        with self._rows.clock_held():
            wait_for(lambda: not is_busy(self._process.pid), what="an idle gateway", pause_s=0.001)
            yield

    def _fork(self, *arguments: str) -> ForkedProcess:
        return start_command(
            self._forks, *arguments, env=self._env, folder=self.folder, clock=self.clock.path
        )

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            connection = self.connect()
            connection.send(write_request("GET", "/readyz", [("Host", AUTHORITY)], b""))
            answer = connection.receive("GET")
            connection.close()
            return answer.status == 200 or (self.node.is_away and answer.status == 503)
        return False

    def _wait_quiet(self) -> None:
        """Until what runs at a start has run; where the chain is asked all the time, until gas prices are known."""
        wait_for(lambda: bool(self.node.asked["eth_gasPrice"]) or self.node.is_away, what="gas prices")
        if not self._counts_rpc:
            return
        deadline = time.monotonic() + DEADLINE_S
        before, looks = -1, 0
        while looks < QUIET_LOOKS:
            assert time.monotonic() < deadline, f"never quiet\n{self.read_log()}"
            now = self.node.asked.total() + self.second.asked.total()
            looks = looks + 1 if now == before and self._is_idle() else 0
            before = now
            time.sleep(QUIET_LOOK_S)
        self._take_rpc()

    def _is_idle(self) -> bool:
        """Whether nothing of this gateway runs or waits for a processor, its database, or a chain node."""
        return not (
            self.node.is_busy
            or self.second.is_busy
            or is_busy(self._process.pid)
            or self._rows.is_database_busy
        )

    def kill(self) -> None:
        self._process.kill()
        self._rows.close()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_DEADLINE_S)
        assert code == 0, f"exit code {code}\n{self.read_log()}"
        self._rows.close()

    def restart(self, *, after_s: float = 1, until: str | None = None, rows: int = 1) -> None:
        """Stops in order, and begins again so much later. `until`: what so many `rows` must tell before this returns."""
        self.stop()
        self.clock.advance(after_s)
        self.start()
        if until is not None:
            self.wait_row(until)
        self.note(f"the gateway is restarted, {after_s:g} s later")

    def revive(self, *, until: str | None = None, rows: int = 1) -> None:
        """After `kill`: a new process, once the lease of the dead one is over. On a database that gateways share it judges
        others only after it has renewed its own for as long: then it starts that much earlier."""
        step_s = adapter.LEASE_S * 0.45
        steps = 3 if self.is_postgres else 0
        self.clock.advance(1 + step_s * (3 - steps))
        self.start()
        for _ in range(steps):
            self.clock.advance(step_s)
            wait_for(lambda: self._rows.renewed_ms >= self.clock.now_ms, what="renewal")
        for at_ms in (self.clock.now_ms, self.clock.now_ms - int(step_s * 1000)):
            # Who looks for calls left behind may have read one clock before the last step, and the other one after it.
            self.recorder.learn_literal(str(at_ms), "<recovered>")
            self.recorder.learn_literal(format_time(at_ms), "<recovered>")
            self.recorder.learn_literal(
                format_time(at_ms + adapter.UNKNOWN_HOLD_MS), "<a day after recovered>"
            )
        if until is not None:
            self.wait_row(until, rows)
        self.note("a new process, once the lease of the dead one is over")

    def operate(self, *arguments: str) -> None:
        """A command of `tollway gateway`, with this gateway's settings."""
        code = self._fork("gateway", *arguments).wait()
        assert code == 0, f"{arguments}: exit code {code}\n{self.read_log()}"
        self.note("operator: tollway gateway " + " ".join(arguments))

    def set(self, name: str, value: str) -> None:
        """A setting, from the next start on."""
        self._env[name] = value

    def read_log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-1_000:]

    def close(self) -> None:
        """Everything that the stage started. What fails here hides no failure of a section."""
        with contextlib.suppress(Exception):
            self.upstream.release()
        if self._process.poll() is None:
            self.kill()
        self.node.close()
        self.second.close()
        self.upstream.close()
        self.clock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- Scenes.

    @contextlib.contextmanager
    def section(self, title: str) -> Iterator[None]:
        self.recorder.begin_scene(title)
        try:
            yield
        except BaseException as exc:
            exc.add_note(f"in the section: {title}\n{self.recorder.text[-1500:]}\n{self.read_log()}")
            raise

    def note(self, text: str) -> None:
        """A line about what happened beside the exchanges, with the rows that it changed."""
        self.recorder.note(text)
        self.recorder.note_rows(self._rows.take())

    def next_label(self) -> str:
        """Makes nonces differ, and the same in every run."""
        self._labels += 1
        return str(self._labels)

    # ---- Requests.

    def connect(self) -> Connection:
        return Connection(self._port)

    def ask(
        self,
        title: str,
        method: str,
        target: str,
        headers: Headers | None = None,
        body: bytes = b"",
        **options: Any,
    ) -> Answer:
        """One request and its answer, recorded."""
        return self.begin(title, method, target, headers, body).finish(**options)

    def begin(
        self, title: str, method: str, target: str, headers: Headers | None = None, body: bytes = b""
    ) -> Pending:
        self.clock.advance(TICK_MS / 1000)
        sent = list(headers or [])
        names = {name.lower() for name, _ in sent}
        if "host" not in names:
            sent.insert(0, ("Host", AUTHORITY))
        if body and not {"content-length", "transfer-encoding"} & names:
            sent.append(("Content-Length", str(len(body))))
        return Pending(self, title, (method, target, sent, body))

    def call(
        self, title: str, api_id: str, rest: str, headers: Headers | None = None, **options: Any
    ) -> Answer:
        method, body = options.pop("method", "GET"), options.pop("body", b"")
        return self.ask(title, method, f"{API}/gateway/{api_id}{rest}", headers, body, **options)

    def control(
        self,
        title: str,
        account: Account,
        method: str,
        path: str,
        content: Any = None,
        headers: Headers | None = None,
        **options: Any,
    ) -> Answer:
        """A request of the control plane, signed by a wallet."""
        body = (
            b""
            if content is None
            else content
            if isinstance(content, bytes)
            else json.dumps(content).encode()
        )
        more = [("Content-Type", options.pop("kind", "application/json"))] if body else []
        now_s, label = self.clock.now_s + 1, self.next_label()
        signed = sign_request(account, method, API + path, body, now_s=now_s, label=label)
        return self.ask(title, method, API + path, [*more, *signed, *(headers or [])], body, **options)

    def publish(self, account: Account, **fields: Any) -> str:
        """The id of a new listing at the upstream, 0.01 USDC a call unless said otherwise. Not recorded."""
        draft = {
            "name": "Quotes",
            "pricePerRequest": "0.01",
            "currency": "USDC",
            "endpoint": self.upstream.url,
            "networks": ["eip155:84532"],
            **fields,
        }
        answer = self.control("", account, "POST", "/apis", draft, is_recorded=False)
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    def record(
        self,
        title: str,
        request: tuple[str, str, Headers, bytes],
        answer: Answer | None,
        *,
        is_recorded: bool = True,
        counts_rpc: bool = True,
        with_upstream: bool = True,
        learns: str | None = None,
        delivers: bool = False,
        until: Callable[[], bool] | None = None,
    ) -> None:
        """Writes one exchange down, once its rows stand still. `until`: what else is waited for. `counts_rpc`,
        `with_upstream`: False where these depend on who is faster. `learns`: a member of the answer that is random.
        `delivers`: it gives out an answer that its call could not, and the call is told so a moment later."""
        if delivers:
            self.wait_row("delivery=-->complete")
        if until is not None:
            wait_for(until, what=title)
        if learns is not None and answer is not None and learns in answer.json:
            self.recorder.learn(learns, answer.json[learns])
        rows = self._settle_rows()
        arrived, rpc = self.upstream.take(), self._take_rpc()
        if is_recorded:
            shown = arrived if with_upstream else []
            self.recorder.add(
                title,
                request,
                answer,
                upstream=shown,
                rpc=rpc if counts_rpc and self._counts_rpc else None,
                rows=rows,
            )

    def record_lost(self, title: str, request: tuple[str, str, Headers, bytes]) -> None:
        """Of a gateway that was killed. Its rows are told by the next one's start."""
        self._take_rpc()
        self.recorder.add(title, request, LOST, upstream=self.upstream.take(), rpc=None, rows=[])

    def has_row(self, text: str, rows: int = 1) -> bool:
        """Whether so many rows with this text are new or have changed since the last exchange."""
        return sum(text in row for row in self._rows.peek()) >= rows

    def wait_row(self, text: str, rows: int = 1) -> None:
        wait_for(lambda: self.has_row(text, rows), what=f"a row with {text}")

    def _settle_rows(self) -> list[str]:
        """Once each call that this process closed within an exchange has its end. Of a call that an exchange left undecided
        the recovery or the operator writes the state later, and nothing more."""
        wait_for(lambda: self._rows.calls(adapter.UNFINISHED) <= self._left_open, what="the end of a call")
        self._left_open |= self._rows.calls(adapter.UNDECIDED)
        return self._rows.take()

    def _take_rpc(self) -> dict[str, int]:
        counts = dict(self.node.take_counts())
        for name, count in self.second.take_counts().items():
            counts[name + " (second)"] = count
        return counts


def format_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def wait_for(test: Callable[[], bool], *, what: str, pause_s: float = 0.005) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not test():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(pause_s)


__all__ = ["API", "SECOND_CHAIN", "SECOND_TOKEN", "Answer", "Harness", "checksum"]
