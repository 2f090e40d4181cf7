"""Runs the demo: starts a chain, a provider and a gateway on SQLite, prints the walk-through with a line for each step, and then keeps the sandbox running.

All parts listen on loopback, run in this process or in a process group of their own, use one temporary folder, and end within two seconds of Ctrl-C. The
demo must never use a chain that it did not start. The sandbox file and the last lines contain private keys: they are made for this run, on a
chain that ends with it.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import aiohttp
import httpx
import uvloop
from pydantic_core import from_json
from rich.console import Console
from rich.text import Text

from tollway.app.lifecycle import App
from tollway.cli.csv_output import write_private
from tollway.client.safe_text import plain
from tollway.config.settings import Settings
from tollway.errors import SettingsInvalid, TollwayError
from tollway.ids import TxHash, format_network
from tollway.observability.telemetry import configure_logging
from tollway.sandbox import completions
from tollway.sandbox.anvil_binary import AnvilUnavailable
from tollway.sandbox.chain import (
    ROLES,
    ChainDriver,
    Playground,
    RpcRefused,
    prepare_playground,
    run_anvil,
)
from tollway.sandbox.demo_wallet import SandboxSigner
from tollway.sandbox.provider import SampleProvider, run_provider
from tollway.sandbox.qr_codes import PATH, QR_DOCUMENT, respond_qr
from tollway.sandbox.tour import (
    PREPAID_CALLS,
    Tour,
    TourEvent,
    TourFailed,
    TourOutcome,
    TourPayment,
    TourResult,
    TourStep,
    describe_request,
)
from tollway.web.pages.demo_wallet import DemoWallet

VALUE_CHARACTERS_MAX = 84
BODY_CHARACTERS_MAX = 106
BODY_LINES_MAX = 80

_PRINTED_HEADERS = frozenset(
    {
        "content-type",
        "content-digest",
        "signature-input",
        "signature",
        "x-payment-tx",
        "x-payment-network",
        "x-signature",
        "x-signature-params",
        "location",
        "etag",
        "retry-after",
        "proxy-status",
        "payment-required",
        "payment-signature",
        "payment-response",
        "www-authenticate",
    }
)
"""Printed in addition to every header that starts with `Tollway-`."""


class TourPrinter:
    """Prints the events of the walk-through on one console: one line for each step, or everything that was sent and received."""

    def __init__(self, console: Console, *, is_verbose: bool = False) -> None:
        self._console = console
        self._is_verbose = is_verbose

    def print_event(self, event: TourEvent) -> None:
        match event:
            case TourOutcome():
                self._print_outcome(event)
            case _ if not self._is_verbose:
                pass
            case TourStep():
                self._print_step(event)
            case httpx.Response():
                self._print_exchange(event)
            case TourPayment():
                self._print_payment(event)
            case _:
                assert_never(event)

    def print_line(self, text: str = "", *, style: str = "") -> None:
        # Without markup and without wrapping: a copied command stays one line.
        self._console.print(Text(plain(text), style=style), soft_wrap=True, highlight=False)

    def _print_outcome(self, outcome: TourOutcome) -> None:
        if self._is_verbose:
            self.print_line()
        self.print_line(f"{outcome.number:>2} {outcome.label:<22} {outcome.text}", style="green")

    def _print_step(self, step: TourStep) -> None:
        self.print_line()
        self.print_line(f"{step.number}. {step.title}", style="bold cyan")
        self.print_line(f"   {step.why}", style="dim")

    def _print_exchange(self, response: httpx.Response) -> None:
        self.print_line()
        self.print_line(f"   > {describe_request(response.request)}", style="bold")
        self._print_headers(">", response.request.headers)
        self._print_body(">", response.request.content)
        style = "green" if response.is_success else "yellow"
        self.print_line(f"   < {response.status_code} {response.reason_phrase}", style=f"bold {style}")
        self._print_headers("<", response.headers)
        self._print_body("<", response.content)

    def _print_headers(self, arrow: str, headers: httpx.Headers) -> None:
        for name, value in headers.items():
            if name in _PRINTED_HEADERS or name.startswith("tollway-"):
                self.print_line(f"   {arrow} {_format_header_name(name)}: {shorten(value)}")

    def _print_body(self, arrow: str, body: bytes) -> None:
        if not body:
            return
        lines = _format_body(body)
        for text in lines[:BODY_LINES_MAX]:
            self.print_line(f"   {arrow}   {text}", style="dim")
        if len(lines) > BODY_LINES_MAX:
            self.print_line(f"   {arrow}   … {len(lines) - BODY_LINES_MAX} lines more", style="dim")

    def _print_payment(self, paid: TourPayment) -> None:
        self.print_line()
        for name, value in (
            ("transaction", str(paid.tx_hash)),
            ("block", str(paid.block)),
            ("from", f"{paid.sender} (the caller)"),
            ("to", f"{paid.to} (the provider)"),
            ("amount", paid.amount),
            ("token", paid.token),
        ):
            self.print_line(f"   {name:<12} {value}")


def shorten(text: str, characters_max: int = VALUE_CHARACTERS_MAX) -> str:
    """The text, cut to one line of a screen."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def _format_body(body: bytes) -> list[str]:
    try:
        document = from_json(body)
    except ValueError:
        return [f"{len(body)} bytes that are not JSON"]
    if isinstance(document, dict):  # a listing has many empty members
        document = {name: value for name, value in document.items() if value not in (None, [], {})}
        if isinstance(document.get("openapi"), dict):  # long, and also at `openapiUrl`
            document["openapi"] = "(left out here)"
    return [shorten(line, BODY_CHARACTERS_MAX) for line in format_json_lines(document)]


def format_json_lines(document: object, *, name: str = "", depth: int = 0, end: str = "") -> Iterator[str]:
    """JSON in lines: a value that fits stays on one line, a longer object or list gets one line for each member."""
    indent = "  " * depth
    head = f"{indent}{json.dumps(name)}: " if name else indent
    whole = head + json.dumps(document) + end
    if not isinstance(document, dict | list) or not document or (depth and len(whole) <= BODY_CHARACTERS_MAX):
        yield whole
        return
    is_object = isinstance(document, dict)
    yield head + ("{" if is_object else "[")
    members = list(document.items()) if isinstance(document, dict) else [("", entry) for entry in document]
    for position, (key, value) in enumerate(members):
        comma = "," if position < len(members) - 1 else ""
        yield from format_json_lines(value, name=str(key), depth=depth + 1, end=comma)
    yield indent + ("}" if is_object else "]") + end


def _format_header_name(name: str) -> str:
    special = {"etag": "ETag", "www-authenticate": "WWW-Authenticate"}
    if name.startswith("payment-"):  # x402 writes its headers so
        return name.upper()
    return special.get(name, "-".join(part.capitalize() for part in name.split("-")))


SANDBOX_ROLES = ("provider", "caller", "stranger")
"""The accounts whose keys are printed. The demo itself uses the others."""


def describe_sandbox(
    *, gateway_url: str, upstream_url: str, playground: Playground, api_id: str
) -> dict[str, Any]:
    """The content of the sandbox file. Its member names are public."""
    usdc = playground.usdc
    accounts = [playground.account(role) for role in SANDBOX_ROLES]
    return {
        "gatewayUrl": gateway_url,
        "rpcUrl": playground.rpc_url,
        "chainId": int(usdc.chain_id),
        "network": format_network(usdc.chain_id),
        "token": {"symbol": usdc.symbol, "address": str(playground.token.address), "decimals": usdc.decimals},
        "accounts": [
            {"role": account.role, "address": str(account.address), "privateKey": account.private_key}
            for account in accounts
        ],
        "upstreamUrl": upstream_url,
        "apiId": api_id,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoGuide:
    """What the demo prints about itself when it is ready. `key_file`: of the account `caller`; `payment`: a transfer that covers
    `PREPAID_CALLS` calls, with the plain `signature` over it."""

    gateway_url: str
    upstream_url: str
    playground: Playground
    api_id: str
    payment: TxHash
    signature: str
    key_file: Path
    demo_wallet: DemoWallet

    def format_link(self) -> str:
        """The page of the API, with the wallet of the demo. It opens the wallet once; each call makes the link before void."""
        return f"{self.gateway_url}/apis/{self.api_id}{self.demo_wallet.make_fragment()}"

    def format_lines(self, *, is_verbose: bool) -> Iterator[str]:
        """The addresses, and commands that run in any folder of any other terminal while the demo runs."""
        usdc, tollway = self.playground.usdc, find_program()
        yield "The demo keeps running. Ctrl-C stops everything that it started."
        yield ""
        yield f"   web page  {self.format_link()}"
        yield f'             Click "Pay 0.01 {usdc.symbol} and call": the demo\'s wallet pays, with test money, and the page shows a QR code. The link opens the wallet once.'
        yield f"   all APIs  {self.gateway_url}/"
        yield f"   contract  {self.gateway_url}/docs"
        yield f"   chain     {self.playground.rpc_url} (chain id {usdc.chain_id}), {usdc.symbol} {self.playground.token.address}"
        yield ""
        yield "Paste this into another terminal. It calls as another wallet, with Tollway's own client:"
        yield ""
        for line in self.format_commands():
            yield f"   {line}"
        yield ""
        yield f"Without the client (the transaction covers {PREPAID_CALLS} calls):"
        yield ""
        yield f"   {self._format_curl()}"
        yield ""
        yield "In the settings of a desktop agent, as the command of an MCP server, with a limit:"
        yield ""
        yield f'   env {self._format_variables()} {tollway} mcp --max-price "0.05 {usdc.symbol}" --budget "1 {usdc.symbol}"'
        if is_verbose:
            yield ""
            yield from self._format_accounts()

    def format_commands(self) -> tuple[str, ...]:
        """The commands of a first call, in their order. The first one sets the variables that the others read."""
        tollway = find_program()
        return (
            f"export {self._format_variables()}",
            f"{tollway} search quotes",
            f"{tollway} show {self.api_id}",
            f"{tollway} call {self.api_id} /quote/BTC",
            f"{tollway} history",
        )

    def _format_variables(self) -> str:
        variables = {
            "TOLLWAY_GATEWAY": self.gateway_url,
            "TOLLWAY_RPC": f"{self.playground.usdc.chain_id}={self.playground.rpc_url}",
            "TOLLWAY_KEY_FILE": str(self.key_file),
            "TOLLWAY_STORE": str(self.key_file.with_name("payments.sqlite3")),
        }
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())

    def _format_curl(self) -> str:
        proof = f"-H 'X-Payment-Tx: {self.payment}' -H 'X-Signature: {self.signature}'"
        return f"curl -i {proof} {self.gateway_url}/api/v2/gateway/{self.api_id}/quote/BTC"

    def _format_accounts(self) -> Iterator[str]:
        yield f"Accounts with 1,000 {self.playground.usdc.symbol} and 10 ETH each, which have no value outside of this chain:"
        yield ""
        for role in SANDBOX_ROLES:
            account = self.playground.account(role)
            yield f"   {role:<9} {account.address}  {account.private_key}"
        yield f"   {'API':<9} {self.upstream_url}, the provider's server behind the listing"


def find_program() -> str:
    """The command that runs this program from any folder, also where its virtual environment is not active."""
    script = Path(sys.executable).with_name("tollway")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -c 'from tollway.cli import main; main()'"
    found = shutil.which("tollway", path=os.defpath)
    return "tollway" if found and Path(found).samefile(script) else shlex.quote(str(script))


DONE, FAILED, INTERRUPTED = 0, 1, 130
PORT_DEFAULT = 8402
HOST = "127.0.0.1"
START_DEADLINE_S = 15.0
DRAIN_DEADLINE_S = 1.0
"""For requests that run when the demo ends; the whole demo must end within two seconds."""

UNLIMITED = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the command. `port` None: the default port if it is free, else any free one; 0: any free one."""

    is_once: bool
    port: int | None
    chain_port: int
    sandbox_file: Path | None
    is_verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoEnvironment:
    """The running parts of the demo."""

    gateway_url: str
    provider: SampleProvider
    driver: ChainDriver
    playground: Playground
    demo_wallet: DemoWallet
    http: httpx.AsyncClient
    claim: Callable[[], Awaitable[None]]
    folder: Path


class DemoFailed(Exception):
    """The demo cannot continue; its text is printed."""


def run_demo(options: DemoOptions) -> int:
    """Returns the exit code: 0 done or stopped while ready, 1 failed, 130 interrupted before it was ready."""
    configure_logging(level="error", style="auto")
    return uvloop.run(_run(options, TourPrinter(Console(file=sys.stdout), is_verbose=options.is_verbose)))


async def _run(options: DemoOptions, printer: TourPrinter) -> int:
    run = _DemoRun(options, printer)
    try:
        with _interruptible():
            await run.run()
    except asyncio.CancelledError:
        printer.print_line()
        printer.print_line("Stopped. Nothing is left running.")
        return DONE if run.is_ready else INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - every failure is printed, after everything is stopped
        printer.print_line()
        printer.print_line(f"The demo failed: {_explain(exc)}", style="bold red")
        printer.print_line(
            "Everything that it started is stopped. --verbose prints every request and response."
        )
        return FAILED
    return DONE


class _DemoRun:
    """One run of the demo, from the first process to its end."""

    def __init__(self, options: DemoOptions, printer: TourPrinter) -> None:
        self._options = options
        self._printer = printer
        self.is_ready = False

    async def run(self) -> None:
        path = self._options.sandbox_file
        if path is not None:
            _remove_old_file(path)  # a file of an earlier run has other keys and ports
        self._printer.print_line("Tollway demo: a chain, an API and a gateway on this machine.", style="bold")
        async with open_environment(self._options) as environment:
            if self._options.is_verbose:
                self._print_addresses(environment)
            self._printer.print_line()
            tour = Tour(
                gateway_url=environment.gateway_url,
                upstream_url=environment.provider.base_url,
                put_file=environment.provider.put_file,
                driver=environment.driver,
                playground=environment.playground,
                http=environment.http,
                report=self._printer.print_event,
                claim=environment.claim,
            )
            tour_result = await tour.run()
            if self._options.is_once:
                self._write_file(environment, tour_result)
                self.is_ready = True
                self._printer.print_line()
                self._printer.print_line(
                    "Done: thirteen paid calls, from the listing to the history. Without --once the demo keeps running for your own calls.",
                    style="bold green",
                )
                return
            await self._stay_up(environment, tour, tour_result)

    async def _stay_up(self, environment: DemoEnvironment, tour: Tour, tour_result: TourResult) -> None:
        payment, signature = await tour.prepay()
        key_file = environment.folder / "caller.key"
        _write_private(key_file, environment.playground.account("caller").private_key + "\n")
        written = self._write_file(environment, tour_result)
        self.is_ready = True
        guide = DemoGuide(
            gateway_url=environment.gateway_url,
            upstream_url=environment.provider.base_url,
            playground=environment.playground,
            api_id=tour_result.api_id,
            payment=payment,
            signature=signature,
            key_file=key_file,
            demo_wallet=environment.demo_wallet,
        )
        environment.demo_wallet.on_opened = lambda: self._printer.print_line(
            f"   A browser has opened the demo's wallet. For another one: {guide.format_link()}"
        )
        try:
            self._printer.print_line()
            for line in guide.format_lines(is_verbose=self._options.is_verbose):
                self._printer.print_line(line)
            await asyncio.Event().wait()  # until a signal cancels it
        finally:
            if written is not None:
                _remove_own_file(*written)

    def _print_addresses(self, environment: DemoEnvironment) -> None:
        driver = environment.driver
        self._printer.print_line(f"   chain     {driver.rpc_url} (anvil, chain id {driver.chain_id})")
        self._printer.print_line(f"   API       {environment.provider.base_url}")
        self._printer.print_line(f"   gateway   {environment.gateway_url}")

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


# ---- The parts.


@contextlib.asynccontextmanager
async def open_environment(options: DemoOptions) -> AsyncIterator[DemoEnvironment]:
    port = choose_port(options.port)
    with tempfile.TemporaryDirectory(prefix="tollway-demo-", ignore_cleanup_errors=True) as name:
        async with (
            run_anvil(port=options.chain_port) as anvil,
            run_provider(
                document=QR_DOCUMENT,
                products={PATH: respond_qr},
                services={completions.PATH: completions.respond_completion},
            ) as provider,
            aiohttp.ClientSession() as session,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
            playground = await prepare_playground(driver, roles=(*ROLES, "visitor", "browser"))
            gas_key = playground.account("gas").private_key
            settings = make_settings(Path(name), port=port, rpc_url=anvil.rpc_url, gas_key=gas_key)
            signer = SandboxSigner(driver, playground, playground.account("browser"))
            demo_wallet = DemoWallet(signer, entropy=secrets.token_bytes)
            async with App(settings, demo_wallet=demo_wallet) as app, _serving(app):
                yield DemoEnvironment(
                    gateway_url=settings.public_url,
                    provider=provider,
                    driver=driver,
                    playground=playground,
                    demo_wallet=demo_wallet,
                    http=http,
                    claim=partial(_claim, app),
                    folder=Path(name),
                )


async def _claim(app: App) -> None:
    """Claims the channels now: the next round may be a minute away."""
    channels = app.settlement_services.channels
    assert channels is not None, "the demo has channels"
    await channels.claim()


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
    """The settings of the demo's gateway: SQLite in `folder`, the test chain, private endpoints, open registration without limits, every
    rail. `gas_key`: in hex, of a funded account that nothing else uses."""
    network = {
        "preset": "sandbox",
        "rpc_urls": [rpc_url],
        "wallet_rpc_url": rpc_url,
        "confirmations": 1,
        "gas_keys": [gas_key],
    }
    return Settings.model_validate(
        {
            "public_url": f"http://{HOST}:{port}",
            "listen": f"{HOST}:{port}",
            "admin_listen": "off",
            "database_url": f"sqlite:///{folder / 'tollway.sqlite3'}",
            "secret_key": secrets.token_hex(32),
            "networks": [network],
            "allow_private_endpoints": True,
            "limits": {
                "registrations_per_hour": UNLIMITED,
                "edits_per_hour": UNLIMITED,
                "signed_requests_per_minute": UNLIMITED,
                "authenticated_requests_per_minute": UNLIMITED,
                "drain_deadline_s": DRAIN_DEADLINE_S,
            },
            "channels": True,
            "log_level": "error",
        }
    )


def choose_port(wanted: int | None) -> int:
    """Chooses the gateway's port. Raises `DemoFailed` when the wanted port is in use."""
    if wanted is not None:
        return _check_port(wanted)
    try:
        return _check_port(PORT_DEFAULT)
    except DemoFailed:
        return _check_port(0)


def _check_port(port: int) -> int:
    """The port, or a free one for 0. The number is needed before the gateway listens: it is part of the public URL."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            raise DemoFailed(
                f"port {port} cannot be used ({exc.strerror}); choose another with --port"
            ) from exc
        return int(probe.getsockname()[1])


# ---- Signals and failures.


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP cancels the body; later ones do not interrupt the cleanup."""
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
    """A sentence about the first cause."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    match failure:
        case SettingsInvalid(problems=problems):
            return "; ".join(problems)
        case TimeoutError():
            return str(failure) or "a part of the demo did not respond in time"
        case DemoFailed() | TourFailed() | AnvilUnavailable() | RpcRefused() | TollwayError() | OSError():
            return str(failure)
        case _:
            return f"{type(failure).__name__}: {failure}"


# ---- Files.


def _remove_old_file(path: Path) -> None:
    """Removes a file of an earlier run. Raises `DemoFailed` where it cannot be removed or has no folder."""
    if not path.parent.is_dir():
        raise DemoFailed(f"--sandbox-file: there is no folder {path.parent}")
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise DemoFailed(f"--sandbox-file: {path} cannot be replaced ({exc.strerror})") from exc


def _write_private(path: Path, text: str) -> None:
    """Writes the file atomically, readable by its owner alone. Raises `DemoFailed`."""
    try:
        write_private([text.encode()], path)
    except OSError as exc:
        raise DemoFailed(f"{path} cannot be written ({exc.strerror})") from exc


def _remove_own_file(path: Path, text: str) -> None:
    """Removes the file unless another demo has replaced it."""
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            path.unlink()
