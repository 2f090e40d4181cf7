"""What `tollway gateway doctor` says of payment channels: the contracts, the keys that sign claims, the money that is not claimed, and withdrawals in sight."""

from collections.abc import Sequence
from itertools import islice

from tollway.app.channel_keys import (
    derive_authorizers,
    describe_unclaimed,
    explain_unsigned,
    find_unsigned,
    format_token,
)
from tollway.app.doctor_findings import FindingLevel
from tollway.chain.channel_contract import DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT, has_channel_contracts
from tollway.chain.port import SettlementChain
from tollway.config.networks import NetworkSettings
from tollway.config.settings import Settings
from tollway.identity.siwe import parse_origin
from tollway.ledger.channel_totals import ChannelTotal, ChannelWithdrawal
from tollway.money import format_decimal
from tollway.payments.channel_networks import LOOK_DIVISOR
from tollway.payments.channel_terms import UNCLAIMED_MAX, has_channels
from tollway.payments.channels import WITHDRAW_DELAY_S
from tollway.payments.gas_costs import describe_costs, find_channel_costs
from tollway.storage.engine.database import Database
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.operator.operator_writes import AuditLogStore

NAMED_MAX = 5
WITHDRAWALS_MAX = 1_000
_DEADLINE_S = 5.0

Verdict = tuple[FindingLevel, str]


async def examine_channel_keys(settings: Settings, database: Database) -> Verdict | None:
    """Which keys still have channels, and what is lost without one."""
    totals = ChannelTotalsStore(database)
    found = await totals.list_totals()
    rules = {network.rules.chain_id: network.rules for network in settings.networks}
    if not settings.channels or not settings.x402:
        unclaimed = describe_unclaimed([one for one in found if one.unclaimed_units], rules)
        if not unclaimed:
            return None
        return (
            "warning",
            f"channels are off, so nothing is claimed: {unclaimed}. Set channels = true and x402 = true until it is claimed",
        )
    if not settings.secret_keys:
        return "note", "the key that signs claims is derived from secret_key, which does not exist yet"
    restores = await ChannelClaimStore(database).count_restores()
    signers = derive_authorizers(
        [key.get_secret_value() for key in settings.secret_keys],
        origin=str(parse_origin(settings.public_url)),
        restores=restores,
    )
    known = {signer.address for group in signers for signer in group}
    unsigned = await find_unsigned(totals, AuditLogStore(database), knows=known.__contains__)
    if unsigned:
        return "failed", "the gateway does not start. " + explain_unsigned(unsigned, rules)
    parts = [f"402s name the authorizer {signers[0][0].address}, of the first key"]
    older = 0
    for number in range(len(settings.secret_keys)):
        for age, group in enumerate(signers):
            own = [one for one in found if one.authorizer == group[number].address and one.held]
            if (number, age) == (0, 0) or not own:
                continue
            older += 1
            when = "" if age == 0 else " from before a restore, which take no call"
            unclaimed = describe_unclaimed([one for one in own if one.unclaimed_units], rules)
            parts.append(
                f"key {number + 1} still has {sum(one.held for one in own)} channel(s) with money{when}; unclaimed: {unclaimed or 'nothing'}"
            )
    if restores:
        parts.append(
            f"the database was restored {restores} time(s): what a backup did not have was not claimed, and is the provider's loss, at most {UNCLAIMED_MAX} units of the currency a payer"
        )
    return "note" if older or restores else "ok", "; ".join(parts)


async def examine_channels(
    settings: Settings,
    network: NetworkSettings,
    *,
    database: Database | None,
    chains: SettlementChain,
    now_s: float,
) -> Verdict | None:
    """Whether a network offers channels, and if not, why; their costs and money. `database` None: it has no tables yet. Raises ChainUnavailable, StorageUnavailable."""
    if not settings.channels or not settings.x402:
        return None
    rules, chain_id = network.settlement, network.rules.chain_id
    missing = await _find_missing(network, chains)
    if missing is not None:
        return missing
    price_wei = (await chains.fetch_fees(chain_id)).price_wei
    costs = find_channel_costs(rules, price_wei)
    parts = [
        f"{describe_costs(costs)} now; sensible from a price of {format_decimal(costs.floor_nano or 0, decimals=9)}"
    ]
    if database is None:
        return "ok", parts[0]
    totals = ChannelTotalsStore(database)
    found = [one for one in await totals.list_totals() if one.chain_id == chain_id]
    parts.append(_describe_money(found, network))
    withdrawals = [
        one for one in await totals.list_withdrawals(limit=WITHDRAWALS_MAX) if one.chain_id == chain_id
    ]
    risks = [*_describe_withdrawals(withdrawals, network, now_s)]
    looked_ms = await ChannelClaimStore(database).read_look_ms(chain_id)
    delay_s = WITHDRAW_DELAY_S[network.rules.kind]
    if found and (looked_ms is None or now_s - looked_ms / 1000 > delay_s / LOOK_DIVISOR):
        risks.append("no gateway has looked at the channels for a quarter of the delay of a withdrawal")
    return "warning" if risks else "ok", "; ".join([*parts, *risks])


async def _find_missing(network: NetworkSettings, chains: SettlementChain) -> Verdict | None:
    """Why the network offers no channels."""
    rules, chain_id = network.settlement, network.rules.chain_id
    reason = None
    if not rules.gas_keys or rules.facilitator is not None:
        reason = "they need gas_keys, and no facilitator"
    elif rules.native_price_nano is None:
        reason = "native_price is not set"
    elif not any(map(has_channels, network.rules.assets)):
        reason = "no token has the name and version of an EIP-712 domain and at most 9 decimals"
    if reason is not None:
        return "note", f"no channels: {reason}"
    for address in (SETTLEMENT_CONTRACT, DEPOSIT_COLLECTOR):
        if not await chains.fetch_code_size(chain_id, address):
            return "note", f"no channels: {address} has no code there"
    if not await has_channel_contracts(chains, chain_id, deadline_s=_DEADLINE_S):
        detail = f"no channels: the code at {SETTLEMENT_CONTRACT} or {DEPOSIT_COLLECTOR} is not that of batch-settlement (eip712Domain() differs)"
        return "warning", detail
    return None


def _describe_money(found: Sequence[ChannelTotal], network: NetworkSettings) -> str:
    unclaimed = [one for one in found if one.unclaimed_units]
    held = sum(one.held for one in found)
    if not unclaimed:
        return f"{held} channel(s) with money; all is claimed"
    rules = {network.rules.chain_id: network.rules}
    return f"{held} channel(s) with money; unclaimed: {describe_unclaimed(unclaimed, rules)}"


def _describe_withdrawals(
    withdrawals: Sequence[ChannelWithdrawal], network: NetworkSettings, now_s: float
) -> list[str]:
    rules = {network.rules.chain_id: network.rules}
    owing = [one for one in withdrawals if one.unclaimed_units]
    named = [
        f"0x{one.channel_id.hex()} owes {format_token(one.chain_id, one.token, one.unclaimed_units, rules)}, "
        f"{max(0, one.since_s + one.delay_s - now_s) / 60:.0f} minutes left"
        for one in islice(owing, NAMED_MAX)
    ]
    if not withdrawals:
        return []
    more = f", and {len(owing) - NAMED_MAX} more" if len(owing) > NAMED_MAX else ""
    return [f"{len(withdrawals)} withdrawal(s) in sight" + (f": {'; '.join(named)}{more}" if named else "")]
