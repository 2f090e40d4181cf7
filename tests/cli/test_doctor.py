"""The doctor: one finding for everything that is wrong or risky, and no change to anything."""

from dataclasses import replace
from pathlib import Path

import pytest

from tollway.chain.reader import ContractAnswer
from tollway.cli.doctor import Finding, examine
from tollway.errors import ChainUnavailable
from tollway.identifiers import Address, ChainId
from tollway.settings import Listen, Settings, load_settings
from tollway.storage.database import connect_database
from tollway.storage.migrate import upgrade

NOW_S = 1_800_000_000.0


class OneBlock:
    """A chain of which one may ask the time."""

    chain_ids = (ChainId(84532),)

    def __init__(
        self, *, block_time: float = NOW_S, is_away: bool = False, payload: bytes | None = None
    ) -> None:
        self._is_away = is_away
        self._payload = int(block_time).to_bytes(32, "big") if payload is None else payload

    async def check_chain(self, chain_id: ChainId) -> None:
        if self._is_away:
            raise ChainUnavailable("no node answers")

    async def call_contract(
        self,
        chain_id: ChainId,
        *,
        to: Address | None,
        calldata: bytes,
        gas: int,
        bytes_max: int,
        deadline_s: float,
    ) -> ContractAnswer:
        return ContractAnswer(reverted=False, payload=self._payload)


def make_settings(folder: Path, **changes: object) -> Settings:
    settings = load_settings(
        {
            "TOLLWAY_RPC_LOCAL": "http://127.0.0.1:1",
            "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/tollway.sqlite3",
            "TOLLWAY_SECRET_KEY": "00112233445566778899aabbccddeeff" * 2,
        }
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


async def look(
    settings: Settings, chains: OneBlock | None = None, *, status: int | None = None, migrated: bool = False
) -> dict[str, Finding]:
    async def fetch_status(url: str) -> int | None:
        assert url.endswith("/readyz")
        return status

    database = connect_database(settings.database_url.reveal())
    if migrated:
        await database.open()
        await upgrade(database)
    found = await examine(
        settings,
        database=database,
        chains=chains or OneBlock(),  # type: ignore[arg-type]  # asked for two things only
        fetch_status=fetch_status,
        now_s=NOW_S,
    )
    await database.close()
    return {finding.check: finding for finding in found}


@pytest.mark.parametrize(
    ("chains", "level", "told"),
    [
        (OneBlock(), "ok", "agree"),
        (OneBlock(block_time=NOW_S + 59), "ok", "agree"),
        (OneBlock(block_time=NOW_S + 61), "failed", "clock is behind"),
        (OneBlock(block_time=NOW_S - 500), "warning", "lags"),
        (OneBlock(is_away=True), "failed", "no node answers"),
        (OneBlock(payload=b""), "note", "does not tell"),
    ],
)
async def test_a_chain_is_asked_for_its_id_and_its_time(
    tmp_path: Path, chains: OneBlock, level: str, told: str
) -> None:
    finding = (await look(make_settings(tmp_path), chains))["chain_84532"]
    assert finding.level == level
    assert told in finding.detail


async def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert (await look(make_settings(tmp_path)))["database"].level == "note"
    assert list(tmp_path.iterdir()) == []


async def test_a_migrated_database_is_well(tmp_path: Path) -> None:
    assert (await look(make_settings(tmp_path), migrated=True))["database"].level == "ok"


@pytest.mark.parametrize(("status", "level"), [(None, "note"), (200, "ok"), (503, "failed")])
async def test_a_running_gateway_is_asked_whether_it_is_ready(
    tmp_path: Path, status: int | None, level: str
) -> None:
    assert (await look(make_settings(tmp_path), status=status))["gateway"].level == level


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"allow_private_endpoints": True}, "private_endpoints", "warning"),
        ({"allow_mixed_networks": True}, "mixed_networks", "warning"),
        ({"admin_listen": Listen(host="0.0.0.0", port=9402)}, "admin_listen", "warning"),
        ({"secret_key": None}, "secret_key", "note"),
        ({}, "registration", "note"),
        ({}, "payees", "note"),
        ({}, "settings", "ok"),
    ],
)
async def test_risky_settings_are_named(
    tmp_path: Path, changes: dict[str, object], check: str, level: str
) -> None:
    assert (await look(make_settings(tmp_path, **changes)))[check].level == level


async def test_plain_settings_raise_no_warning(tmp_path: Path) -> None:
    found = await look(make_settings(tmp_path), status=200, migrated=True)
    assert [
        f.check for f in found.values() if f.level in ("warning", "failed") and f.check != "sqlite_version"
    ] == []
