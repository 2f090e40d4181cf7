"""What the demo says about its sandbox: to programs as a JSON document, to people as lines they can copy.

It shows private keys, which is right only here: they were made for this run, on a chain that ends with it.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tollway.ids import TxHash, format_network
from tollway.sandbox.playground import Playground
from tollway.sandbox.tour import PREPAID_CALLS

SANDBOX_ROLES = ("provider", "caller", "stranger")
"""The accounts that are given away. The others belong to the demo itself."""


def describe_sandbox(
    *, gateway_url: str, upstream_url: str, playground: Playground, api_id: str
) -> dict[str, Any]:
    """The sandbox file. Its names are public."""
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


def print_sandbox(
    print_line: Callable[[str], None],
    *,
    gateway_url: str,
    upstream_url: str,
    playground: Playground,
    api_id: str,
    payment: TxHash,
    signature: str,
    key_file: Path,
) -> None:
    """The last words before the sandbox is left to the person."""
    usdc = playground.usdc
    print_line("")
    print_line("All of it stays up for you to play with. Ctrl-C stops everything.")
    print_line("")
    print_line(f"   gateway   {gateway_url}/api/v2")
    print_line(f"   listing   {api_id}")
    print_line(f"   chain     {playground.rpc_url} (chain id {usdc.chain_id})")
    print_line(f"   token     {playground.token.address} ({usdc.symbol}, {usdc.decimals} decimals)")
    print_line(f"   API       {upstream_url}, the provider's own server behind the listing")
    print_line("")
    print_line(f"   Accounts, with 1,000 {usdc.symbol} and 10 ETH each, worth nothing outside of this chain:")
    for role in SANDBOX_ROLES:
        account = playground.account(role)
        print_line(f"   {role:<9} {account.address}  {account.private_key}")
    print_line("")
    print_line("   What is for sale:")
    print_line(f"   curl {gateway_url}/api/v2/apis")
    print_line("")
    print_line(f"   A paid call (the visitor has just paid for {PREPAID_CALLS} in one transaction):")
    print_line(
        f"   curl -i -H 'X-Payment-Tx: {payment}' -H 'X-Signature: {signature}' "
        f"{gateway_url}/api/v2/gateway/{api_id}/quote/BTC"
    )
    print_line("")
    print_line("   Let Tollway's own client pay, as the caller:")
    store = key_file.with_name("payments.sqlite3")
    caller = (
        f"   TOLLWAY_KEY_FILE={shlex.quote(str(key_file))} TOLLWAY_STORE={shlex.quote(str(store))} "
        f"TOLLWAY_RPC={playground.rpc_url} TOLLWAY_GATEWAY={gateway_url} \\"
    )
    print_line(caller)
    print_line(f"     {_find_command()} call {api_id} /quote/BTC")
    print_line("")
    print_line("   Find it, and read how it is used:")
    print_line(f"   {_find_command()} search --gateway {gateway_url}")
    print_line(f"   {_find_command()} describe {api_id} --gateway {gateway_url}")
    print_line("")
    print_line("   For an agent's program that starts MCP servers, as the caller, with a limit:")
    print_line(caller)
    print_line(f'     {_find_command()} mcp --max-price "0.05 {usdc.symbol}" --budget "1 {usdc.symbol}"')


def _find_command() -> str:
    """How the person can start us again."""
    if shutil.which("tollway"):
        return "tollway"
    return shlex.quote(os.path.relpath(sys.argv[0]))
