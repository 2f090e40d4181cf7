"""`tollway wallet`: key files that their owner alone can read, addresses, balances and payments."""

import json
import os

import pytest
from eth_account import Account

from tests.kit.file_modes import UMASKS, umask
from tests.kit.terminal import run_commands, split_commands
from tollway.client import Wallet, create_key_file

CHAIN = 84532


def test_wallet_new_prints_the_address_and_never_the_key(run, tmp_path):
    out = tmp_path / "new.key"
    done = run("wallet", "new", "--out", str(out))
    assert json.loads(done.stdout)["address"] == str(Wallet.from_file(out).address)
    assert out.read_text().strip()[2:] not in done.output
    assert out.stat().st_mode & 0o777 == 0o600
    assert run("wallet", "new", "--out", str(out)).exit_code == 2


@pytest.mark.parametrize("mask", UMASKS)
def test_a_key_file_is_readable_by_its_owner_alone(run, tmp_path, mask):
    with umask(mask):
        assert run("wallet", "new", "--out", str(tmp_path / "new" / "w.key")).exit_code == 0
    assert (tmp_path / "new" / "w.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
@pytest.mark.parametrize("words", [("wallet", "address"), ("history",), ("call", "api_1", "/x")])
def test_a_key_file_that_others_can_read_is_refused(run, gateway, environment, mode, words):
    os.chmod(environment["TOLLWAY_KEY_FILE"], mode)
    done = run(*words)
    assert done.exit_code == 2
    assert "chmod 600" in json.loads(done.stderr)["error"]["detail"]
    assert gateway.seen == []


@pytest.mark.process
def test_the_address_needs_no_gateway(run, environment, tmp_path):
    address = str(Wallet.from_file(tmp_path / "w.key").address)
    nowhere = {"TOLLWAY_GATEWAY": "http://127.0.0.1:1", "TOLLWAY_RPC": ""}
    assert json.loads(run("wallet", "address", env=nowhere).stdout) == {"address": address}
    shown = run_commands([("wallet", "address")], {**environment, "HOME": str(tmp_path)})
    assert shown.splitlines()[0] == address


def test_the_list_has_key_files_keystores_and_files_that_cannot_be_used(run, tmp_path):
    folder = tmp_path / "keys"
    made = str(create_key_file(folder / "a.key"))
    store = Account.encrypt(b"\x11" * 32, "password", kdf="pbkdf2", iterations=2)
    (folder / "b.key").write_text(json.dumps(store))
    (folder / "b.key").chmod(0o600)
    (folder / "c.key").write_text("no key")
    (folder / "c.key").chmod(0o600)
    (folder / "d.key").write_text("0x" + "11" * 32)
    (folder / "d.key").chmod(0o644)
    (folder / "tollway.sqlite3").write_text("")
    (folder / "tollway.sqlite3.key").write_text("11" * 32)  # the key of a gateway's database
    done = run("wallet", "list", "--folder", str(folder), "--key-file", str(folder / "a.key"))
    rows = {row["keyFile"].rpartition("/")[2]: row for row in json.loads(done.stdout)}
    assert sorted(rows) == ["a.key", "b.key", "c.key", "d.key"]
    assert rows["a.key"]["address"] == made
    assert rows["b.key"]["address"] == Account.from_key(b"\x11" * 32).address
    assert (rows["c.key"]["address"], rows["d.key"]["address"]) == (None, None)
    assert "32 bytes" in rows["c.key"]["problem"]
    assert "chmod 600" in rows["d.key"]["problem"]


@pytest.mark.process
def test_balances_are_of_every_node_and_asset(run, gateway, environment, tmp_path):
    gateway.balance = 1_500_000
    done = run("wallet", "balance")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["address"] == str(Wallet.from_file(tmp_path / "w.key").address)
    assert [(row["symbol"], row["amount"]) for row in document["balances"]] == [("ETH", "1"), ("USDC", "1.5")]
    shown = run_commands([("wallet", "balance")], {**environment, "HOME": str(tmp_path)})
    ((code, lines),) = split_commands(shown)
    assert (code, lines[0]) == (0, document["address"])
    assert [line.split() for line in lines[1:]] == [
        ["eip155:84532", "(base-sepolia)", "1", "ETH"],
        ["eip155:84532", "(base-sepolia)", "1.5", "USDC"],
    ]


def test_a_balance_without_a_node_or_with_a_node_that_is_away(run):
    done = run("wallet", "balance", env={"TOLLWAY_RPC": ""})
    assert done.exit_code == 2
    assert "--rpc" in json.loads(done.stderr)["error"]["detail"]
    done = run("wallet", "balance", "--rpc", f"{CHAIN}=http://127.0.0.1:1")
    assert done.exit_code == 3
    assert [(row["amount"], row["detail"]) for row in json.loads(done.stdout)["balances"]] == [
        (None, "no usable response from 127.0.0.1:1")
    ] * 2


@pytest.mark.process
def test_payments_on_a_terminal_have_their_whole_hash_and_fit_80_columns(gateway, environment, tmp_path):
    gateway.is_settling = True
    env = {**environment, "HOME": str(tmp_path)}
    commands = [("call", "api_1", "/a", "--rail", "tx"), ("call", "api_1", "/b"), ("wallet", "payments")]
    code, lines = split_commands(run_commands(commands, env))[-1]
    assert code == 0
    assert max(map(len, lines)) <= 80
    (paid,) = gateway.mined
    assert lines[0] == paid
    told = " ".join(" ".join(lines).split())
    assert "confirmed · 0 left · 0.01 USDC · eip155:84532 (base-sepolia) · to 0x2222…2222" in told
    assert "x402 charged · 0.01 USDC" in told
    assert "2 in all" in lines[-1]
