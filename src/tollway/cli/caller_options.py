"""What the commands of callers and providers have in common: their options, how they open a client, how they fail.

Keys come from a file or the environment and never from an argument, which every other user of the machine can read.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer

from tollway.cli.showing import print_failure, print_quote
from tollway.cli.told import read_nodes, read_wallet
from tollway.client import (
    AsyncTollwayClient,
    CallerFailure,
    KeyUnusable,
    Patience,
    StoreUnusable,
    TollwayClient,
)
from tollway.client.checkout import RailChoice
from tollway.client.desk import ClientOptions
from tollway.errors import StorageUnavailable

REFUSED, USAGE, LATER = 1, 2, 3

Gateway = Annotated[str, typer.Option("--gateway", envvar="TOLLWAY_GATEWAY", help="The gateway's URL.")]
AllowHttp = Annotated[
    bool,
    typer.Option(
        "--allow-http",
        envvar="TOLLWAY_ALLOW_HTTP",
        help="Reach the gateway and nodes without TLS, also beyond this machine.",
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
    typer.Option("--store", envvar="TOLLWAY_STORE", help="The file of payments made by this wallet."),
]
MaxPrice = Annotated[
    str | None,
    typer.Option(
        "--max-price",
        envvar="TOLLWAY_MAX_PRICE",
        help='The most it may cost: "0.05 USDC". Default: 1 dollar.',
    ),
]
MaxFee = Annotated[
    str | None,
    typer.Option(
        "--max-fee",
        envvar="TOLLWAY_MAX_FEE",
        help='The most that the network fee of one payment may be: "0.0001 ETH". Default: ten times the payment.',
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", envvar="TOLLWAY_BUDGET", help='The most this wallet may spend in all: "5 USDC".'
    ),
]
RailOption = Annotated[
    RailChoice,
    typer.Option(
        "--rail",
        envvar="TOLLWAY_RAIL",
        help="What pays when no credit is left: tx, a transaction; x402, an authorisation without gas.",
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
Wait = Annotated[float, typer.Option("--wait", min=1, help="Seconds to wait for the payment.")]
DEFAULT_GATEWAY = "http://127.0.0.1:8402"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSession:
    """What a command was told about the gateway and the wallet."""

    gateway: str
    allow_http: bool = False
    key_file: Path | None = None
    rpc: tuple[str, ...] = ()
    store: Path | None = None
    max_price: str | None = None
    max_fee: str | None = None
    budget: str | None = None
    session_budget: str | None = None
    wait_s: float = 180.0
    rail: RailChoice = "auto"
    chains: tuple[int, ...] = ()
    is_quiet: bool = True
    """Payments are not shown before they are signed."""

    def open(self, *, is_signing: bool) -> TollwayClient:
        """Raises `KeyUnusable` where a signature is needed and there is no key, and ValueError."""
        return TollwayClient(self.gateway, **self._options(is_signing=is_signing))

    def open_async(self, *, is_signing: bool) -> AsyncTollwayClient:
        """See `open`."""
        return AsyncTollwayClient(self.gateway, **self._options(is_signing=is_signing))

    def _options(self, *, is_signing: bool) -> ClientOptions:
        options: ClientOptions = {
            "wallet": read_wallet(self.key_file) if is_signing else None,
            "allow_http": self.allow_http,
            "rpc_urls": read_nodes(self.rpc, allow_http=self.allow_http),
            "store_path": self.store,
            "max_price": self.max_price,
            "max_fee": self.max_fee,
            "budget": self.budget,
            "session_budget": self.session_budget,
            "patience": Patience(wait_s=self.wait_s),
            "rail": self.rail,
            "chains": self.chains,
        }
        if not self.is_quiet:
            options["before_signing"] = print_quote
        return options


def split_nodes(text: str) -> tuple[str, ...]:
    """The nodes that `--rpc` names."""
    return tuple(node.strip() for node in text.split(",") if node.strip())


@contextlib.contextmanager
def explained_caller_failures(*, as_json: bool) -> Iterator[None]:
    """Failures become a sentence and an exit code."""
    try:
        yield
    except (CallerFailure, StorageUnavailable) as exc:
        print_failure(exc, as_json=as_json)
        is_later = exc.is_retryable if isinstance(exc, CallerFailure) else not isinstance(exc, StoreUnusable)
        raise typer.Exit(LATER if is_later else REFUSED) from exc
    except (KeyUnusable, ValueError, httpx.InvalidURL) as exc:
        print_failure(exc, as_json=as_json)
        raise typer.Exit(USAGE) from exc
