"""Backup and restore of a SQLite database: atomic, and a restore holds every balance."""

import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.kit.file_modes import UMASKS, read_modes, umask
from tollway.cli import operator
from tollway.cli.main import make_app
from tollway.storage.engine.database import ProcessLock
from tollway.storage.operator.restore_detection import BACKUP_GENERATION, mark_path

DATABASE = Path("tollway.sqlite3")
PAYMENT = (
    "INSERT INTO payment (chain_id, tx_hash, asset, payer, payee, value_units, taken_units, calls, state,"
    " block_number, block_hash, block_time, is_plain_ended, is_held, recorded_ms, checked_ms)"
    " VALUES (1, randomblob(32), 'native', x'01', x'02', 10, :taken, 0, 'final', 1, x'03', 1, 0, 0, 1, 1)"
)


class Office:
    environment: operator.OperatorEnvironment | None = None

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(make_app(), ["gateway", *arguments], obj=self.environment)

    def tell(self, *arguments: str) -> Any:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refuse(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code in (operator.FAILED, operator.LATER)
        *_log, last = result.stderr.splitlines()
        (problem,) = json.loads(last)["error"]["problems"]
        return str(problem)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLLWAY_RPC_SANDBOX", "http://127.0.0.1:1")
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", f"sqlite:///{DATABASE}")


@pytest.fixture
def office() -> Office:
    office = Office()
    assert office.run("migrate").exit_code == 0
    execute(DATABASE, PAYMENT, taken=0)
    return office


def execute(path: Path, statement: str, **values: object) -> Any:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def held(path: Path = DATABASE) -> list[int]:
    return [row[0] for row in execute(path, "SELECT is_held FROM payment ORDER BY id")]


def files() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_a_backup_is_one_private_file_with_a_report(office: Office) -> None:
    told = office.tell("backup", "copy.backup")
    path = Path("copy.backup")
    assert told == {
        "file": "copy.backup",
        "bytes": path.stat().st_size,
        "generation": 0,
        "payments": 1,
        "calls": 0,
        "balanced": True,
        "secretKeyFile": f"{DATABASE}.key",
        "recorded": True,
    }
    for table in ("audit_run", "backup_run"):  # what metrics expose, in the database and not in its copy
        assert len(execute(DATABASE, f"SELECT ended_ms FROM {table}")) == 1
        assert execute(path, f"SELECT ended_ms FROM {table}") == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert execute(path, "SELECT number FROM generation") == [(BACKUP_GENERATION,)]
    assert execute(path, "PRAGMA journal_mode") == [("delete",)]
    assert {name for name in files() if name.startswith("copy")} == {"copy.backup"}


@pytest.mark.parametrize("mask", UMASKS)
def test_databases_keys_and_backups_are_readable_by_their_owner_alone(mask: int) -> None:
    office = Office()
    with umask(mask):
        assert office.run("migrate").exit_code == 0
        execute(DATABASE, PAYMENT, taken=0)
        office.tell("backup", "copy")
        replaced = office.tell("restore", "copy")["replaced"]
        gateway = sqlite3.connect(DATABASE)
        gateway.execute("PRAGMA journal_mode=WAL").close()
        gateway.execute("UPDATE payment SET is_held = 1").close()
        gateway.commit()
    modes = read_modes(Path())
    gateway.close()
    wanted = {str(DATABASE), f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}.key", "copy", replaced}
    assert wanted <= modes.keys()
    assert {name: oct(modes[name]) for name in modes if modes[name] & 0o077} == {}


def test_a_backup_has_every_commit_and_leaves_the_database_unchanged(office: Office) -> None:
    """Its last commits stand in the log beside the file, and a gateway is in the middle of a transaction. With a library
    that does not support two writers the end of the backup is not recorded either."""
    lock = ProcessLock(Path(f"{DATABASE}.lock"))
    assert lock.acquire()
    office.environment = operator.OperatorEnvironment(is_write_safe=lambda: False)
    gateway = sqlite3.connect(DATABASE, isolation_level=None)
    gateway.execute("PRAGMA wal_autocheckpoint=0").close()
    gateway.execute(PAYMENT, {"taken": 0})
    log = Path(f"{DATABASE}-wal")
    before = log.read_bytes()
    gateway.execute("BEGIN IMMEDIATE")
    gateway.execute(PAYMENT, {"taken": 0})
    told = office.tell("backup", "copy")
    assert (told["payments"], told["recorded"]) == (2, False)
    gateway.execute("ROLLBACK")
    assert log.read_bytes() == before
    gateway.close()
    lock.release()


def test_a_backup_overwrites_a_file_with_force_alone(office: Office) -> None:
    Path("copy").write_text("precious")
    assert "--force" in office.refuse("backup", "copy")
    assert Path("copy").read_text() == "precious"
    office.tell("backup", "copy", "--force")
    for ending in ("", "-wal", ".generation", ".key"):
        assert "belongs to the database" in office.refuse("backup", f"./{DATABASE}{ending}", "--force")


def test_a_backup_of_nothing_makes_nothing() -> None:
    assert "no database" in Office().refuse("backup", "copy")
    assert files() == set()


READS = [
    ("audit",),
    ("admin", "log"),
    ("listings", "--suspended"),
    ("wallets", "--blocked"),
]


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_command_that_reads_makes_no_file_where_there_is_no_database(words: tuple[str, ...]) -> None:
    assert "no database" in Office().refuse(*words)
    assert files() == set()


def test_a_command_that_reads_makes_no_new_key_for_a_database_that_lost_its_own(office: Office) -> None:
    Path(f"{DATABASE}.key").unlink()
    office.tell("audit")
    assert not Path(f"{DATABASE}.key").exists()


def test_a_failed_backup_leaves_nothing_behind(office: Office) -> None:
    damage(DATABASE)
    assert "damaged" in office.refuse("backup", "copy")
    assert not [name for name in files() if name.startswith("copy")]


def test_a_backup_that_does_not_balance_is_kept_and_fails(office: Office) -> None:
    execute(DATABASE, PAYMENT, taken=7)
    result = office.run("backup", "copy")
    assert (result.exit_code, json.loads(result.stdout)["balanced"]) == (operator.FAILED, False)
    assert Path("copy").exists()


def test_a_restore_holds_everything_and_keeps_what_it_replaced(office: Office) -> None:
    office.tell("backup", "copy")
    execute(DATABASE, PAYMENT, taken=0)
    mark_path(DATABASE).write_text("41\n")
    DATABASE.chmod(0o640)
    told = office.tell("restore", "copy")
    assert (told["payments"], told["balanced"]) == (1, True)
    assert held() == [1]
    assert held(Path(told["replaced"])) == [0, 0]
    assert stat.S_IMODE(DATABASE.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(told["replaced"]).stat().st_mode) == 0o600
    assert execute(DATABASE, "SELECT number FROM generation") == [(42,)]
    assert mark_path(DATABASE).read_text() == "42\n"
    assert execute(DATABASE, "SELECT released_ms FROM restore") == [(None,)]
    assert held(Path("copy")) == [0]
    (payment,) = office.tell("audit")["heldPayments"]
    told = office.tell("audit", "--release")
    assert (told["heldPayments"], told["releasedPayments"], told["released"]) == ([], [payment], 1)
    assert office.tell("audit")["heldPayments"] == []
    assert held() == [0]


def test_a_restore_is_an_act_in_the_restored_database(office: Office) -> None:
    office.tell("backup", "copy")
    office.tell("restore", "copy", "--reason", "disk died")
    (entry,) = office.tell("admin", "log")["entries"]
    assert (entry["action"], entry["target"]) == ("restore_backup", str(Path("copy").absolute()))
    assert (entry["actor"], entry["reason"]) == (operator.describe_actor(), "disk died")


def test_the_write_ahead_log_of_the_replaced_file_is_not_applied_to_the_copy(office: Office) -> None:
    """A gateway that was killed has left its last commits there."""
    office.tell("backup", "copy")
    gateway = sqlite3.connect(DATABASE)
    gateway.execute("PRAGMA wal_autocheckpoint=0").close()
    gateway.execute(PAYMENT, {"taken": 0})
    gateway.commit()
    left = {ending: Path(f"{DATABASE}{ending}").read_bytes() for ending in ("", "-wal")}
    gateway.close()
    for ending, content in left.items():
        Path(f"{DATABASE}{ending}").write_bytes(content)
    told = office.tell("restore", "copy")
    assert held() == [1]
    assert held(Path(told["replaced"])) == [0, 0]


def test_a_damaged_database_is_replaced_with_its_log_and_kept_as_it_is(office: Office) -> None:
    office.tell("backup", "copy")
    DATABASE.write_bytes(b"damaged" * 1000)
    Path(f"{DATABASE}-wal").write_bytes(b"log")
    replaced = office.tell("restore", "copy")["replaced"]
    assert (Path(replaced).read_bytes(), Path(f"{replaced}-wal").read_bytes()) == (b"damaged" * 1000, b"log")
    assert not Path(f"{DATABASE}-wal").exists()
    assert held() == [1]


def test_a_copy_is_restored_where_there_is_no_database(office: Office) -> None:
    office.tell("backup", "copy")
    for path in (DATABASE, Path(f"{DATABASE}.key")):
        path.unlink()
    assert office.tell("restore", "copy")["replaced"] is None
    assert held() == [1]
    assert not Path(f"{DATABASE}.key").exists()  # a new one would open nothing


def test_a_file_that_the_operator_copied_himself_is_restored_too(office: Office) -> None:
    Path("plain").write_bytes(DATABASE.read_bytes())
    office.tell("restore", "plain")
    assert held() == [1]


def test_nothing_is_restored_under_a_gateway_that_serves(office: Office) -> None:
    office.tell("backup", "copy")
    gateway = ProcessLock(Path(f"{DATABASE}.lock"))
    assert gateway.acquire()
    before = DATABASE.read_bytes()
    result = office.run("restore", "copy")
    gateway.release()
    assert (result.exit_code, "stop it first" in result.stderr) == (operator.LATER, True)
    assert DATABASE.read_bytes() == before


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for start in range(4096 * 3, len(content), 4096):
        content[start : start + 64] = os.urandom(64)
    path.write_bytes(content)


UNFIT: dict[str, tuple[Any, str]] = {
    "no database": (
        lambda path: path.write_text("no database, and long enough to be read as one" * 9),
        "SQLite",
    ),
    "another program's": (
        lambda path: (path.unlink(), execute(path, "CREATE TABLE note (id)")),
        "no database of",
    ),
    "damaged": (damage, "damaged"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[: 4096 * 5]), "malformed"),
    "newer": (
        lambda path: (
            execute(path, "UPDATE alembic_version SET version_num = '9001_newer'"),
            execute(path, "UPDATE schema_floor SET revision = '9001_newer'"),
        ),
        "newer version",
    ),
    "from before the baseline": (
        lambda path: execute(path, "UPDATE alembic_version SET version_num = '0009_scale'"),
        "made by an older version",
    ),
    "missing": (lambda path: path.unlink(), "no file"),
}


@pytest.mark.parametrize(("spoil", "told"), UNFIT.values(), ids=UNFIT.keys())
def test_a_file_that_cannot_be_served_from_is_not_restored(office: Office, spoil: Any, told: str) -> None:
    office.tell("backup", "copy")
    spoil(Path("copy"))
    before = files(), DATABASE.read_bytes()
    assert told in office.refuse("restore", "copy")
    assert (files() - {f"{DATABASE}.lock"}, DATABASE.read_bytes()) == (
        before[0] - {f"{DATABASE}.lock"},
        before[1],
    )


@pytest.mark.parametrize("name", ["another program's", "newer", "from before the baseline"])
def test_tables_that_this_version_does_not_know_are_not_backed_up(office: Office, name: str) -> None:
    spoil, reported = UNFIT[name]
    spoil(DATABASE)
    before = DATABASE.read_bytes()
    assert reported in office.refuse("backup", "copy")
    assert not any(name.startswith("copy") for name in files())
    assert DATABASE.read_bytes() == before


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_postgres_has_its_own_way(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", "postgresql://user@127.0.0.1:1/name")
    monkeypatch.setenv("TOLLWAY_SECRET_KEY", bytes(range(32)).hex())
    told = Office().refuse(command, "copy")
    assert "point in time" in told
    assert "audit --restored" in told


def test_no_command_but_serve_and_doctor_reads_the_files_of_gas_keys(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit of systemd has the credentials of its own alone, and root's shell those of a gateway that runs."""
    monkeypatch.setenv("TOLLWAY_GAS_KEYS_SANDBOX", "/run/credentials/tollway.service/gas.key")
    for command in (
        "migrate",
        "audit",
        "backup copy.sqlite3",
        "restore copy.sqlite3",
        "listings --suspended",
        "wallets --blocked",
        "secrets",
    ):
        result = office.run(*command.split())
        assert result.exit_code == 0, (command, result.output)
    doctor = office.run("doctor")
    assert doctor.exit_code == operator.USAGE
    assert "gas.key cannot be used" in doctor.stderr
