"""What the transcripts know of the product: how a gateway is started, its settings, and where its rows are.

Every other file of this folder speaks HTTP only. Where an internal module, a table or a column gets another name, this
file changes and no recording does: the left side of each row of `COLUMNS` is what stands in the recordings.
"""

import contextlib
import importlib
import os
import pkgutil
import sys

LOADED = ("tollway",)
NOT_LOADED = ("sandbox", "migrations")


def load() -> None:
    """Imports the whole product once, so that each gateway is a fork of this process and not a new interpreter."""
    for name in LOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            if not any(part in NOT_LOADED for part in module.name.split(".")):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)


def run(arguments: list[str]) -> None:
    """The console script `tollway`."""
    from tests.kit.fixed_limits import install
    from tollway.cli import main

    install(os.environ)
    sys.argv = ["tollway", *arguments]
    main()


def codes() -> set[str]:
    """Every public error code."""
    from tollway.errors import Code

    return {code.value for code in Code}


LEASE_S = 3_600
UNKNOWN_HOLD_MS = 86_400_000
"""The time after which the clock releases the price of an unknown call."""

NEVER = 10_000_000

SETTINGS = {
    "TOLLWAY_PUBLIC_URL": "https://gateway.example",
    "TOLLWAY_SECRET_KEY": "2407b40ed7534afcd005441cb2f1b6505ce18d56617ace5f3a9a9cf4351ee6d6",
    "TOLLWAY_ADMIN_LISTEN": "off",
    "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
    "TOLLWAY_WEB_PAGES": "false",  # what programs read; pages are tested in a browser
    "TOLLWAY_OPERATOR_CONTACT": "mailto:operator@gateway.example",
    "TOLLWAY_LOG_FORMAT": "json",
    # The transcript's clock moves by whole seconds between two exchanges, so what repeats runs at a start and never again.
    "TEST_LIMIT_OWNER_LEASE_S": str(LEASE_S),
    "TEST_LIMIT_OWNER_RENEW_S": str(LEASE_S // 2),
    "TEST_LIMIT_RECOVERY_INTERVAL_S": str(NEVER),
    "TEST_LIMIT_WATCH_INTERVAL_S": str(NEVER),
    "TEST_LIMIT_SWEEP_INTERVAL_S": str(NEVER),
    "TEST_LIMIT_GAS_REFRESH_S": str(NEVER),
    "TEST_LIMIT_LEADER_POLL_S": "0.1",
    "TEST_LIMIT_LEADER_LEASE_S": str(LEASE_S),
    "TEST_LIMIT_CHAIN_AWAY_S": str(NEVER),
    "TEST_LIMIT_CHAIN_CHECK_INTERVAL_S": str(NEVER),
    "TOLLWAY_LIMIT_RPC_DEADLINE_S": "20",  # longer than a busy machine takes
    "TOLLWAY_LIMIT_SETTLE_WAIT_S": "30",
    "TOLLWAY_LIMIT_SETTLE_WAIT_S_MAX": "60",
    "TOLLWAY_LIMIT_DRAIN_DEADLINE_S": "2",
}

NETWORKS = """
[[networks]]
preset = "base-sepolia"
rpc_urls = ["{first}"]
gas_keys = ["{gas_key}"]

[[networks]]
chain_id = 421614
kind = "test"
rpc_urls = ["{second}"]
confirmations = 3
assets = [
  {{symbol = "USDC", token = "0x75faf114eafb1BDbe2F0316DF893fd58CE46AA4d", decimals = 6}},
  {{symbol = "ETH", decimals = 18}},
]
"""

GIVES_UP_SOON = {"TOLLWAY_LIMIT_SETTLE_WAIT_S": "0.6"}
"""For families whose settlements are not mined in time."""

RENEWS_OFTEN = {"TEST_LIMIT_OWNER_RENEW_S": "0.1"}
"""For families whose gateways have to outlive a lease."""

COLUMNS: dict[str, tuple[str, str, tuple[str, ...], dict[str, str]]] = {
    # recorded name: (table, key column, order, {recorded column: column})
    "payment": (
        "payment",
        "id",
        ("recorded_ms", "payer", "tx_hash"),
        {
            "network": "chain_id",
            "transaction": "tx_hash",
            "asset": "asset",
            "payer": "payer",
            "payee": "payee",
            "value": "value_units",
            "taken": "taken_units",
            "calls": "calls",
            "state": "state",
            "block": "block_number",
            "plainEnded": "is_plain_ended",
            "held": "is_held",
            "authorized": "is_authorized",
            "recorded": "recorded_ms",
        },
    ),
    "call": (
        "call",
        "id",
        ("created_ms", "id"),
        {
            "api": "(SELECT listing_id FROM call_terms WHERE id = terms_id)",
            "apiName": "(SELECT listing_name FROM call_terms WHERE id = terms_id)",
            "provider": "provider",
            "payer": "payer",
            "method": "(SELECT method FROM call_terms WHERE id = terms_id)",
            "path": "path",
            "state": "state",
            "rail": "rail",
            "price": "(SELECT price FROM call_terms WHERE id = terms_id)",
            "priceUnits": "price_units",
            "currency": "(SELECT currency FROM call_terms WHERE id = terms_id)",
            "taken": "taken_units",
            "network": "(SELECT chain_id FROM call_terms WHERE id = terms_id)",
            "asset": "(SELECT asset FROM call_terms WHERE id = terms_id)",
            "transaction": "(SELECT tx_hash FROM payment WHERE id = payment_id)",
            "payTo": "(SELECT pay_to FROM call_terms WHERE id = terms_id)",
            "nonce": "nonce",
            "idempotencyKey": "idempotency_key",
            "requestId": "request_id",
            "epoch": "epoch",
            "attempts": "attempts",
            "cut": "cut",
            "clockReleases": "clock_releases",
            "httpStatus": "http_status",
            "upstreamStatus": "upstream_status",
            "requestBytes": "request_bytes",
            "responseBytes": "response_bytes",
            "delivery": "delivery",
            "error": "error",
            "created": "created_ms",
            "moved": "moved_ms",
            "completed": "completed_ms",
        },
    ),
    "topup": (
        "call_topup",
        "call_id || payment_id",
        ("call_id", "units"),
        {
            "call": "call_id",
            "transaction": "(SELECT tx_hash FROM payment WHERE id = payment_id)",
            "units": "units",
        },
    ),
    "authorization": (
        "authorization",
        "call_id",
        ("call_id",),
        {
            "call": "call_id",
            "nonce": "nonce",
            "network": "chain_id",
            "asset": "asset",
            "payer": "payer",
            "payee": "payee",
            "value": "base_units",
            "validAfter": "valid_after",
            "validBefore": "valid_before",
            "dialect": "dialect",
            "adrift": "is_adrift",
            "transaction": "tx_hash",
            "settledBlock": "settled_block",
        },
    ),
    "settlement": (
        "settlement_attempt",
        "tx_hash",
        ("nonce",),
        {
            "transaction": "tx_hash",
            "network": "chain_id",
            "call": "call_id",
            "sender": "sender",
            "nonce": "nonce",
            "open": "is_open",
            "created": "created_ms",
        },
    ),
    "storedAnswer": (
        "stored_response",
        "call_id",
        ("call_id",),
        {"call": "call_id", "payer": "payer"},
    ),
}
FLAGS = frozenset({"held", "plainEnded", "authorized", "clockReleases", "adrift", "open"})
TRIES = "SELECT id || ':' || attempts FROM call WHERE "
UNFINISHED = (
    "state IN ('consumed', 'released')"
    " AND (completed_ms IS NULL OR (upstream_status = http_status AND delivery IS NULL))"
)
"""Calls that are closed and whose end is written a moment later."""

UNDECIDED = "state IN ('settling', 'unknown')"

RENEWED = "SELECT coalesce(max(seen_ms), 0) FROM gateway_owner"
"""When a gateway last said that it is alive."""


def queries() -> dict[str, str]:
    """`SELECT`s whose first column is the key of a row."""
    written = {}
    for name, (table, key, order, columns) in COLUMNS.items():
        wanted = ", ".join(column if "(" in column else f'"{column}"' for column in columns.values())
        written[name] = f'SELECT {key}, {wanted} FROM "{table}" ORDER BY {", ".join(order)}'
    return written
