"""The parts of the demo that need no running demo; the others are in test_demo.py."""

import json
import shlex
import socket
import stat
from pathlib import Path

import pytest

from tests.kit.file_modes import UMASKS, umask
from tollway.cli.demo_run import (
    PORT_DEFAULT,
    UNLIMITED,
    DemoFailed,
    DemoGuide,
    _explain,
    _remove_old_file,
    _remove_own_file,
    _write_private,
    choose_port,
    describe_sandbox,
    find_program,
    make_settings,
)
from tollway.errors import SettingsInvalid
from tollway.ids import ChainId, TxHash
from tollway.money import Asset
from tollway.sandbox.chain import ROLES, USDC_ADDRESS, Contract, Playground, load_test_usdc, make_account
from tollway.sandbox.tour import TourFailed
from tollway.web.pages.demo_wallet import FRAGMENT, DemoWallet

CHAIN = ChainId(84532)


class _NoSigner:
    """The wallet of a demo that no browser opens."""

    address = USDC_ADDRESS
    chain_id = CHAIN

    async def respond(self, method: str, params: object) -> object:
        raise AssertionError(method)


@pytest.fixture
def playground() -> Playground:
    return Playground(
        rpc_url="http://127.0.0.1:8545",
        token=Contract(artifact=load_test_usdc(), address=USDC_ADDRESS),
        usdc=Asset(chain_id=CHAIN, token=USDC_ADDRESS, symbol="USDC", decimals=6),
        native=Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18),
        accounts=tuple(make_account(role) for role in (*ROLES, "visitor", "browser")),
    )


def test_gives_away_three_accounts_and_keeps_its_own(playground: Playground) -> None:
    document = describe_sandbox(
        gateway_url="http://127.0.0.1:1",
        upstream_url="http://127.0.0.1:2",
        playground=playground,
        api_id="api_1",
    )
    assert [account["role"] for account in document["accounts"]] == ["provider", "caller", "stranger"]
    text = json.dumps(document)
    for role in ("gas", "visitor", "browser"):
        assert playground.account(role).private_key not in text


@pytest.mark.parametrize(("is_verbose", "printed"), [(False, ()), (True, ("provider", "caller", "stranger"))])
def test_prints_lines_that_can_be_copied_and_keys_only_on_demand(
    playground: Playground, is_verbose: bool, printed: tuple[str, ...]
) -> None:
    guide = DemoGuide(
        gateway_url="http://127.0.0.1:1",
        upstream_url="http://127.0.0.1:2",
        playground=playground,
        api_id="api_1",
        payment=TxHash(b"\x11" * 32),
        signature="0x" + "22" * 65,
        key_file=Path("/some where/caller.key"),
        demo_wallet=DemoWallet(_NoSigner(), entropy=lambda count: b"\x01" * count),
    )
    text = "\n".join(guide.format_lines(is_verbose=is_verbose))
    assert f"-H 'X-Payment-Tx: 0x{'11' * 32}'" in text
    assert "TOLLWAY_KEY_FILE='/some where/caller.key'" in text
    assert ' mcp --max-price "0.05 USDC" --budget "1 USDC"' in text
    assert f"web page  http://127.0.0.1:1/apis/api_1{FRAGMENT}AQEB" in text
    for role in (*ROLES, "visitor", "browser"):
        assert (playground.account(role).private_key in text) is (role in printed)


def test_names_the_program_so_that_any_folder_can_run_it() -> None:
    program = shlex.split(find_program())[0]
    assert program == "tollway" or Path(program).is_absolute()


def test_a_gateway_for_play_is_loopback_open_and_unlimited(tmp_path: Path) -> None:
    gas = make_account("gas")
    settings = make_settings(tmp_path, port=8402, rpc_url="http://127.0.0.1:8545", gas_key=gas.private_key)
    assert settings.public_url == "http://127.0.0.1:8402"
    assert settings.listen.is_loopback
    assert settings.admin_listen is None
    assert settings.allow_private_endpoints
    assert settings.registration == "open"
    limits = settings.limits
    assert limits.registrations_per_hour == limits.edits_per_hour == UNLIMITED > 1_000_000
    assert limits.signed_requests_per_minute == limits.authenticated_requests_per_minute == UNLIMITED
    (network,) = settings.networks
    assert network.rules.chain_id == CHAIN
    assert network.rules.confirmations == ((0, 1),)
    assert [key.address for key in network.settlement.gas_keys] == [gas.address]
    assert (settings.x402, settings.mpp) == (True, True)
    assert gas.private_key[2:] not in repr(settings)


def test_takes_the_wanted_port_or_fails_when_it_is_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DemoFailed, match=f"port {port} cannot be used"):
            choose_port(port)
    assert choose_port(port) == port
    assert choose_port(0) > 0


def test_takes_another_port_when_the_default_port_is_in_use() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", PORT_DEFAULT))
            taken.listen()
        except OSError:
            pass  # another process has it, which serves as well
        assert choose_port(None) != PORT_DEFAULT


@pytest.mark.parametrize("mask", UMASKS)
def test_writes_for_its_owner_alone_and_leaves_no_half_file(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "sandbox.json"
    path.write_text("old")
    with umask(mask):
        _write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(DemoFailed, match="cannot be written"):
        _write_private(tmp_path / "nowhere" / "file", "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DemoFailed, match="cannot be written"):
        _write_private(tmp_path / "folder", "new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "sandbox.json"]


def test_an_old_sandbox_file_goes_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.json"
    path.write_text("old")
    _remove_old_file(path)
    assert not path.exists()
    _remove_old_file(path)
    with pytest.raises(DemoFailed, match="cannot be replaced"):
        _remove_old_file(tmp_path)


def test_removes_only_the_file_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.json"
    path.write_text("of another demo")
    _remove_own_file(path, "mine")
    assert path.exists()
    _remove_own_file(path, "of another demo")
    assert not path.exists()
    _remove_own_file(path, "mine")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ExceptionGroup("several", [ExceptionGroup("more", [TourFailed("the step")])]), "the step"),
        (SettingsInvalid(["one", "two"]), "one; two"),
        (TimeoutError(), "a part of the demo did not respond in time"),
        (KeyError("odd"), "KeyError: 'odd'"),
    ],
)
def test_a_failure_is_explained_by_its_first_cause(failure: Exception, words: str) -> None:
    assert _explain(failure) == words
