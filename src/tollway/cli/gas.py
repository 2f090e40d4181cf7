"""`tollway gateway gas`: what settling, depositing and claiming cost now on each network, and the smallest price for which each rail is sensible. It changes nothing."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tollway.app.channel_keys import derive_authorizers
from tollway.app.channel_wiring import count_claim_gas
from tollway.chain.port import SettlementChain
from tollway.cli.operator import Operator, operator_command
from tollway.config.networks import NetworkSettings
from tollway.config.settings import Settings, load_settings
from tollway.identity.siwe import parse_origin
from tollway.ids import format_network
from tollway.money import format_decimal
from tollway.payments.channel_networks import make_channel_rules
from tollway.payments.channel_terms import DEPOSIT_CALLS, DEPOSIT_COST_FACTOR
from tollway.payments.gas import CLAIM_RESERVE_FACTOR
from tollway.payments.gas_costs import RailCosts, find_channel_costs, find_settlement_costs
from tollway.payments.settlement_rules import MIN_COST_FACTOR
from tollway.storage.engine.database import Database
from tollway.storage.engine.migrate import explain_refusal, schema_state
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.channel_totals import ChannelTotalsStore


@operator_command
async def show_gas(operator: Operator) -> None:
    given = load_settings(os.environ, config=operator.config)
    async with operator.open("look", given) as gateway, gateway.chains:
        found = [
            await examine_gas(given, network, database=gateway.database, chains=gateway.chains)
            for network in given.networks
        ]
    answer = {"networks": found, "at": int(time.time())}
    operator.print(answer, [line for one in found for line in describe_network(one)])


async def examine_gas(
    settings: Settings, network: NetworkSettings, *, database: Database, chains: SettlementChain
) -> dict[str, Any]:
    """The costs of one network, as JSON. Amounts are of the listing's currency, gas of the network's coin. Raises ChainUnavailable."""
    rules, chain_id = network.settlement, network.rules.chain_id
    gas_price_wei = (await chains.fetch_fees(chain_id)).price_wei
    native_nano = rules.native_price_nano
    found: dict[str, Any] = {
        "network": format_network(chain_id),
        "name": network.name,
        "gasPriceGwei": format_decimal(gas_price_wei, decimals=9),
        "nativePrice": None if native_nano is None else format_decimal(native_nano, decimals=9),
        "rails": {},
        "claimReserve": None,
    }
    if rules.has_rail and (settings.x402 or settings.mpp):
        found["rails"]["exact"] = _costs_json(find_settlement_costs(rules, gas_price_wei))
    channel_rules = make_channel_rules({chain_id: network.rules}, {chain_id: rules}).get(chain_id)
    if settings.channels and settings.x402 and channel_rules is not None:
        found["rails"]["channel"] = _costs_json(find_channel_costs(rules, gas_price_wei))
        if explain_refusal(await schema_state(database)) is None:
            signers = derive_authorizers(
                [key.get_secret_value() for key in settings.secret_keys],
                origin=str(parse_origin(settings.public_url)),
                restores=await ChannelClaimStore(database).count_restores(),
            )
            gas = await count_claim_gas(
                ChannelTotalsStore(database),
                channel_rules,
                assets=network.rules.assets,
                gas_price_wei=gas_price_wei,
                authorizers=[signer.address for group in signers for signer in group],
            )
            reserve_wei = CLAIM_RESERVE_FACTOR * gas * gas_price_wei
            found["claimReserve"] = format_decimal(reserve_wei, decimals=18)
    return found


def _costs_json(costs: RailCosts) -> dict[str, Any]:
    return {
        "floor": None if costs.floor_nano is None else format_decimal(costs.floor_nano, decimals=9),
        "steps": [
            {"step": name, "gas": gas, "cost": None if nano is None else format_decimal(nano, decimals=9)}
            for name, gas, nano in costs.steps
        ],
    }


def describe_network(found: dict[str, Any]) -> Iterator[str]:
    coin = found["nativePrice"] or "not set (native_price): costs are not known in the currency"
    yield f"{found['name']}: gas {found['gasPriceGwei']} gwei; native coin {coin}"
    for rail, costs in found["rails"].items():
        yield f"  {rail}: {_describe_steps(costs['steps'])}; smallest sensible price {costs['floor'] or 'not known'}{_EXPLAINED[rail]}"
    yield "  transaction, credit: the caller pays the gas; no smallest price"
    if found["claimReserve"] is not None:
        yield f"  reserve for claims of channels: {found['claimReserve']} of the native coin in a gas key"


def _describe_steps(steps: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{one['step']} {one['cost'] or '?'} ({one['gas']:,} gas)" for one in steps)


_EXPLAINED = {
    "exact": f" ({MIN_COST_FACTOR} settlements, or settlement_min)",
    "channel": f" ({DEPOSIT_CALLS:,} calls pay {DEPOSIT_COST_FACTOR} times the gas of their channel)",
}
