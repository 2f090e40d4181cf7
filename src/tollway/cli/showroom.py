"""Runs the demo: a chain, a provider, a gateway on SQLite, the walk-through, and the sandbox that stays up for play.

Everything it starts listens on loopback, lives in its own process or process group and in one temporary folder, and
is gone within two seconds of Ctrl-C. It must never be pointed at a chain that it did not start.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import httpx
import uvloop
from rich.console import Console

from tollway.app.lifecycle import App
from tollway.cli.invitation import describe_sandbox, print_sandbox
from tollway.cli.narrator import TourPrinter
from tollway.config.networks import parse_network
from tollway.config.settings import Listen, Secret, Settings
from tollway.errors import SettingsInvalid, TollwayError
from tollway.limits import DEFAULT_LIMITS
from tollway.sandbox.anvil import AnvilUnavailable, run_anvil
from tollway.sandbox.chain_driver import ChainDriver, RpcRefused
from tollway.sandbox.playground import ROLES, Playground, prepare_playground
from tollway.sandbox.provider import SampleProvider, run_provider
from tollway.sandbox.tour import Tour, TourFailed, TourResult
from tollway.telemetry import configure_logging

DONE, FAILED, INTERRUPTED = 0, 1, 130
PORT_DEFAULT = 8402
HOST = "127.0.0.1"
START_DEADLINE_S = 15.0
DRAIN_DEADLINE_S = 1.0
"""Whatever runs when the demo ends gets this long; two seconds are promised for everything."""

UNLIMITED = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the person asked for. `port` None: the default one where it is free, else any. 0: any free one."""

    is_once: bool
    port: int | None
    chain_port: int
    sandbox_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoEnvironment:
    """What runs, once all of it does."""

    gateway_url: str
    provider: SampleProvider
    driver: ChainDriver
    playground: Playground
    http: httpx.AsyncClient
    folder: Path


class DemoFailed(Exception):
    """The demo cannot go on; says why."""


def run_demo(options: DemoOptions) -> int:
    """The exit code: 0 done or stopped while it stood ready, 1 failed, 130 interrupted before it was ready."""
    configure_logging(level="error", style="auto")
    return uvloop.run(_run(options, TourPrinter(Console(file=sys.stdout))))


async def _run(options: DemoOptions, printer: TourPrinter) -> int:
    run = _DemoRun(options, printer)
    try:
        with _interruptible():
            await run.run()
    except asyncio.CancelledError:
        printer.print_line()
        printer.print_line("Stopped. Nothing is left running.")
        return DONE if run.is_ready else INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - the door: whatever went wrong is told, and all is stopped
        printer.print_line()
        printer.print_line(f"The demo failed: {_explain(exc)}", style="bold red")
        printer.print_line("Everything it started has been stopped.")
        return FAILED
    return DONE


class _DemoRun:
    """One run of the demo, from the first process to the last word."""

    def __init__(self, options: DemoOptions, printer: TourPrinter) -> None:
        self._options = options
        self._printer = printer
        self.is_ready = False

    async def run(self) -> None:
        path = self._options.sandbox_file
        if path is not None:
            _remove_old_file(path)  # a file of an earlier run must not be taken for this one's
        self._printer.print_line("Tollway demo: a chain, an API and a gateway on this machine.", style="bold")
        async with _open_environment(self._options) as environment:
            self._printer.print_line(
                f"   chain     {environment.driver.rpc_url} (anvil, chain id {environment.driver.chain_id})"
            )
            self._printer.print_line(f"   API       {environment.provider.base_url}")
            self._printer.print_line(f"   gateway   {environment.gateway_url}")
            tour = Tour(
                gateway_url=environment.gateway_url,
                upstream_url=environment.provider.base_url,
                put_file=environment.provider.put_file,
                driver=environment.driver,
                playground=environment.playground,
                http=environment.http,
                report=self._printer.print_event,
            )
            tour_result = await tour.run()
            if self._options.is_once:
                self._write_file(environment, tour_result)
                self.is_ready = True
                self._printer.print_line()
                self._printer.print_line(
                    "Done: two paid calls, from the listing to the history.", style="bold green"
                )
                return
            await self._stay_up(environment, tour, tour_result)

    async def _stay_up(self, environment: DemoEnvironment, tour: Tour, tour_result: TourResult) -> None:
        payment, signature = await tour.prepay()
        key_file = environment.folder / "caller.key"
        _write_private(key_file, environment.playground.account("caller").private_key + "\n")
        written = self._write_file(environment, tour_result)
        self.is_ready = True
        try:
            print_sandbox(
                self._printer.print_line,
                gateway_url=environment.gateway_url,
                upstream_url=environment.provider.base_url,
                playground=environment.playground,
                api_id=tour_result.api_id,
                payment=payment,
                signature=signature,
                key_file=key_file,
            )
            await asyncio.Event().wait()  # until somebody stops us
        finally:
            if written is not None:
                _remove_own_file(*written)

    def _write_file(self, environment: DemoEnvironment, tour_result: TourResult) -> tuple[Path, str] | None:
        path = self._options.sandbox_file
        if path is None:
            return None
        document = describe_sandbox(
            gateway_url=environment.gateway_url,
            upstream_url=environment.provider.base_url,
            playground=environment.playground,
            api_id=tour_result.api_id,
        )
        text = json.dumps(document, indent=2) + "\n"
        _write_private(path, text)
        return path, text


# ---- The stage.


@contextlib.asynccontextmanager
async def _open_environment(options: DemoOptions) -> AsyncIterator[DemoEnvironment]:
    port = choose_port(options.port)
    with tempfile.TemporaryDirectory(prefix="tollway-demo-", ignore_cleanup_errors=True) as name:
        async with (
            run_anvil(port=options.chain_port) as anvil,
            run_provider() as provider,
            aiohttp.ClientSession() as session,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
            playground = await prepare_playground(driver, roles=(*ROLES, "visitor"))
            gas_key = playground.account("gas").private_key
            settings = make_settings(Path(name), port=port, rpc_url=anvil.rpc_url, gas_key=gas_key)
            async with App(settings) as app, _serving(app):
                yield DemoEnvironment(
                    gateway_url=settings.public_url,
                    provider=provider,
                    driver=driver,
                    playground=playground,
                    http=http,
                    folder=Path(name),
                )


@contextlib.asynccontextmanager
async def _serving(app: App) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(app.serve())
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await app.server.wait_up()
            yield
        finally:
            app.stop()
            await asyncio.wait([serving], timeout=DRAIN_DEADLINE_S)
            serving.cancel()


def make_settings(folder: Path, *, port: int, rpc_url: str, gas_key: str) -> Settings:
    """A gateway for play: SQLite in `folder`, the test chain, private endpoints, registration open and unlimited, every
    rail on. `gas_key`: of a funded account that is nobody else's, in hex."""
    network = {"preset": "local", "rpc_urls": [rpc_url], "confirmations": 1, "gas_keys": [gas_key]}
    return Settings(
        public_url=f"http://{HOST}:{port}",
        listen=Listen(host=HOST, port=port),
        admin_listen=None,
        database_url=Secret(f"sqlite:///{folder / 'tollway.sqlite3'}"),
        secret_key=Secret(secrets.token_bytes(32)),
        secret_key_file=None,
        networks=(parse_network(network),),
        allow_private_endpoints=True,
        registration="open",
        limits=replace(
            DEFAULT_LIMITS,
            registrations_per_hour=UNLIMITED,
            edits_per_hour=UNLIMITED,
            signed_requests_per_minute=UNLIMITED,
            drain_deadline_s=DRAIN_DEADLINE_S,
        ),
        log_level="error",
    )


def choose_port(wanted: int | None) -> int:
    """The gateway's port. Raises `DemoFailed` when a port that was asked for is taken."""
    if wanted is not None:
        return _check_port(wanted)
    try:
        return _check_port(PORT_DEFAULT)
    except DemoFailed:
        return _check_port(0)


def _check_port(port: int) -> int:
    """The port itself, or a free one for 0. Its name is needed before anything listens: it is part of the public URL."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            raise DemoFailed(
                f"port {port} cannot be used ({exc.strerror}); choose another with --port"
            ) from exc
        return int(probe.getsockname()[1])


# ---- Being stopped.


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP cancels what runs inside; later ones do not disturb the cleaning up."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            task.cancel()

    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for name in names:
        loop.add_signal_handler(name, stop)
    try:
        yield
    finally:
        if is_stopping:
            task.uncancel()


def _explain(failure: BaseException) -> str:
    """The first cause, in words."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    match failure:
        case SettingsInvalid(problems=problems):
            return "; ".join(problems)
        case TimeoutError():
            return str(failure) or "something did not answer in time"
        case DemoFailed() | TourFailed() | AnvilUnavailable() | RpcRefused() | TollwayError() | OSError():
            return str(failure)
        case _:
            return f"{type(failure).__name__}: {failure}"


# ---- Files.


def _remove_old_file(path: Path) -> None:
    """Nothing may stand at `path` but an old file, and its folder must be there. Raises `DemoFailed`."""
    if not path.parent.is_dir():
        raise DemoFailed(f"--sandbox-file: there is no folder {path.parent}")
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise DemoFailed(f"--sandbox-file: {path} cannot be replaced ({exc.strerror})") from exc


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and for its owner alone. Raises `DemoFailed`."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise DemoFailed(f"{path} cannot be written ({exc.strerror})") from exc


def _remove_own_file(path: Path, text: str) -> None:
    """Only what we wrote: another demo may have put its own there."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            path.unlink()
