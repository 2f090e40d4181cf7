"""`tollway mcp`: an MCP server for an agent on this machine, with a wallet and spending limits that its owner sets.

A wallet needs a total limit (`--budget`), because an agent runs for months without supervision. Stdout has MCP messages alone; one line on stderr
states the limits.
"""

import asyncio
import logging
import os
import signal
from typing import Annotated

import typer

from tollway.cli.inputs import (
    DEFAULT_GATEWAY,
    AllowHttp,
    Budget,
    Chains,
    Gateway,
    KeyFile,
    MaxDeposit,
    MaxFee,
    MaxPrice,
    RailOption,
    Rpc,
    StoreFile,
    explained_caller_failures,
    has_key,
    read_session,
)
from tollway.cli.output import print_text
from tollway.client import AsyncTollwayClient
from tollway.client.safe_text import plain

INTERRUPTED = 130
WAIT_S = 45.0
"""The time to wait for a payment. Many MCP clients stop waiting for a tool after a minute; before that, the tool asks for a repeat."""

SessionBudget = Annotated[
    str | None,
    typer.Option(
        "--session-budget",
        envvar="TOLLWAY_SESSION_BUDGET",
        help='The most that may be signed until this process ends: "1 USDC".',
    ),
]


def serve_mcp(
    ctx: typer.Context,
    max_price: MaxPrice = None,
    max_fee: MaxFee = None,
    max_deposit: MaxDeposit = None,
    session_budget: SessionBudget = None,
    budget: Budget = None,
    rail: RailOption = "auto",
    rpc: Rpc = "",
    chain: Chains = None,
    store: StoreFile = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
) -> None:
    with explained_caller_failures(as_json=False):
        is_signing = has_key(key_file)
        if is_signing and budget is None:
            raise ValueError(
                "an agent gets no wallet without a limit: set the total that it may spend with --budget or "
                'TOLLWAY_BUDGET, such as "5 USDC"; --max-price and --session-budget limit a call and a session'
            )
        client = read_session(ctx, wait_s=WAIT_S).open_async(is_signing=is_signing)
        print_text(f"tollway mcp: {_describe_limits(client)}", is_error=True)
        _log_plain()
        # A read of stdin cannot be cancelled, so a normal exit would wait for the next line. Payments are on disk already.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        asyncio.run(_serve(client))


class _PlainFormatter(logging.Formatter):
    """Removes control characters: a traceback may quote a gateway."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def _log_plain() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)


async def _serve(client: AsyncTollwayClient) -> None:
    from tollway.cli.mcp_stdio import serve_stdio  # loads the MCP SDK, which no other command uses

    async with client:
        await serve_stdio(client)


def _describe_limits(client: AsyncTollwayClient) -> str:
    """The gateway, the wallet and its limits in one line, for the log of the MCP client."""
    if client.address is None:
        return f"gateway {client.gateway}, no wallet: only free operations can be called"
    allowance = client.allowance
    limits = [f"at most {allowance.max_price.describe()} a call"]
    limits += [f"{allowance.max_fee.describe()} for a network fee"] if allowance.max_fee else []
    limits += [f"{allowance.session_budget.describe()} a session"] if allowance.session_budget else []
    limits += [f"{allowance.budget.describe()} in all"] if allowance.budget else []
    return f"gateway {client.gateway}, wallet {client.address}, {', '.join(limits)}"
