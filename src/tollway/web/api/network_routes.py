"""`GET /api/v2/networks` and `GET /api/v2/status`: the networks and assets of the gateway, the rails that are open now, and since when others are withdrawn. Read only.

Both read the last state in memory: a request asks no node and no database. They have no amounts of the gateway, no keys and no node URLs.
"""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from tollway.chain.networks import ChainRules, ConfirmationSteps
from tollway.money import LEDGER_DECIMALS_MAX, Asset, format_decimal
from tollway.payments.gas import WithdrawalReason
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import is_settled_now
from tollway.web.http.query import format_time

_OF_PAYERS_WITH_CODE = frozenset({WithdrawalReason.WALLET_BUDGET, WithdrawalReason.WALLET_CODE})

HEADERS = {"Cache-Control": "public, max-age=10"}


def network_router(context: WebContext) -> Router:
    operator = context.operator.to_json()

    async def show_networks(request: Request) -> JSONResponse:
        return JSONResponse({"networks": describe_networks(context)}, headers=HEADERS)

    async def show_status(request: Request) -> JSONResponse:
        content = {
            "version": context.version,
            **({"operator": operator} if operator else {}),
            "networks": describe_status(context),
            "asOf": format_time(context.now_ms()),
        }
        return JSONResponse(content, headers=HEADERS)

    return Router(
        [
            Route("/api/v2/networks", show_networks, methods=["GET"]),
            Route("/api/v2/status", show_status, methods=["GET"]),
        ]
    )


def describe_networks(context: WebContext) -> list[dict[str, Any]]:
    """The networks of the gateway: facts for wallets, assets, and the rails that are open now."""
    return [_network_json(context, rules) for rules in context.rules.values()]


def describe_status(context: WebContext) -> list[dict[str, Any]]:
    """What each network takes now, and since when something is withdrawn."""
    return [_status_json(context, rules) for rules in context.rules.values()]


def _head_json(context: WebContext, rules: ChainRules) -> dict[str, Any]:
    return {
        "network": rules.network,
        "chainId": rules.chain_id,
        "name": context.profiles[rules.chain_id].name,
    }


def _network_json(context: WebContext, rules: ChainRules) -> dict[str, Any]:
    profile = context.profiles[rules.chain_id]
    assets = [_asset_json(context, rules, asset) for asset in rules.assets]
    native = {"symbol": profile.native_symbol, "decimals": profile.native_decimals}
    return {
        **_head_json(context, rules),
        "kind": rules.kind,
        "nativeCurrency": None if profile.native_symbol is None else native,
        "explorerUrl": profile.explorer_url,
        "walletRpcUrl": profile.wallet_rpc_url,
        "reachable": context.away_s(rules.chain_id) is None,
        "rails": _join_rails(asset["rails"] for asset in assets),
        "assets": assets,
    }


def _asset_json(context: WebContext, rules: ChainRules, asset: Asset) -> dict[str, Any]:
    is_native = asset.token is None
    steps = rules.native_confirmations if is_native and rules.native_confirmations else rules.confirmations
    return {
        "asset": asset.caip19,
        "symbol": asset.symbol,
        **({} if asset.token is None else {"token": str(asset.token)}),
        "decimals": asset.decimals,
        **(
            {}
            if asset.domain is None
            else {"domain": {"name": asset.domain.name, "version": asset.domain.version}}
        ),
        "rails": _open_rails(context, asset),
        "confirmations": _steps_json(steps),
    }


def _steps_json(steps: ConfirmationSteps) -> list[dict[str, Any]]:
    """From which amount of the asset how many confirmations are needed."""
    return [
        {"amountMin": format_decimal(nano, decimals=LEDGER_DECIMALS_MAX), "confirmations": confirmations}
        for nano, confirmations in steps
    ]


def _open_rails(context: WebContext, asset: Asset) -> list[str]:
    """The rails by which a new payment in this asset counts now."""
    if context.away_s(asset.chain_id) is not None:
        return []
    settled = context.settled_rails.items()
    return ["tx", *(rail for rail, is_offered in settled if is_settled_now(asset, is_offered))]


def _join_rails(lists: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(rail for rails in lists for rail in rails))


def _status_json(context: WebContext, rules: ChainRules) -> dict[str, Any]:
    away_s = context.away_s(rules.chain_id)
    return {
        **_head_json(context, rules),
        "reachable": away_s is None,
        **({} if away_s is None else {"unreachableSince": _time_before(context, away_s)}),
        "rails": _join_rails(_open_rails(context, asset) for asset in rules.assets),
        "withdrawn": _withdrawn_json(context, rules),
    }


def _time_before(context: WebContext, seconds: float) -> str | None:
    """None for infinity: the network was never reached."""
    return None if seconds == float("inf") else format_time(context.now_ms() - int(seconds * 1_000))


def _withdrawn_json(context: WebContext, rules: ChainRules) -> list[dict[str, Any]]:
    """What concerns the whole network or one of its tokens, and every payer; not what concerns one listing or one gas key."""
    tokens = {str(asset.token): asset for asset in rules.assets if asset.token is not None}
    return [
        {
            "rails": list(context.settled_rails),
            "reason": rail.reason.value,
            "since": format_time(since_ms),
            **({"asset": tokens[rail.subject].caip19} if rail.subject in tokens else {}),
        }
        for rail, since_ms in context.withdrawn_since_ms().items()
        if rail.chain_id == rules.chain_id
        and rail.reason not in _OF_PAYERS_WITH_CODE
        and (not rail.subject or rail.subject in tokens)
    ]
