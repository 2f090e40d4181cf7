"""`tollway gateway doctor`: checks the settings, the database, the chains and the clock of a gateway, and reports what is wrong or risky.

It makes no table, no file and no key.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

from prometheus_client.parser import text_string_to_metric_families

from tollway.app.doctor_channels import examine_channel_keys, examine_channels
from tollway.app.doctor_findings import (
    SHARED_RATES_DOWN,
    Finding,
    FindingLevel,
    describe_late_tasks,
    examine_local,
)
from tollway.chain.multicall import MULTICALL3
from tollway.chain.nodes import ChainsWithNodes
from tollway.chain.port import SettlementChain
from tollway.chain.tokens import DomainFault, find_domain_fault
from tollway.client.errors import IssuersUnusable
from tollway.config.networks import NetworkSettings
from tollway.config.settings import Settings
from tollway.errors import ChainMismatch, ChainUnavailable, StorageUnavailable
from tollway.money import Asset, format_decimal
from tollway.observability.alert_limits import GAS_FLOORS_MIN
from tollway.observability.telemetry import (
    BACKGROUND_AGE,
    BACKGROUND_ENDED,
    BACKGROUND_FAILURES,
    BACKGROUND_INTERVAL,
    BackgroundTaskStatus,
)
from tollway.outbound.dns import TxtRecords
from tollway.payments.settlement_rules import SettlementRules
from tollway.storage.engine.database import Database, is_postgres
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.leadership import Duty, Leader, are_sessions_shared, find_leaders
from tollway.storage.engine.postgres import PostgresDatabase
from tollway.storage.operator.key_rotation import KeyRotation

CLOCK_SLACK_S = 60
"""How far in the future the verification of a payment accepts the time of a block."""
BLOCK_AGE_MAX_S = 120
_READ_CLOCK = bytes.fromhex("4260005260206000f3")
"""TIMESTAMP, MSTORE, RETURN: as deployment code it returns the time of the latest block."""
_CLOCK_GAS = 100_000
_DEADLINE_S = 5.0
_RESPONSES_CHECKED_MAX = 200
"""Stored responses take up to a GiB and expire in a day, so a part of them is enough; secrets are all checked."""
_ROOT = "."
"""The DNS root: every name server answers a query for it."""
_READY, _SERVER_ERROR = 200, 500

_DOMAIN_FAULTS = {
    DomainFault.NO_AUTHORIZATIONS: "takes no authorisations (EIP-3009) at that address",
    DomainFault.OTHER_DOMAIN: "has another EIP-712 name or version than the settings",
}

Verdict = tuple[FindingLevel, str]
"""The level of a finding, and its detail."""
Fetch = Callable[[str], Awaitable[tuple[int, str] | None]]
"""GET a URL: status and body, or None without a response. Raises IssuersUnusable."""


async def examine(
    settings: Settings,
    *,
    database: Database,
    chains: ChainsWithNodes,
    fetch: Fetch,
    now_s: float,
) -> tuple[Finding, ...]:
    """Runs every check; a failed one does not stop the others."""
    findings = [finding async for finding in examine_local(settings, database)]

    async def add(check: str, examined: Awaitable[Verdict | None], *, of: str = "") -> None:
        try:
            verdict = await examined
        except StorageUnavailable:
            verdict = "failed", "the database does not answer; repair it and run doctor again"
        except (ChainUnavailable, IssuersUnusable) as exc:
            verdict = "failed", str(exc)
        if verdict is not None:
            level, detail = verdict
            findings.append(Finding(check=check, level=level, detail=of + detail))

    found = next(finding for finding in findings if finding.check == "database")
    if found.level in ("ok", "warning") and settings.secret_keys:
        await add("secrets", _examine_seals(settings, database))
    has_tables = found.level in ("ok", "warning")
    if has_tables:
        await add("channels", examine_channel_keys(settings, database))
    if is_postgres(database):
        await add("leaders", _examine_leaders(database))
    for network in settings.networks:
        chain_id, of = network.rules.chain_id, f"{network.name}: "
        await add(f"chain_{chain_id}", _examine_chain(network, chains, now_s), of=of)
        settlement = _examine_settlement(settings, network, chains, fetch)
        await add(f"settlement_{chain_id}", settlement, of=of)
        if network.settlement.gas_keys and (settings.x402 or settings.mpp):
            least = _examine_settlement_min(network.settlement, chains)
            await add(f"settlement_min_{chain_id}", least, of=of)
            await add(f"gas_keys_{chain_id}", _examine_gas_keys(network.settlement, chains), of=of)
        channels = examine_channels(
            settings, network, database=database if has_tables else None, chains=chains, now_s=now_s
        )
        await add(f"channels_{chain_id}", channels, of=of)
    await add("shared_rates", _examine_rates(settings))
    await add("ownership", _examine_ownership(settings))
    await add("gateway", _examine_gateway(settings, fetch))
    await add("control_workers", _examine_control_workers(settings, fetch))
    await add("background", _examine_background(settings, fetch))
    return tuple(findings)


async def _examine_seals(settings: Settings, database: Database) -> Verdict:
    """Whether the keys open the stored secrets, and whether the first key alone does: a check after a restore and while the key changes."""
    key, *others = [key.get_secret_value() for key in settings.secret_keys]
    rotation = KeyRotation(database, sealer=Sealer(key, others=others, entropy=secrets.token_bytes))
    counts = await rotation.count(responses_max=_RESPONSES_CHECKED_MAX)
    if counts.secrets.lost:
        listings = ", ".join(counts.secrets.lost_ids)
        detail = (
            f"no key opens {counts.secrets.lost} secret(s) of listings, and their calls fail: put the missing key behind the "
            f"first one, or ask the providers to set the secrets again: {listings}"
        )
        return "failed", detail
    if counts.older:
        detail = (
            f"{counts.secrets.older} secret(s) of listings and {counts.responses.older} stored response(s) need a key "
            "that is not the first; when every gateway has the new key first, run tollway gateway secrets reencrypt"
        )
        return "note", detail
    detail = f"the first key opens all {counts.secrets.current} secret(s) of listings"
    if counts.responses.lost:
        detail += "; no key opens some stored responses, and repeats of their calls fail until they expire after a day"
    if others:
        detail += f"; {len(others)} more key(s) are configured"
    return "note" if others or counts.responses.lost else "ok", detail


async def _examine_leaders(database: PostgresDatabase) -> Verdict:
    """Which gateway leads each duty (settlement recovery, reorg watch), and whether a pooler prevents leadership."""
    if await are_sessions_shared(database):
        detail = (
            "a pooler shares the server's sessions between transactions, and the lock of a leader needs a session "
            "of its own; point database_url at the server, or pool by session"
        )
        return "failed", detail
    leaders = await find_leaders(database)
    parts = [
        f"{duty.label}: {leaders[duty].address or 'on the machine of the database'} "
        f"(server process {leaders[duty].server_process}{_format_handicap(leaders[duty])})"
        for duty in Duty
        if duty in leaders
    ]
    missing = [duty.label for duty in Duty if duty not in leaders]
    if missing:
        parts.append(
            f"no gateway leads as {' or '.join(missing)}; a running gateway takes over within seconds"
        )
    is_well = not missing and not any(leader.handicap for leader in leaders.values())
    return "ok" if is_well else "note", "; ".join(parts)


def _format_handicap(leader: Leader) -> str:
    return f", without nodes of {leader.handicap} of its networks" if leader.handicap else ""


async def _examine_chain(network: NetworkSettings, chains: ChainsWithNodes, now_s: float) -> Verdict:
    try:
        await chains.check_chain(network.rules.chain_id)
        answer = await chains.call_contract(
            network.rules.chain_id,
            to=None,
            calldata=_READ_CLOCK,
            gas=_CLOCK_GAS,
            bytes_max=32,
            deadline_s=_DEADLINE_S,
        )
    except ChainUnavailable as exc:
        kind = (
            "a node serves another chain"
            if isinstance(exc, ChainMismatch)
            else "no node gave a usable response"
        )
        notes = getattr(exc, "__notes__", [])
        return "failed", "; ".join([kind, *notes])
    if answer.reverted or len(answer.payload) != 32:
        return "note", "the node does not return the time of its latest block"
    lag_s = now_s - int.from_bytes(answer.payload, "big")
    if lag_s < -CLOCK_SLACK_S:
        return "failed", f"the latest block lies {-lag_s:.0f} s in the future; this machine's clock is behind"
    if lag_s > BLOCK_AGE_MAX_S + 10 * network.block_time_s:
        return "warning", f"the latest block is {lag_s:.0f} s old; the node lags, or this clock is ahead"
    refusing = [node for node in chains.list_nodes(network.rules.chain_id) if node.batch_max is not None]
    if refusing:
        nodes = ", ".join(f"node {node.position} at {node.host} ({node.batch_max})" for node in refusing)
        detail = (
            f"these nodes refuse JSON-RPC batches of more than so many calls: {nodes}; "
            "each payment takes more requests there, so a node that accepts batches of 100 is faster"
        )
        return "note", detail
    return "ok", "chain id and clock agree"


async def _examine_settlement(
    settings: Settings, network: NetworkSettings, chains: SettlementChain, fetch: Fetch
) -> Verdict:
    """Whether a network offers payments by authorisation (x402, MPP), and if not, why."""
    rules = network.settlement
    tokens = [asset for asset in network.rules.assets if asset.domain is not None]
    silent = None
    if not settings.x402 and not settings.mpp:
        silent = "x402 and mpp are both off"
    elif not rules.has_rail:
        silent = "there is neither a gas key nor a facilitator"
    elif not tokens:
        silent = "no token there has the name and version of an EIP-712 domain"
    if silent is not None:
        return "note", f"no authorised payments: {silent}"
    faults = [fault async for fault in _find_faults(rules, tokens, chains, fetch)]
    if faults:
        detail = "authorised payments are not offered, or not by every key or token: "
        return "warning", detail + "; ".join(faults)
    by = "a facilitator" if rules.facilitator is not None else f"{len(rules.gas_keys)} gas key(s)"
    symbols = ", ".join(asset.symbol for asset in tokens)
    return "ok", f"authorised payments in {symbols}, settled by {by}"


async def _examine_settlement_min(rules: SettlementRules, chains: SettlementChain) -> Verdict:
    """The lowest price that the network settles at the current gas price, compared with the cost of a settlement."""
    if rules.native_price_nano is None:
        return "note", "native_price is not set: settlement_min does not follow the price of gas"
    price_wei = (await chains.fetch_fees(rules.chain_id)).price_wei
    cost_nano, min_nano = rules.cost_nano(price_wei), rules.min_nano_at(price_wei)
    cost, least = format_decimal(cost_nano, decimals=9), format_decimal(min_nano, decimals=9)
    if min_nano < cost_nano:
        return "warning", f"settlement_min = {least} is less than the {cost} that a settlement costs now"
    detail = f"authorised payments from {least}; a settlement costs {cost} now"
    return "ok", detail


async def _examine_gas_keys(rules: SettlementRules, chains: SettlementChain) -> Verdict:
    """Each gas key with its balance, in the order of the settings. Below `GAS_FLOORS_MIN` floors the alerts GasKeyLow and GasKeysLow fire."""
    balances = [
        (await chains.fetch_account(rules.chain_id, key.address)).balance_wei for key in rules.gas_keys
    ]
    least_wei = GAS_FLOORS_MIN * rules.gas_floor_wei
    parts = [
        f"{key.address} has {format_decimal(balance_wei, decimals=18)}"
        + (" (low)" if balance_wei < least_wei else "")
        for key, balance_wei in zip(rules.gas_keys, balances, strict=True)
    ]
    floor = format_decimal(rules.gas_floor_wei, decimals=18)
    detail = f"{'; '.join(parts)}; gas_floor = {floor}, low is less than {GAS_FLOORS_MIN} floors"
    if min(balances) >= least_wei:
        return "ok", detail
    return "warning", f"{detail}; send native currency to the keys marked low"


async def _find_faults(
    rules: SettlementRules, tokens: list[Asset], chains: SettlementChain, fetch: Fetch
) -> AsyncIterator[str]:
    """The reasons why the rail, or a part of it, is withdrawn now. Raises ChainUnavailable."""
    for asset in tokens:
        fault = await find_domain_fault(chains, asset, deadline_s=_DEADLINE_S)
        if fault is not None:
            yield f"{asset.symbol} {_DOMAIN_FAULTS[fault]}"
    if rules.wallet_factories and not await chains.fetch_code_size(rules.chain_id, MULTICALL3):
        yield f"a wallet that is not deployed cannot pay: {MULTICALL3} (Multicall3) has no code there, so set wallet_factories = []"
    if rules.facilitator is not None:
        try:
            answer = await fetch(rules.facilitator.url.rstrip("/") + "/supported")
        except IssuersUnusable as exc:
            yield f"the facilitator was not asked: {exc}"
            return
        if answer is None or answer[0] >= _SERVER_ERROR:
            yield (
                "the facilitator does not answer"
                if answer is None
                else f"the facilitator answers {answer[0]}"
            )
        return
    fees = await chains.fetch_fees(rules.chain_id)
    if fees.price_wei > rules.gas_price_max_wei:
        limit = format_decimal(rules.gas_price_max_wei, decimals=9)
        yield f"gas costs {format_decimal(fees.price_wei, decimals=9)} gwei, above gas_price_max_gwei = {limit}"
    for key in rules.gas_keys:
        account = await chains.fetch_account(rules.chain_id, key.address)
        if account.balance_wei < rules.gas_floor_wei:
            floor = format_decimal(rules.gas_floor_wei, decimals=18)
            has = format_decimal(account.balance_wei, decimals=18)
            yield f"the gas key {key.address} has {has}, below gas_floor = {floor}"


async def _examine_rates(settings: Settings) -> Verdict | None:
    """Whether gateways that share a database count their callers together."""
    if settings.rate_limit_url is None:
        if settings.is_sqlite:
            return None  # there is one gateway
        return "note", "rate_limit_url is not set: several gateways would each count their callers alone"
    from tollway.rate_limits.redis_windows import RedisWindows  # loads redis, and most have none to ask

    windows = RedisWindows(
        settings.rate_limit_url.get_secret_value(),
        namespace="doctor",
        secret=b"",
        deadline_s=_DEADLINE_S,
        retry_s=0.0,
    )
    await windows.open()
    is_up = windows.is_up
    await windows.close()
    if is_up:
        return "ok", "the server for shared rates answers"
    return "warning", SHARED_RATES_DOWN


async def _examine_ownership(settings: Settings) -> Verdict | None:
    """Whether a TXT record can be found, where the settings depend on proofs of ownership."""
    if not settings.require_ownership and not settings.name_servers:
        return None
    names = TxtRecords(settings.name_servers, deadline_s=_DEADLINE_S)
    if await names.find_texts(_ROOT) is None:
        detail = (
            "no name server answers: proofs by a TXT record are not found, and existing ones expire in a week"
        )
        return "warning", detail
    detail = "name servers answer"
    if settings.require_ownership:
        detail += "; listings without a proof of ownership are neither listed nor callable"
    return "ok", detail


async def _examine_gateway(settings: Settings, fetch: Fetch) -> Verdict:
    answer = await fetch(settings.public_url + "/readyz")
    if answer is None:
        return "note", f"no gateway answers at {settings.public_url} now"
    if answer[0] == _READY:
        return "ok", f"the gateway at {settings.public_url} is ready"
    detail = f"{settings.public_url}/readyz answers {answer[0]}: the gateway is not ready"
    return "failed", detail


async def _examine_control_workers(settings: Settings, fetch: Fetch) -> Verdict | None:
    """Whether one of the control workers on this machine takes requests."""
    if not settings.control_workers:
        return None
    answer = await fetch(f"http://{settings.control_listen}/readyz?for=traffic")
    if answer is None:
        return "note", f"no control worker answers at {settings.control_listen} now"
    if answer[0] == _READY:
        return "ok", f"control workers serve at {settings.control_listen}"
    return "failed", f"a control worker at {settings.control_listen} answers {answer[0]}: it is not ready"


async def _examine_background(settings: Settings, fetch: Fetch) -> Verdict:
    """The age of the last successful run of each background task, from the metrics of the gateway on this machine."""
    if settings.admin_listen is None:
        return "note", "admin_listen is off: the ages of background tasks cannot be read"
    url = f"http://{settings.admin_listen}/metrics"
    answer = await fetch(url)
    if answer is None or answer[0] != _READY:
        return "note", f"no gateway answers at {url} now"
    return check_background(answer[1])


def check_background(metrics: str) -> Verdict:
    """Reads the state of the background tasks from the metrics of a gateway."""
    figures: dict[str, dict[str, float]] = {}
    try:
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                figures.setdefault(sample.name, {})[sample.labels.get("task", "")] = sample.value
    except ValueError:
        return "note", "the metrics of the gateway cannot be read"
    ages, intervals = figures.get(BACKGROUND_AGE, {}), figures.get(BACKGROUND_INTERVAL, {})
    failures = figures.get(BACKGROUND_FAILURES, {})
    ended = figures.get(BACKGROUND_ENDED, {}).get("", 0)
    if ended:
        detail = f"{ended:.0f} background task(s) ended by themselves; read background_task_ended in the log and restart the gateway"
        return "failed", detail
    if not ages:
        return "note", "the metrics contain no background tasks"
    tasks = [
        BackgroundTaskStatus(
            name=task,
            is_running=True,
            has_ended=False,
            age_s=age_s,
            interval_s=intervals.get(task),
            failures=int(failures.get(task, 0)),
        )
        for task, age_s in ages.items()
    ]
    if late := describe_late_tasks(tasks):
        return "warning", "; ".join(late)
    parts = ", ".join(f"{task} {ages[task]:.0f} s" for task in sorted(ages) if task in intervals)
    return "ok", f"since the last good run of each task: {parts}"
