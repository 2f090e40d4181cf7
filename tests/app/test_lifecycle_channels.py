"""A gateway with channels: it starts only with the keys of what is unclaimed, serves the channels of every key of the list, and exposes their figures."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from tests.app.test_lifecycle import settings
from tests.kit.databases import open_database
from tests.kit.ledger_channels import owe_on
from tests.kit.ledger_records import CHAIN, NOW_MS
from tests.kit.settlement import make_gas_key
from tests.kit.storage_faults import FaultyLedger
from tollway.app.channel_keys import derive_authorizers
from tollway.app.lifecycle import App
from tollway.audit_log import AuditOrigin
from tollway.config.settings import Settings
from tollway.errors import SettingsInvalid
from tollway.identity.siwe import parse_origin
from tollway.ids import Address
from tollway.storage.engine.migrate import upgrade

OLD, NEW = "00112233445566778899aabbccddeeff" * 2, "ffeeddccbbaa99887766554433221100" * 2


def make_settings(folder: Path, *keys: str) -> Settings:
    given = settings(folder, SECRET_KEY=" ".join(keys), CHANNELS="true")
    (network,) = given.networks
    rules = replace(network.settlement, gas_keys=(make_gas_key(),))
    return given.model_copy(update={"networks": (replace(network, settlement=rules),)})


def authorizer(given: Settings, number: int = 0) -> Address:
    keys = [key.get_secret_value() for key in given.secret_keys]
    return derive_authorizers(keys, origin=str(parse_origin(given.public_url)), restores=0)[0][number].address


async def owe(folder: Path, units: int, signer: Address) -> None:
    async with open_database(f"sqlite:///{folder}/books.sqlite3") as database:
        await upgrade(database)
        faulty = FaultyLedger(database)
        await faulty.ledger.open()
        await owe_on(faulty.ledger, units, receiver_authorizer=signer)
        await faulty.close()


async def test_a_gateway_serves_the_channels_of_every_key_and_402s_name_the_first(tmp_path: Path) -> None:
    given = make_settings(tmp_path, NEW, OLD)
    await owe(tmp_path, 250_000, authorizer(given, 1))
    async with App(given) as app:
        channels = app.settlement_services.channels
        assert channels is not None
        assert channels.networks.authorizers == (authorizer(given, 0), authorizer(given, 1))
        assert all(map(channels.refunds.knows, channels.networks.authorizers))


async def test_a_gateway_without_a_key_that_has_unclaimed_money_does_not_start(tmp_path: Path) -> None:
    old = make_settings(tmp_path, OLD)
    await owe(tmp_path, 250_000, authorizer(old))
    with pytest.raises(SettingsInvalid, match=r"0\.25 USDC"):
        async with App(make_settings(tmp_path, NEW)):
            raise AssertionError("the gateway has started")
    async with App(old):
        pass  # with its key it starts
    origin = AuditOrigin(actor="alice@host", at_ms=NOW_MS + 3_600_000)
    async with App(make_settings(tmp_path, NEW), abandon_channels=origin) as app:
        (entry,) = await app.audit_log.list_audit_entries(limit=9)
    assert (entry.kind, entry.target) == ("abandon_channels", str(authorizer(old)))
    async with App(make_settings(tmp_path, NEW)):
        pass  # the word was given


@pytest.mark.parametrize("units", [0, 250_000])
async def test_the_leader_exposes_the_figures_of_channels(tmp_path: Path, units: int) -> None:
    given = make_settings(tmp_path, OLD)
    await owe(tmp_path, units, authorizer(given))
    async with App(given) as app:
        await app._read_figures()
        lines = generate_latest(app.metrics.registry).decode().splitlines()
    network = f'network="eip155:{CHAIN}"'
    assert f'tollway_channels{{{network},state="open"}} 1.0' in lines
    assert f'tollway_channel_unclaimed{{{network},token="USDC"}} {units / 10**6}' in lines
    assert f"tollway_channel_unclaimed_ratio{{{network}}} {units / 5_000_000}" in lines
    assert f"tollway_channel_withdraw_delay_seconds{{{network}}} 900.0" in lines
    assert sum(line.startswith("tollway_channel_steps_total{") for line in lines) == 12


async def test_a_gateway_without_channels_exposes_no_series_of_them(tmp_path: Path) -> None:
    async with App(settings(tmp_path)) as app:
        await app._read_figures()
        lines = generate_latest(app.metrics.registry).decode().splitlines()
    assert [line for line in lines if line.startswith("tollway_channel")] == []
