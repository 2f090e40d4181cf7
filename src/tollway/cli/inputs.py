"""The inputs of the callers' and providers' commands: options, and the keys, nodes, drafts, bodies and headers that options name; and how a
command opens a client and reports a failure.

A key comes from a file or the environment, never from an argument, which every user of the machine can read. An input that cannot be read raises
ValueError with a sentence.
"""

import contextlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import typer
from pydantic_core import from_json, to_json

from tollway.cli.output import is_for_people, print_failure, print_json, print_members
from tollway.client import (
    AsyncTollwayClient,
    CallerFailure,
    KeyUnusable,
    Patience,
    PaymentProgress,
    PaymentQuote,
    StoreUnusable,
    TollwayClient,
    Wallet,
)
from tollway.client.call_io import ControlRequest, NodeOutcome, NodeResult, NodeUnavailable
from tollway.client.deadline import fetch_bounded
from tollway.client.driver import check_tls
from tollway.client.errors import GatewayUnreachable, IssuersUnusable, NodeUnreachable
from tollway.client.exchange import run_blocking
from tollway.client.finality import parse_quantity
from tollway.client.requests import GatewayDocument
from tollway.client.responses import describe_host, describe_node_failure, read_node_response
from tollway.client.transfer import RailChoice
from tollway.errors import StorageUnavailable
from tollway.ids import ChainId

NODE_DEADLINE_S = 10.0
NODE_BYTES_MAX = 64 * 1024
_CHECK_NODE = "Check the URL of your chain node (--rpc, TOLLWAY_RPC), or try again later."
DRAFT_BYTES_MAX = 2 * 1024 * 1024


def has_key(key_file: Path | None) -> bool:
    return key_file is not None or bool(os.environ.get("TOLLWAY_PRIVATE_KEY"))


def read_wallet(key_file: Path | None) -> Wallet:
    if key_file is not None:
        return Wallet.from_file(key_file, password=os.environ.get("TOLLWAY_KEY_PASSWORD"))
    return Wallet.from_environment(os.environ)


def read_nodes(given: tuple[str, ...], *, allow_http: bool = False) -> dict[int, str]:
    """The URL of each chain: from `CHAINID=URL`, or from a URL alone, whose node returns its chain id. Raises `NodeUnreachable` for a node that does not
    answer, and ValueError for a URL that names no node."""
    nodes: dict[int, str] = {}
    for entry in given:
        number, separator, url = entry.partition("=")
        if separator and number.isascii() and number.isdigit():
            nodes[int(number)] = url
        else:
            check_tls(entry, allow_http=allow_http)
            nodes[_fetch_chain_id(entry)] = entry
    return nodes


def _fetch_chain_id(url: str) -> int:
    try:
        is_node = httpx.URL(url).scheme in ("http", "https")
    except httpx.InvalidURL:
        is_node = False
    if not is_node:
        raise ValueError("--rpc (TOLLWAY_RPC) takes URLs with http:// or https://, or CHAINID=URL")
    outcome = run_blocking(OneNode(url).query_node(ChainId(0), "eth_chainId"))
    number = parse_quantity(outcome.result) if isinstance(outcome, NodeResult) else None
    if number is None:
        detail = (
            outcome.detail if isinstance(outcome, NodeUnavailable) else f"{describe_host(url)} names no chain"
        )
        raise NodeUnreachable(f"{detail}. {_CHECK_NODE}")
    return number


@dataclass(frozen=True, slots=True)
class OneNode:
    """A `NodeIo` of one node."""

    url: str

    async def query_node(self, chain_id: ChainId, method: str, *params: object) -> NodeOutcome:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            status, content = fetch_bounded(
                "POST",
                self.url,
                deadline_s=NODE_DEADLINE_S,
                bytes_max=NODE_BYTES_MAX,
                content=to_json(request),
            )
        except IssuersUnusable:
            raise
        except (OSError, httpx.HTTPError, ValueError) as exc:
            return describe_node_failure(self.url, exc)
        return read_node_response(self.url, status, content)


def read_draft(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    raw = read_file(file, DRAFT_BYTES_MAX)
    try:
        draft = tomllib.loads(raw.decode()) if file.suffix == ".toml" else from_json(raw)
    except ValueError as exc:
        raise ValueError(f"{file} is neither JSON nor TOML: {exc}") from exc
    if isinstance(draft, dict):
        return draft
    raise ValueError(f"{file} must contain one object: the members of a listing")


def read_content(given: str | None) -> bytes | None:
    if given is None or not given.startswith("@"):
        return None if given is None else given.encode()
    if given == "@-":
        return sys.stdin.buffer.read()
    return read_file(given[1:])


def read_file(file: Path | str, bytes_max: int = -1) -> bytes:
    """The first `bytes_max` bytes of a file; -1: all. Raises ValueError."""
    try:
        with open(file, "rb") as opened:
            return opened.read(bytes_max)
    except OSError as exc:
        raise ValueError(f"{file} cannot be read: {exc.strerror}") from exc


def read_headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in given:
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise ValueError("write a header as Name: value")
        headers[name.strip()] = value.strip()
    return headers


def read_moment(text: str | None, *, is_end: bool = False) -> datetime | None:
    """A moment of an option: RFC 3339 with a time zone, or a day, which means its beginning in UTC. `is_end`: the last millisecond before a day, so
    that two months that meet share no call."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text} is no time: write a day such as 2026-11-30, or 2026-11-30T09:00:00Z"
        ) from None
    if len(text) == len("2026-11-30"):
        moment = moment.replace(tzinfo=UTC)
        return moment - timedelta(milliseconds=1) if is_end else moment
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone: add Z for UTC, or an offset such as +02:00")
    return moment


REFUSED, USAGE, LATER = 1, 2, 3

Gateway = Annotated[str, typer.Option("--gateway", envvar="TOLLWAY_GATEWAY", help="The gateway's URL.")]
AllowHttp = Annotated[
    bool,
    typer.Option(
        "--allow-http",
        envvar="TOLLWAY_ALLOW_HTTP",
        help="Allow connections without TLS to other machines.",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file", envvar="TOLLWAY_KEY_FILE", help="The wallet's key (else TOLLWAY_PRIVATE_KEY)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, also on a terminal.")]
StoreFile = Annotated[
    Path | None,
    typer.Option("--store", envvar="TOLLWAY_STORE", help="The file with the payments of this wallet."),
]
MaxPrice = Annotated[
    str | None,
    typer.Option(
        "--max-price",
        envvar="TOLLWAY_MAX_PRICE",
        help='The highest price of a call: "0.05 USDC". Default: 1 dollar.',
    ),
]
MaxFee = Annotated[
    str | None,
    typer.Option(
        "--max-fee",
        envvar="TOLLWAY_MAX_FEE",
        help='The highest network fee of one payment: "0.0001 ETH". Default: ten times the payment.',
    ),
]
MaxDeposit = Annotated[
    str | None,
    typer.Option(
        "--max-deposit",
        envvar="TOLLWAY_MAX_DEPOSIT",
        help='The highest deposit into a payment channel: "0.5 USDC". Default: 1 dollar.',
    ),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", envvar="TOLLWAY_BUDGET", help='The total that this wallet may spend: "5 USDC".'),
]
RailOption = Annotated[
    RailChoice,
    typer.Option(
        "--rail",
        envvar="TOLLWAY_RAIL",
        help="How to pay without credit: tx, by a transaction; x402, by an authorisation, without gas; channel, by a deposit for many calls.",
    ),
]
Chains = Annotated[
    list[int] | None,
    typer.Option("--chain", help="Pay by authorisations on this chain, without a node. Repeatable."),
]
Rpc = Annotated[
    str,
    typer.Option(
        "--rpc", envvar="TOLLWAY_RPC", help="Chain nodes: URL, or CHAINID=URL; several with commas."
    ),
]
Since = Annotated[
    str | None, typer.Option("--since", help="From this time on: 2026-11-01 (UTC) or 2026-11-01T08:00:00Z.")
]
Until = Annotated[
    str | None,
    typer.Option("--until", help="Up to this time: --until 2026-12-01 is up to the end of November."),
]
BooksOf = Annotated[
    str | None,
    typer.Option("--wallet", help="The books of this wallet, which has named yours as its viewer."),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Every row as a CSV file, all pages.")]
CsvFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="With --csv: the file, which appears when it is complete."),
]
Wait = Annotated[float, typer.Option("--wait", min=1, help="Seconds to wait for the payment.")]
AnyClient = TypeVar("AnyClient", TollwayClient, AsyncTollwayClient)
DEFAULT_GATEWAY = "http://127.0.0.1:8402"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSession:
    """The options of a command about the gateway and the wallet."""

    gateway: str
    allow_http: bool = False
    key_file: Path | None = None
    rpc: tuple[str, ...] = ()
    store: Path | None = None
    max_price: str | None = None
    max_fee: str | None = None
    max_deposit: str | None = None
    budget: str | None = None
    session_budget: str | None = None
    wait_s: float = 180.0
    rail: RailChoice = "auto"
    chains: tuple[int, ...] = ()
    before_signing: Callable[[PaymentQuote], None] | None = None
    on_progress: Callable[[PaymentProgress], None] | None = None

    def open(self, *, is_signing: bool) -> TollwayClient:
        """Opens a client. Raises `KeyUnusable` when `is_signing` and there is no key, and ValueError for an invalid option."""
        return self._open(TollwayClient, is_signing=is_signing)

    def open_async(self, *, is_signing: bool) -> AsyncTollwayClient:
        """See `open`."""
        return self._open(AsyncTollwayClient, is_signing=is_signing)

    def _open(self, kind: type[AnyClient], *, is_signing: bool) -> AnyClient:
        return kind(
            self.gateway,
            wallet=read_wallet(self.key_file) if is_signing else None,
            allow_http=self.allow_http,
            rpc_urls=read_nodes(self.rpc, allow_http=self.allow_http),
            store_path=self.store,
            max_price=self.max_price,
            max_fee=self.max_fee,
            max_deposit=self.max_deposit,
            budget=self.budget,
            session_budget=self.session_budget,
            patience=Patience(wait_s=self.wait_s),
            rail=self.rail,
            chains=self.chains,
            before_signing=self.before_signing,
            on_progress=self.on_progress,
        )


def read_session(ctx: typer.Context, **more: Any) -> CallerSession:
    """The session of a command that pays, by its own options and `more`."""
    names = [one.name for one in fields(CallerSession) if one.name in ctx.params]
    given = {name: ctx.params[name] for name in names}
    chains = tuple(ctx.params["chain"] or ())
    return CallerSession(**{**given, "rpc": split_nodes(given["rpc"]), "chains": chains, **more})


def split_nodes(text: str) -> tuple[str, ...]:
    """The nodes of `--rpc`."""
    return tuple(node.strip() for node in text.split(",") if node.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The shared options of a command: its session with the gateway, and the form of its output. `sent`: the body of a request, which the command fills, for
    the values of refused members."""

    session: CallerSession
    as_json: bool
    sent: dict[str, Any] = field(default_factory=dict)

    @property
    def is_for_people(self) -> bool:
        return is_for_people(as_json=self.as_json)

    def open(self, *, is_signing: bool = True, **more: Any) -> TollwayClient:
        """See `CallerSession.open`. `more`: further options of the session, such as `store`."""
        return replace(self.session, **more).open(is_signing=is_signing)

    def fetch(self, request: ControlRequest, *, is_signing: bool = True) -> GatewayDocument:
        """The response to one request."""
        with self.open(is_signing=is_signing) as client:
            return client.fetch_document(request)

    def print(self, found: Mapping[str, Any], on_terminal: Callable[[Any], None] = print_members) -> None:
        """Prints a document: by `on_terminal` for people, as JSON otherwise."""
        (on_terminal if self.is_for_people else print_json)(found)


_SHARED: tuple[tuple[str, Any, object], ...] = (
    ("gateway", Gateway, DEFAULT_GATEWAY),
    ("allow_http", AllowHttp, False),
    ("key_file", KeyFile, None),
    ("as_json", AsJson, False),
)
"""Name, type and default of the options that most commands of callers and providers have."""


def caller_command(*, has_key: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function of a `Caller`: it gets the shared options after its own, before those that are keyword-only, and explains failures.
    `has_key` False: without `--key-file`, for what needs no wallet."""
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in _SHARED
        if has_key or name != "key_file"
    ]

    def make(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            as_json, session = given.pop("as_json"), {one.name: given.pop(one.name) for one in shared[:-1]}
            caller = Caller(session=CallerSession(**session), as_json=as_json)
            with explained_caller_failures(as_json=as_json, sent=caller.sent):
                function(caller, **given)

        _, *own = inspect.signature(function).parameters.values()
        first = [one for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        last = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        command.__signature__ = inspect.Signature([*first, *shared[:-1], *last, shared[-1]])  # type: ignore[attr-defined]  # typer reads it
        return command

    return make


@contextlib.contextmanager
def explained_caller_failures(*, as_json: bool, sent: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Prints a failure as a sentence or as JSON, and sets the exit code. `sent`: the body of the request, which the command may fill later."""
    try:
        yield
    except (CallerFailure, StorageUnavailable) as exc:
        print_failure(exc, as_json=as_json, sent=sent)
        raise typer.Exit(LATER if _is_open(exc) else REFUSED) from exc
    except (KeyUnusable, ValueError, httpx.InvalidURL) as exc:
        print_failure(exc, as_json=as_json)
        raise typer.Exit(USAGE) from exc


def _is_open(failure: CallerFailure | StorageUnavailable) -> bool:
    """Whether the command can succeed later, or the outcome of its request is unknown."""
    if isinstance(failure, StorageUnavailable):
        return not isinstance(failure, StoreUnusable)
    return failure.is_retryable or (isinstance(failure, GatewayUnreachable) and failure.is_sent)
