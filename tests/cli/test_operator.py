"""The operator's commands: changes, output, exit codes, and when they must not write."""

import asyncio
import json
import os
import pwd
import re
import socket
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from tests.kit.chain import MemoryChain
from tests.kit.databases import open_database
from tests.kit.ledger_channels import open_channel
from tests.kit.ledger_records import CHAIN, NOW_MS
from tests.kit.listings import sample_listing
from tests.kit.sql_ledger import SqlLedger
from tests.kit.stores import ControlStores
from tollway.audit_log import REASON_LENGTH_MAX, AuditOrigin
from tollway.cli import operator
from tollway.cli.main import make_app
from tollway.config.settings import Settings
from tollway.errors import StorageUnavailable
from tollway.ids import Address, TxHash
from tollway.ledger.ledger import AuditReport
from tollway.storage.engine.database import ProcessLock, connect_database

WALLET, OWNER = Address(b"w" * 20), Address(b"o" * 20)
TX = TxHash(b"t" * 32)
LISTING = sample_listing(provider=WALLET)
BALANCED = AuditReport(payments=3, calls=5, wrong=(), held_calls=(), held_payments=(), closed_periods=24)


class FakeLedger:
    """What the operator may do to the books."""

    def __init__(self) -> None:
        self.report = BALANCED
        self.admitted: list[TxHash] = []
        self.origins: list[AuditOrigin] = []
        self.releases = 0
        self.restores = 0
        self.rewritten: list[int] = []
        self.is_away = False

    async def audit(self) -> AuditReport:
        if self.is_away:
            raise StorageUnavailable
        return self.report

    async def release_held(self, *, origin: AuditOrigin) -> int:
        self.origins.append(origin)
        self.releases += 1
        return 2

    async def mark_restored(self, *, origin: AuditOrigin) -> None:
        self.origins.append(origin)
        self.restores += 1
        self.report = replace(self.report, held_payments=("0xheld",))

    async def rewrite_periods(self, starts_ms: Sequence[int], *, origin: AuditOrigin) -> int:
        self.origins.append(origin)
        self.rewritten += starts_ms
        return len(starts_ms)

    async def unbind_wallet(self, wallet: Address, *, origin: AuditOrigin) -> Address | None:
        self.origins.append(origin)
        return OWNER if wallet == WALLET else None

    async def admit(self, tx_hash: TxHash, *, origin: AuditOrigin) -> None:
        self.origins.append(origin)
        self.admitted.append(tx_hash)


class Office:
    """A desk whose rooms outlive each command."""

    def __init__(self) -> None:
        self.operator_ledger: Any = FakeLedger()
        stores = ControlStores()
        self.catalog, self.moderation = stores.catalog, stores.moderation
        self.audit_log = stores.audit_log
        self.chains: Any = None
        self.settings: Any = None
        self.database: Any = None
        self.is_write_safe = False
        self.environment = operator.OperatorEnvironment(
            wire_gateway=cast("Any", self.furnish), is_write_safe=lambda: self.is_write_safe
        )

    def furnish(self, settings: Settings) -> "Office":
        self.settings = settings
        self.database = connect_database(settings.database_url.get_secret_value())
        return self

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(make_app(), ["gateway", *arguments], obj=self.environment)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLLWAY_RPC_SANDBOX", "http://127.0.0.1:1")


@pytest.fixture
def office() -> Office:
    office = Office()
    assert office.run("migrate").exit_code == 0
    return office


def test_migrate_makes_the_tables_and_can_run_again(office: Office) -> None:
    assert json.loads(office.run("migrate").stdout) == {"before": "current", "now": "current"}


@pytest.mark.parametrize(
    ("floor", "code", "told"),
    [
        ("0030_older", operator.DONE, {"before": "ahead", "now": "ahead"}),
        (
            "9001_newer",
            operator.FAILED,
            {
                "error": {
                    "code": "command_failed",
                    "problems": ["the database needs a newer version of Tollway than this one"],
                }
            },
        ),
    ],
)
def test_migrate_leaves_newer_tables_alone(office: Office, floor: str, code: int, told: Any) -> None:
    with sqlite3.connect("tollway.sqlite3") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9001_newer'")
        connection.execute("UPDATE schema_floor SET revision = ?", (floor,))
    connection.close()
    result = office.run("migrate")
    assert result.exit_code == code
    assert json.loads(result.stdout or result.stderr) == told


def test_all_invalid_settings_are_reported_and_no_command_runs(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLWAY_LISTEN", "x")
    monkeypatch.setenv("TOLLWAY_NOPE", "x")
    for command in (["serve"], ["migrate"], ["audit"], ["doctor"], ["admit", str(TX)]):
        result = office.run(*command)
        assert result.exit_code == operator.USAGE
        assert len(json.loads(result.stderr)["error"]["problems"]) == 2
    assert office.operator_ledger.admitted == []


def test_audit_reports_balances_and_held_calls(office: Office) -> None:
    result = office.run("audit")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "balanced": True,
        "payments": 3,
        "calls": 5,
        "wrong": [],
        "closedPeriods": 24,
        "markedPeriods": 0,
        "wrongPeriods": [],
        "heldCalls": [],
        "heldPayments": [],
        "releasedPayments": [],
        "released": 0,
        "rewrittenPeriods": 0,
        "recorded": True,
        "comparedChannels": None,
        "held": [],
    }
    assert office.operator_ledger.rewritten == []
    assert office.operator_ledger.releases == 0


class Chains:
    """A chain in memory as the command opens it."""

    def __init__(self, chain: MemoryChain) -> None:
        self.chain = chain

    async def __aenter__(self) -> MemoryChain:
        return self.chain

    async def __aexit__(self, *_: object) -> None:
        pass


def add_channel(*, claimed: int) -> None:
    """A channel in the ledger of the office, which has claimed so much."""

    async def work() -> None:
        async with open_database("sqlite:///tollway.sqlite3") as database:
            ledger = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS)
            await ledger.open()
            await open_channel(ledger, 1_000, total_claimed=claimed)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("claimed", "exit_code"), [(0, operator.DONE), (7, operator.FAILED)], ids=["equal", "another sum"]
)
def test_audit_chain_compares_channels_and_a_difference_is_a_finding(
    office: Office, claimed: int, exit_code: int
) -> None:
    office.chains = Chains(MemoryChain(CHAIN))
    add_channel(claimed=claimed)
    result = office.run("audit", "--chain")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["comparedChannels"]) == (exit_code, 1)
    assert found["balanced"] is (claimed == 0)
    assert [line.split(" has ")[-1].split(" of ")[-1] for line in found["wrong"]][:1] == (
        ["claimed 0 there, and 7 in the ledger"] if claimed else []
    )


def test_audit_chain_without_an_answer_of_the_chain_is_later_and_never_right(office: Office) -> None:
    chain = MemoryChain(CHAIN)
    chain.disconnect(CHAIN)
    office.chains = Chains(chain)
    add_channel(claimed=0)
    result = office.run("audit", "--chain")
    assert (result.exit_code, result.stdout) == (operator.LATER, "")
    (problem,) = json.loads(result.stderr)["error"]["problems"]
    assert f"The payment channels on eip155:{CHAIN} were not compared" in problem


def test_a_plain_audit_asks_no_chain(office: Office) -> None:
    chain = MemoryChain(CHAIN)
    office.chains = Chains(chain)
    add_channel(claimed=0)
    assert office.run("audit").exit_code == operator.DONE
    assert sum(chain.requests.values()) == 0


def test_audit_fails_when_a_closed_hour_differs_and_holds_no_money_for_it(office: Office) -> None:
    wrong = ("closed period of api_1: +1 calls",)
    office.operator_ledger.report = replace(BALANCED, wrong_periods=wrong, marked_periods=2)
    result = office.run("audit")
    assert result.exit_code == operator.FAILED
    found = json.loads(result.stdout)
    assert (found["balanced"], found["wrongPeriods"], found["markedPeriods"]) == (True, list(wrong), 2)
    office.run("audit", "--release")
    assert office.operator_ledger.releases == 1


def test_audit_fails_when_the_ledger_does_not_balance_and_releases_nothing(office: Office) -> None:
    office.operator_ledger.report = replace(BALANCED, wrong=("payment 7",))
    assert office.run("audit").exit_code == operator.FAILED
    result = office.run("audit", "--release")
    assert result.exit_code == operator.FAILED
    assert "payment 7" in result.stderr
    assert office.operator_ledger.releases == 0


def test_audit_restored_holds_and_lists_the_balances(office: Office) -> None:
    assert json.loads(office.run("audit", "--restored").stdout)["heldPayments"] == ["0xheld"]
    assert office.operator_ledger.restores == 1


@pytest.mark.parametrize("is_balanced", [True, False])
def test_audit_rewrite_marks_wrong_closed_hours(office: Office, is_balanced: bool) -> None:
    wrong = () if is_balanced else ("payment 7",)
    office.operator_ledger.report = replace(
        BALANCED, wrong=wrong, wrong_periods=("one", "two"), wrong_period_starts=(7, 9)
    )
    result = office.run("audit", "--rewrite")
    assert result.exit_code == (operator.DONE if is_balanced else operator.FAILED)
    assert json.loads(result.stdout)["rewrittenPeriods"] == 2
    assert office.operator_ledger.rewritten == [7, 9]


@pytest.mark.parametrize("other", ["--release", "--rewrite"])
def test_a_restore_is_not_declared_and_released_at_once(office: Office, other: str) -> None:
    assert office.run("audit", "--restored", other).exit_code == operator.USAGE
    assert (office.operator_ledger.restores, office.operator_ledger.releases) == (0, 0)


def test_audit_release_frees_held_balances(office: Office) -> None:
    office.run("audit", "--restored")
    found = json.loads(office.run("audit", "--release").stdout)
    assert (found["heldPayments"], found["releasedPayments"], found["released"]) == ([], ["0xheld"], 2)


def test_an_unavailable_database_exits_with_later(office: Office) -> None:
    office.operator_ledger.is_away = True
    result = office.run("audit")
    assert result.exit_code == operator.LATER
    assert json.loads(result.stderr)["error"]["code"] == "storage_unavailable"


def test_admit_takes_a_hash_in_any_case(office: Office) -> None:
    assert office.run("admit", str(TX).upper()).exit_code == 0
    assert office.operator_ledger.admitted == [TX]


@pytest.mark.parametrize(
    "arguments",
    [
        ("admit", "0x12"),
        ("wallets", "block", "0x12"),
        ("wallets", "unblock", "x"),
        ("wallets", "unbind", "x"),
    ],
)
def test_a_malformed_argument_is_wrong_usage(office: Office, arguments: tuple[str, ...]) -> None:
    assert office.run(*arguments).exit_code == operator.USAGE


def test_a_wallet_is_unbound_from_its_owner(office: Office) -> None:
    for wallet, owner in ((WALLET, str(OWNER)), (OWNER, None)):
        result = office.run("wallets", "unbind", str(wallet), "--reason", "the owner lost the key")
        expected = {"wallet": str(wallet), "owner": owner, "changed": owner is not None}
        assert json.loads(result.stdout) == expected
    assert office.operator_ledger.origins[0].reason == "the owner lost the key"


async def test_a_wallet_is_blocked_until_it_is_unblocked(office: Office) -> None:
    import anyio.to_thread

    async def run(*arguments: str) -> dict[str, Any]:
        result = await anyio.to_thread.run_sync(lambda: office.run(*arguments))
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    assert (await run("wallets", "block", str(WALLET), "--reason", "spam"))["changed"] is True
    assert office.moderation.find_block(WALLET) is not None
    assert [block.reason for block in await office.moderation.list_blocked()] == ["spam"]
    assert (await run("wallets", "block", str(WALLET)))["changed"] is False
    assert (await run("wallets", "unblock", str(WALLET)))["changed"] is True
    assert office.moderation.find_block(WALLET) is None
    assert (await run("wallets", "unblock", str(WALLET)))["changed"] is False


async def test_a_listing_is_suspended_until_it_is_restored(office: Office) -> None:
    import anyio.to_thread

    async def run(*arguments: str) -> int:
        return (await anyio.to_thread.run_sync(lambda: office.run(*arguments))).exit_code

    async def suspended() -> bool:
        entry = await office.catalog.find(LISTING.id)
        assert entry is not None
        return entry.listing.suspended_ms is not None

    await office.catalog.publish(LISTING)
    for command, expected in (("suspend", True), ("suspend", True), ("restore", False), ("restore", False)):
        assert await run("listings", command, LISTING.id) == 0
        assert await suspended() is expected
    assert await run("listings", "suspend", "api_unknown") == operator.FAILED
    versions = await office.catalog.terms_since(LISTING.id, 0)
    assert [version.status for version in versions] == ["active", "suspended", "active"]
    assert versions[0].since_ms >= versions[1].since_ms > versions[2].since_ms == LISTING.created_ms


async def test_the_moderated_wallets_and_listings_are_listed(office: Office) -> None:
    import anyio.to_thread

    async def run(*arguments: str) -> Any:
        result = await anyio.to_thread.run_sync(lambda: office.run(*arguments))
        assert result.exit_code == operator.DONE, result.output
        return json.loads(result.stdout)

    assert await run("wallets", "--blocked") == {"blocked": []}
    assert await run("listings", "--suspended") == {"suspended": []}
    await office.catalog.publish(LISTING)
    await run("wallets", "block", str(WALLET), "--reason", "spam")
    await run("listings", "suspend", LISTING.id, "--reason", "under review")
    (blocked,) = (await run("wallets", "--blocked"))["blocked"]
    assert (blocked["wallet"], blocked["reason"]) == (str(WALLET), "spam")
    (suspended,) = (await run("listings", "--suspended"))["suspended"]
    assert suspended["reason"] == "under review"
    assert (suspended["id"], suspended["name"], suspended["provider"]) == (
        LISTING.id,
        LISTING.name,
        str(WALLET),
    )
    assert re.fullmatch(r"20[0-9-]+T[0-9:.]+Z", suspended["suspendedAt"])


@pytest.mark.parametrize("group", ["wallets", "listings"])
def test_a_group_without_its_option_and_command_explains_itself(office: Office, group: str) -> None:
    for options in ((), ("--json",)):
        result = office.run(group, *options)
        assert result.exit_code == operator.USAGE
        assert "Commands:" in result.output


WRITING = [("migrate",), ("audit", "--release"), ("audit", "--restored"), ("admit", str(TX)), ("wallets", "block", str(WALLET)),
           ("wallets", "unblock", str(WALLET)), ("wallets", "unbind", str(WALLET)), ("listings", "suspend", "api_1")]  # fmt: skip


@pytest.mark.parametrize("arguments", WRITING)
def test_beside_a_running_gateway_an_old_sqlite_is_not_written(
    office: Office, arguments: tuple[str, ...]
) -> None:
    gateway = ProcessLock(Path("tollway.sqlite3.lock"))
    assert gateway.acquire()
    try:
        result = office.run(*arguments)
    finally:
        gateway.release()
    assert result.exit_code == operator.LATER
    assert "stop the gateway" in result.stderr
    assert (office.operator_ledger.admitted, office.operator_ledger.releases) == ([], 0)
    assert office.moderation.find_block(WALLET) is None


def test_beside_a_running_gateway_a_mended_sqlite_is_written(office: Office) -> None:
    office.is_write_safe = True
    gateway = ProcessLock(Path("tollway.sqlite3.lock"))
    assert gateway.acquire()
    assert office.run("admit", str(TX)).exit_code == 0
    gateway.release()


def test_reading_beside_a_running_gateway_is_free(office: Office) -> None:
    gateway = ProcessLock(Path("tollway.sqlite3.lock"))
    assert gateway.acquire()
    assert office.run("audit").exit_code == 0
    gateway.release()


def test_the_lock_is_free_again_after_a_command(office: Office) -> None:
    office.run("admit", str(TX))
    gateway = ProcessLock(Path("tollway.sqlite3.lock"))
    assert gateway.acquire()
    gateway.release()


def test_reading_makes_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", "sqlite:///nothing.sqlite3")
    result = Office().run("audit")
    assert result.exit_code == operator.FAILED
    assert not Path("nothing.sqlite3").exists()


@pytest.mark.parametrize(
    "arguments",
    [("admit", str(TX)), ("audit", "--release"), ("audit", "--restored"), ("audit", "--rewrite")],
    ids=" ".join,
)
def test_an_act_has_the_user_the_host_and_the_reason(office: Office, arguments: tuple[str, ...]) -> None:
    assert office.run(*arguments, "--reason", "  ticket 7 ").exit_code == operator.DONE
    (origin,) = office.operator_ledger.origins
    user = pwd.getpwuid(os.getuid()).pw_name
    assert origin.actor.endswith(f"{user}@{socket.gethostname()}")
    assert origin.reason == "ticket 7"
    assert origin.at_ms > 1_600_000_000_000


@pytest.mark.parametrize(
    ("number", "environment", "actor"),
    [
        (0, {}, "root"),
        (0, {"SUDO_USER": "alice"}, "alice as root"),
        (0, {"SUDO_USER": "ali\x1b[2J"}, "ali?[2J as root"),
        (4_000_000, {"SUDO_USER": "alice"}, "uid 4000000"),
    ],
)
def test_the_actor_is_the_user_behind_the_process(
    monkeypatch: pytest.MonkeyPatch, number: int, environment: dict[str, str], actor: str
) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getuid", lambda: number)
    assert operator.describe_actor() == f"{actor}@{socket.gethostname()}"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("x" * (REASON_LENGTH_MAX + 1), "at most 200"),
        ("two\nlines", "U+000A"),
        ("hidden\u202etext", "U+202E"),
    ],
)
@pytest.mark.parametrize(
    "command", [("listings", "suspend", "api_1"), ("wallets", "block", str(WALLET)), ("admit", str(TX))]
)
def test_a_reason_is_one_short_line_of_plain_text(
    office: Office, command: tuple[str, ...], reason: str, told: str
) -> None:
    result = office.run(*command, "--reason", reason)
    assert result.exit_code == operator.USAGE
    assert told in " ".join(result.stderr.split())
    assert office.operator_ledger.admitted == []
