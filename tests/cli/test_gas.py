"""`tollway gateway gas`: the costs of each rail at the gas price of now, their floors, and the reserve for claims."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_doctor import CHAIN, chain_with_fees, settling
from tests.kit.ledger_channels import owe_on
from tests.kit.storage_faults import FaultyLedger
from tollway.app.channel_keys import derive_authorizers
from tollway.cli.gas import describe_network, examine_gas
from tollway.config.settings import Settings
from tollway.errors import ChainUnavailable
from tollway.identity.siwe import parse_origin
from tollway.payments.channel_claims import find_claim_gas
from tollway.payments.gas import CLAIM_RESERVE_FACTOR
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.migrate import upgrade

GWEI = 10**9


def make_settings(folder: Path, *, native_price_nano: int | None = 1_000 * 10**9, **changes: Any) -> Settings:
    settings = settling(folder, channels=True, **changes)
    (network,) = settings.networks
    rules = replace(network.settlement, native_price_nano=native_price_nano, min_nano=0)
    return settings.model_copy(update={"networks": (replace(network, settlement=rules),)})


async def look(folder: Path, settings: Settings, *, owed: int | None = None) -> dict[str, Any]:
    """`owed`: what a channel of the ledger owes; without it there is no database yet."""
    database = SqliteDatabase(folder / "books.sqlite3")
    if owed is not None:
        await database.open()
        await upgrade(database)
        faulty = FaultyLedger(database)
        await faulty.ledger.open()
        own, another = (
            derive_authorizers([key], origin=str(parse_origin(settings.public_url)), restores=0)[0][0].address
            for key in (settings.secret_keys[0].get_secret_value(), b"another".ljust(32))
        )
        await owe_on(faulty.ledger, owed, receiver_authorizer=own)
        await owe_on(faulty.ledger, owed, "of a key that is given up", receiver_authorizer=another)
        await faulty.close()
    chain = chain_with_fees(base_fee_wei=GWEI - 1, tip_wei=1)
    found = await examine_gas(settings, settings.networks[0], database=database, chains=chain)
    await database.close()
    return found


async def test_each_rail_has_its_steps_and_its_floor(tmp_path: Path) -> None:
    found = await look(tmp_path, make_settings(tmp_path))
    assert (found["network"], found["gasPriceGwei"], found["nativePrice"]) == (f"eip155:{CHAIN}", "1", "1000")
    assert found["rails"] == {
        "exact": {"floor": "0.9", "steps": [{"step": "settlement", "gas": 90_000, "cost": "0.09"}]},
        "channel": {
            "floor": "0.0026",
            "steps": [
                {"step": "deposit", "gas": 133_000, "cost": "0.133"},
                {"step": "claim", "gas": 77_000, "cost": "0.077"},
                {"step": "settle", "gas": 50_000, "cost": "0.05"},
            ],
        },
    }
    assert found["claimReserve"] is None
    lines = list(describe_network(found))
    assert lines[1].startswith(
        "  exact: settlement 0.09 (90,000 gas); smallest sensible price 0.9 (10 settlements"
    )
    assert "smallest sensible price 0.0026 (1,000 calls pay 10 times the gas" in lines[2]
    assert "no smallest price" in lines[3]


@pytest.mark.parametrize(
    ("owed", "channels"),
    [pytest.param(105_000, 1, id="its gas"), pytest.param(104_999, 0, id="less than the gas of its claim")],
)
async def test_the_reserve_is_that_of_the_channels_that_a_claim_pays_for(
    tmp_path: Path, owed: int, channels: int
) -> None:
    found = await look(tmp_path, make_settings(tmp_path), owed=owed)
    reserve_wei = CLAIM_RESERVE_FACTOR * find_claim_gas(channels, channels) * GWEI
    assert found["claimReserve"] == f"{reserve_wei / 10**18:.18f}".rstrip("0").rstrip(".")
    assert "reserve for claims" in list(describe_network(found))[-1]


async def test_without_a_price_of_the_coin_there_is_no_channel_and_no_known_cost(tmp_path: Path) -> None:
    found = await look(tmp_path, make_settings(tmp_path, native_price_nano=None))
    assert list(found["rails"]) == ["exact"]
    assert found["rails"]["exact"]["steps"][0]["cost"] is None
    assert "native_price" in next(describe_network(found))


@pytest.mark.parametrize(
    ("changes", "rails"),
    [({"channels": False}, ["exact"]), ({"x402": False}, ["exact"]), ({"x402": False, "mpp": False}, [])],
)
async def test_a_rail_that_is_off_is_left_out(
    tmp_path: Path, changes: dict[str, bool], rails: list[str]
) -> None:
    settings = make_settings(tmp_path).model_copy(update=changes)
    assert list((await look(tmp_path, settings))["rails"]) == rails


async def test_a_chain_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    settings, chain = make_settings(tmp_path), chain_with_fees()
    chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await examine_gas(
            settings, settings.networks[0], database=SqliteDatabase(tmp_path / "b.sqlite3"), chains=chain
        )
