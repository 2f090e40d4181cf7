"""Settings: environment over file over default, unknown keys refused, every problem at once, secrets unseen."""

import os
import re
import stat
from pathlib import Path

import pytest

import tollway
from tests.kit.file_modes import UMASKS, umask
from tests.kit.narrowing import existing
from tollway.chain.networks import FINALITY_DEPTH, NetworkProfile
from tollway.config.settings import (
    CLIENT_NAMES,
    SETTING_NAMES,
    Listen,
    Secret,
    Settings,
    ensure_secret_key,
    load_settings,
)
from tollway.discovery.gateway_operator import LOGO_BYTES_MAX, Logo
from tollway.errors import SettingsInvalid
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.money import TokenDomain

KEY = "00112233445566778899aabbccddeeff" * 2
OLD_KEY = "ffeeddccbbaa99887766554433221100" * 2
RPC = {"TOLLWAY_RPC_BASE": "https://node.example.com/v1/hush-hush"}
GAS_KEY = "0x" + "4d" * 32
RPC_TOKEN = "0x" + "12" * 20
DEVELOPMENT_KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
OPTIMISM = '[[networks]]\npreset = "optimism"\nrpc_urls = ["https://n.example"]\n'
SEPOLIA = '[[networks]]\npreset = "base-sepolia"\nrpc_urls = ["https://n.example"]'
TWO_NODES = '[[networks]]\npreset = "optimism"\nrpc_urls = ["https://n.example", "https://m.example"]\nagreement_min = 2\n'
PUBLIC = {"TOLLWAY_LISTEN": "0.0.0.0:80", "TOLLWAY_SECRET_KEY": KEY}
CONTROL = {
    "TOLLWAY_CONTROL_WORKERS": "2",
    "TOLLWAY_DATABASE_URL": "postgresql://db.example/tollway",
    "TOLLWAY_SECRET_KEY": KEY,
}
WALLET = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_private(name: str | Path, text: str) -> None:
    Path(name).write_text(text)
    Path(name).chmod(0o600)


def load(environment: dict[str, str] | None = None, toml: str | None = None) -> Settings:
    if toml is not None:
        write_private("tollway.toml", toml)
    return load_settings({**RPC, **(environment or {})})


def problems(environment: dict[str, str] | None = None, toml: str | None = None) -> list[str]:
    with pytest.raises(SettingsInvalid) as refused:
        load(environment, toml)
    return refused.value.problems


def test_defaults_need_nothing_but_a_node() -> None:
    settings = load()
    assert settings.public_url == "http://127.0.0.1:8402"
    assert settings.listen == Listen(host="127.0.0.1", port=8402)
    assert settings.admin_listen == Listen(host="127.0.0.1", port=9402)
    assert settings.database_url.get_secret_value() == "sqlite:///tollway.sqlite3"
    assert settings.registration == "open"
    assert settings.limits == DEFAULT_LIMITS
    assert [network.name for network in settings.networks] == ["base"]


def test_environment_wins_over_the_file_and_the_file_over_the_default() -> None:
    toml = 'log_level = "debug"\nlog_format = "json"\n'
    settings = load({"TOLLWAY_LOG_LEVEL": "error"}, toml)
    assert (settings.log_level, settings.log_format) == ("error", "json")


@pytest.mark.parametrize(
    ("environment", "workers"),
    [
        ({}, 0),
        ({"TOLLWAY_CONTROL_WORKERS": "0", "TOLLWAY_CONTROL_LISTEN": "127.0.0.1:8402"}, 0),
        ({**CONTROL, "TOLLWAY_ADMIN_LISTEN": "off"}, 2),
        ({**CONTROL, "TOLLWAY_CONTROL_LISTEN": "127.0.0.2:8402"}, 2),
    ],
)
def test_control_workers_have_an_address_of_their_own(environment: dict[str, str], workers: int) -> None:
    """Without workers nothing listens there, and the address is as it may be."""
    assert load(environment).control_workers == workers


def test_an_empty_variable_counts_as_unset() -> None:
    assert load({"TOLLWAY_LOG_LEVEL": ""}).log_level == "info"


def test_config_is_read_from_where_it_was_named(tmp_path: Path) -> None:
    named, other = tmp_path / "a.toml", tmp_path / "b.toml"
    named.write_text('log_level = "debug"')
    other.write_text('log_level = "error"')
    assert load_settings({**RPC, "TOLLWAY_CONFIG": str(other)}).log_level == "error"
    assert load_settings({**RPC, "TOLLWAY_CONFIG": str(other)}, config=named).log_level == "debug"


REFUSED = [
    ({"TOLLWAY_PUBLIC_ULR": "x"}, "", "did you mean PUBLIC_URL"),
    ({}, "public_ulr = 1", "did you mean public_url"),
    ({}, "[limits]\nheaders_mx = 1", "did you mean headers_max"),
    ({}, "[limits]\nheaders_max = 0", "more than 0"),
    ({}, "[limits]\nheaders_max = -1", "whole number"),
    ({}, "[limits]\nheaders_max = 1.5", "whole number"),
    ({}, "[limits]\nheaders_max = true", "whole number"),
    ({}, "limits = 1", "must be a table"),
    ({"TOLLWAY_LIMIT_HEADERS_MAX": "many"}, "", "TOLLWAY_LIMIT_HEADERS_MAX"),
    ({"TOLLWAY_PUBLIC_URL": "gw.example.com"}, "", "http(s) URL"),
    ({"TOLLWAY_PUBLIC_URL": "https://gw.example.com/api"}, "", "an origin"),
    ({"TOLLWAY_PUBLIC_URL": "https://me:pw@gw.example.com"}, "", "http(s) URL"),
    ({"TOLLWAY_PUBLIC_URL": "https://gw.example.com:http"}, "", "TOLLWAY_PUBLIC_URL"),
    ({"TOLLWAY_LISTEN": "8402"}, "", "host:port"),
    ({"TOLLWAY_LISTEN": "127.0.0.1:99999"}, "", "host:port"),
    ({"TOLLWAY_LISTEN": "0.0.0.0:8402"}, "", "secret_key: "),
    ({"TOLLWAY_LISTEN": "0.0.0.0:8402"}, "", "public_url: "),
    ({"TOLLWAY_DATABASE_URL": "mysql://h/n"}, "", "sqlite:///"),
    ({"TOLLWAY_DATABASE_URL": "sqlite:///:memory:"}, "", "sqlite:///"),
    ({"TOLLWAY_DATABASE_URL": "postgresql://me@h1,h2/n?target_session_attrs=standby"}, "", "a gateway writes"),
    ({"TOLLWAY_DATABASE_URL": "postgresql://h/n"}, "", "secret_key: "),
    ({"TOLLWAY_RATE_LIMIT_URL": "http://me:pa55@cache.example"}, "", "must be redis://"),
    ({"TOLLWAY_SECRET_KEY": "abc"}, "", "64 hex digits"),
    ({"TOLLWAY_SECRET_KEY": "0" * 64}, "", "no random number"),
    ({"TOLLWAY_SECRET_KEY": KEY, "TOLLWAY_SECRET_KEY_FILE": "k"}, "", "not both"),
    ({"TOLLWAY_SECRET_KEY_FILE": "nowhere"}, "", "cannot be used"),
    ({"TOLLWAY_ALLOW_MIXED_NETWORKS": "maybe"}, "", "true or false"),
    ({"TOLLWAY_REGISTRATION": "closed"}, "", "open, allowlist"),
    ({"TOLLWAY_MCP_ORIGINS": "chat.example.com"}, "", "chat.example.com"),
    ({"TOLLWAY_MCP_ORIGINS": "https://chat.example.com/page"}, "", "web origin"),
    ({"TOLLWAY_REGISTRATION": "allowlist"}, "", "at least one wallet"),
    ({"TOLLWAY_REQUIRE_OWNERSHIP": "always"}, "", "true or false"),
    ({"TOLLWAY_NAME_SERVERS": "dns.example.com"}, "", "address of a name server"),
    ({"TOLLWAY_NAME_SERVERS": "192.0.2.53:0"}, "", "address of a name server"),
    ({"TOLLWAY_NAME_SERVERS": "192.0.2.53:65536"}, "", "address of a name server"),
    ({"TOLLWAY_NAME_SERVERS": "192.0.2.999"}, "", "TOLLWAY_NAME_SERVERS"),
    ({"TOLLWAY_NAME_SERVERS": "https://192.0.2.53/dns-query"}, "", "address of a name server"),
    ({"TOLLWAY_ALLOWLIST": "0x12"}, "", "40 hex digits"),
    ({"TOLLWAY_RETIRED_RECEIPT_SIGNERS": "0x12"}, "", "40 hex digits"),
    (
        {"TOLLWAY_RETIRED_RECEIPT_SIGNERS": ",".join(f"0x{n:040x}" for n in range(51))},
        "",
        "50 retired keys at most",
    ),
    ({"TOLLWAY_TRUSTED_PROXIES": "10.0.0.1/8"}, "", "host bits"),
    ({"TOLLWAY_UNFINAL_SPEND_MAX": "USDC=1"}, "", "TOLLWAY_UNFINAL_SPEND_MAX"),
    ({}, "unfinal_spend_max = 5", "must be a table"),
    ({"TOLLWAY_RPC_BASE": "ftp://node"}, "", "rpc_urls[0]"),
    ({"TOLLWAY_RPC_BASE_SEPOLIA": "https://node.example.com"}, "", "test money buy real calls"),
    ({"TOLLWAY_RPC_BASIS": "https://node.example.com"}, "", "no such setting"),
    ({}, "networks = 5", "[[networks]]"),
    ({}, '[[networks]]\npreset = "bass"\nrpc_urls = ["https://n.example"]', "unknown preset"),
    ({}, '[[networks]]\npreset = "optimism"', "at least one node"),
    ({}, '[[networks]]\npreset = "optimism"\nrpc_url = "x"', "did you mean rpc_urls"),
    ({}, '[[networks]]\npreset = "optimism"\nchain_id = 10', "its own chain_id"),
    ({}, '[[networks]]\nchain_id = 5\nrpc_urls = ["https://n.example"]', "assets: "),
    ({}, '[[networks]]\nchain_id = 8453\nrpc_urls = ["https://n.example"]\nassets = [{symbol = "ETH"}]', "stands twice"),
    ({}, '[[networks]]\nchain_id = 5\nrpc_urls = ["https://n.example"]\nassets = [{symbol = "A", token = "0x1"}]', "decimals"),
    ({}, '[[networks]]\npreset = "optimism"\nrpc_urls = ["https://n.example"]\nconfirmations = [["1", 1]]', "start at value 0"),
    ({}, '[[networks]]\npreset = "optimism"\nrpc_urls = ["https://n.example"]\nagreement_min = 2', "2 nodes cannot agree"),
    ({}, '[[networks]]\npreset = "optimism"\nrpc_urls = ["https://n.example"]\nagreement_min = 0', "more than 0"),
    ({}, f'{OPTIMISM}agreement_above = {{USDC = "5"}}', "agreement_min holds"),
    ({}, f'{TWO_NODES}agreement_above = 5', "must be a table"),
    ({}, f'{TWO_NODES}agreement_above = {{}}', "must be a table"),
    ({}, f'{TWO_NODES}agreement_above = {{USDC = "much"}}', "decimal number"),
    ({}, f'{TWO_NODES}agreement_above = {{USDT = "5"}}', "USDT is no asset"),
    ({}, f'{OPTIMISM}gas_keys = "abc"', "gas_keys[0]: a gas key must be 32 bytes"),
    ({}, f'{OPTIMISM}gas_keys = ["{GAS_KEY}", "{GAS_KEY}"]', "stands twice"),
    ({}, f'{OPTIMISM}gas_keys = "nowhere/gas.key"', "cannot be used"),
    ({}, f"{OPTIMISM}gas_keys = 5", "list of keys"),
    ({}, f'{OPTIMISM}gas_keys = "{DEVELOPMENT_KEY}"', "a public development key"),
    ({"TOLLWAY_GAS_KEYS_BASE": DEVELOPMENT_KEY}, "", "a public development key"),
    ({"TOLLWAY_GAS_KEYS_OPTIMISM": GAS_KEY}, "", "the network optimism is not configured"),
    ({"TOLLWAY_GAS_KEY_BASE": GAS_KEY}, "", "did you mean GAS_KEYS_BASE"),
    ({}, f'{OPTIMISM}settlement_min = "a little"', "settlement_min: "),
    ({}, f'{OPTIMISM}native_price = "-1"', "native_price: "),
    ({}, f'{OPTIMISM}gas_price_max_gwei = "-1"', "gas_price_max_gwei: "),
    ({}, f'{OPTIMISM}gas_floor = "1e9"', "gas_floor: "),
    ({}, f'{OPTIMISM}facilitator = "https://f.example"', "facilitator: must be a table"),
    ({}, f'{OPTIMISM}facilitator = {{url = "ftp://f.example"}}', "facilitator.url"),
    ({}, f'{OPTIMISM}facilitator = {{url = "https://f.example?key=x"}}', "without query"),
    ({}, f'{OPTIMISM}facilitator = {{url = "https://f.example", settle_headers = {{"a b" = "x"}}}}', "is not a header"),
    ({}, f'{OPTIMISM}facilitator = {{url = "https://f.example", verify_headers = {{A = "x\\ny"}}}}', "is not a header"),
    ({}, f'{OPTIMISM}gas_keys = "{GAS_KEY}"\nfacilitator = {{url = "https://f.example"}}', "either one or the other"),
    ({}, f'{OPTIMISM}assets = [{{symbol = "A", token = "{WALLET}", decimals = 6, name = "A"}}]', "go together"),
    ({}, f'{OPTIMISM}assets = [{{symbol = "ETH", name = "A", version = "1"}}]', "takes no authorisations"),
    ({"TOLLWAY_X402": "perhaps"}, "", "true or false"),
    ({"TOLLWAY_OPERATOR_CONTACT": "security@example.com"}, "", "TOLLWAY_OPERATOR_CONTACT: must be such as"),
    ({"TOLLWAY_OPERATOR_CONTACT": "javascript:alert(1)"}, "", "TOLLWAY_OPERATOR_CONTACT: must be such as"),
    ({}, 'operator_contact = "mailto:a@example.com\\nExpires: never"', "operator_contact: must be such as"),
    ({}, 'contact = "mailto:a@example.com"', "contact: there is no such setting"),
    ({}, 'operator_url = "javascript:alert(1)"', "operator_url: must be an https URL such as"),
    ({}, 'operator_url = "https://example.com/\\" onclick=x"', "operator_url: must be an https URL such as"),
    ({}, 'operator_url = "http://example.com"', "operator_url: must be an https URL such as"),
    ({}, 'operator_url = "https://user@example.com"', "operator_url: must be an https URL such as"),
    ({"TOLLWAY_TERMS_URL": "data:text/html,x"}, "", "TOLLWAY_TERMS_URL: must be an https URL such as"),
    ({"TOLLWAY_TERMS_URL": "https://example.com/" + "x" * 256}, "", "TOLLWAY_TERMS_URL: must be an https URL"),
    ({}, 'operator_name = "<b>Rain</b>"', "operator_name: must be one line of 1 to 80 characters"),
    ({}, 'operator_name = "Rain\\nLtd"', "operator_name: must be one line of 1 to 80 characters"),
    ({}, 'operator_name = "\\u202eniaR"', "operator_name: must be one line of 1 to 80 characters"),
    ({}, 'operator_name = 7', "operator_name: must be one line of 1 to 80 characters"),
    ({}, f'operator_name = "{"x" * 81}"', "operator_name: must be one line of 1 to 80 characters"),
    ({"TOLLWAY_OPERATOR_LOGO": "none.png"}, "", "TOLLWAY_OPERATOR_LOGO: none.png is no file"),
    ({}, 'operator_logo = "/dev/zero"', "operator_logo: /dev/zero is no file"),
    # What is fine alone and does harm or nothing together, and what looks right at a glance.
    ({"TOLLWAY_ADMIN_LISTEN": "127.0.0.1:8402"}, "", "admin_listen: 127.0.0.1:8402 is where callers are served"),
    ({"TOLLWAY_ADMIN_LISTEN": "0.0.0.0:8402"}, "", "admin_listen: 0.0.0.0:8402 is where callers are served"),
    ({"TOLLWAY_CONTROL_WORKERS": "1"}, "", "control_workers: processes of their own for the control plane need PostgreSQL"),
    ({**CONTROL, "TOLLWAY_CONTROL_LISTEN": "127.0.0.1:8402"}, "", "control_listen: 127.0.0.1:8402 is another listener"),
    ({**CONTROL, "TOLLWAY_CONTROL_LISTEN": "0.0.0.0:9402"}, "", "control_listen: 0.0.0.0:9402 is another listener"),
    ({**CONTROL, "TOLLWAY_CONTROL_WORKERS": "17"}, "", "TOLLWAY_CONTROL_WORKERS: must be 16 processes at most"),
    ({**CONTROL, "TOLLWAY_CONTROL_WORKERS": "-1"}, "", "TOLLWAY_CONTROL_WORKERS: must be a whole number"),
    ({}, "control_workers = true", "control_workers: must be a whole number"),
    ({"TOLLWAY_ADMIN_LISTEN": "0.0.0.0:9402"}, "", "admin_hosts: 0.0.0.0:9402 is reachable from other machines"),
    ({"TOLLWAY_ADMIN_HOSTS": "https://x.example"}, "", "TOLLWAY_ADMIN_HOSTS: https://x.example is no host name"),
    ({"TOLLWAY_OPERATORS": "0x12"}, "", "TOLLWAY_OPERATORS: "),
    ({"TOLLWAY_OPERATORS": WALLET, "TOLLWAY_ADMIN_LISTEN": "off"}, "", "operators: the operator's pages are off"),
    ({"TOLLWAY_OPERATORS": WALLET, "TOLLWAY_WEB_PAGES": "false"}, "", "operators: the operator's pages are off"),
    ({"TOLLWAY_DRAIN_NOTICE_S": "301"}, "", "TOLLWAY_DRAIN_NOTICE_S: must be 300 seconds at most"),
    ({"TOLLWAY_CALL_LOG": "some"}, "", "TOLLWAY_CALL_LOG: must be one of: all, failures, off"),
    ({"TOLLWAY_LISTEN": "::1:8402"}, "", "TOLLWAY_LISTEN: must be host:port"),
    ({"TOLLWAY_LISTEN": "[::1:8402"}, "", "TOLLWAY_LISTEN: must be host:port"),
    ({"TOLLWAY_LISTEN": "all of them:80", "TOLLWAY_SECRET_KEY": KEY}, "", "TOLLWAY_LISTEN: must be host:port"),
    ({**PUBLIC, "TOLLWAY_PUBLIC_URL": "http://0.0.0.0"}, "", "callers from outside cannot reach"),
    ({**PUBLIC, "TOLLWAY_PUBLIC_URL": "http://127.0.0.2"}, "", "callers from outside cannot reach"),
    ({**PUBLIC, "TOLLWAY_PUBLIC_URL": "http://me.localhost"}, "", "callers from outside cannot reach"),
    ({"TOLLWAY_PUBLIC_URL": "https://a b"}, "", "TOLLWAY_PUBLIC_URL: the public URL has no usable host"),
    ({"TOLLWAY_PUBLIC_URL": "https://*.example.com"}, "", "TOLLWAY_PUBLIC_URL: the public URL has no usable host"),
    ({"TOLLWAY_PUBLIC_URL": "https://gw.ex\tample.com"}, "", "TOLLWAY_PUBLIC_URL: must be an http(s) URL"),
    ({"TOLLWAY_PUBLIC_URL": "https://gw.example.com:0"}, "", "TOLLWAY_PUBLIC_URL: must be an http(s) URL"),
    ({"TOLLWAY_TRUSTED_PROXIES": "0.0.0.0/0"}, "", "would let every caller choose its client address"),
    ({"TOLLWAY_TRUSTED_PROXIES": "10.0.0.1,::/0"}, "", "would let every caller choose its client address"),
    ({"TOLLWAY_TRUSTED_PROXIES": "::ffff:0:0/96"}, "", "would let every caller choose its client address"),
    ({"TOLLWAY_TRUSTED_PROXIES": "proxy.internal"}, "", "TOLLWAY_TRUSTED_PROXIES: "),
    ({"TOLLWAY_UNFINAL_SPEND_MAX": "USCD:100"}, "", "USCD is no currency of a configured network"),
    ({"TOLLWAY_UNFINAL_SPEND_MAX": "USDC:1,USDC:100"}, "", "USDC stands twice"),
    ({"TOLLWAY_ALLOWLIST": WALLET}, "", "has no effect while registration is open"),
    ({"TOLLWAY_RPC_BASE": "https://n.example,https://n.example"}, "", "rpc_urls[1] stands twice"),
    ({}, TWO_NODES.replace("//m.", "//n."), "rpc_urls[1] stands twice"),
    ({"TOLLWAY_LIMIT_OWNER_RENEW_S": "16"}, "", "TOLLWAY_LIMIT_OWNER_RENEW_S: this limit is fixed now; leave it out"),
    ({}, "[limits]\nleader_lease_s = 1.0", "limits.leader_lease_s: this limit is fixed now"),
    ({}, "[limits]\nerc6492_gas = 1", "limits.erc6492_gas: this limit is fixed now"),
    ({}, "this is not TOML", "tollway.toml"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "toml", "text"), REFUSED)
def test_refuses_and_says_why(environment: dict[str, str], toml: str, text: str) -> None:
    """One clear line for each mistake; a second only where a value that was refused is missed elsewhere."""
    lines = problems(environment, toml)
    assert text in "\n".join(lines)
    assert len(lines) <= 2
    for line in lines:
        assert line.isprintable(), line
        assert 20 <= len(line) <= 240, line
        assert re.match(r"(TOLLWAY_[A-Z0-9_]+|[a-z_0-9.\[\]]+): \S", line), line


def test_a_readable_file_is_one_problem_beside_the_others() -> None:
    path = Path("tollway.toml")
    path.write_text(f'secret_key = "{KEY}"\nlog_level = "loud"\n')
    path.chmod(0o644)
    assert [line.partition(":")[0] for line in problems()] == ["tollway.toml", "log_level"]


def test_no_node_at_all_says_what_to_set() -> None:
    with pytest.raises(SettingsInvalid, match="TOLLWAY_RPC_BASE=https"):
        load_settings({})


def test_reports_all_problems_at_once() -> None:
    found = problems({"TOLLWAY_LISTEN": "x", "TOLLWAY_NOPE": "1"}, 'log_level = "loud"\n[limits]\nfoo = 1')
    assert len(found) == 4


def test_a_rule_between_settings_runs_beside_refused_values_of_other_settings() -> None:
    environment = {
        "TOLLWAY_LOG_LEVEL": "loud",
        "TOLLWAY_ADMIN_LISTEN": "127.0.0.1:8402",
        "TOLLWAY_REGISTRATION": "allowlist",
    }
    found = problems(environment, f'[[networks]]\npreset = "bass"\n{SEPOLIA}')
    named = ["TOLLWAY_LOG_LEVEL", "networks[0]", "networks", "admin_listen", "allowlist"]
    assert [line.partition(":")[0] for line in found] == named


def test_a_rule_whose_setting_is_refused_does_not_run() -> None:
    for environment in (
        {"TOLLWAY_LISTEN": "0.0.0.0", "TOLLWAY_DATABASE_URL": "postgresql://u@h/n"},
        {"TOLLWAY_ALLOWLIST": "0x12", "TOLLWAY_REGISTRATION": "allowlist"},
        {"TOLLWAY_UNFINAL_SPEND_MAX": "EURC:1", "TOLLWAY_RPC_OPTIMISM": "ftp://node"},
        {"TOLLWAY_ALLOW_MIXED_NETWORKS": "maybe", "TOLLWAY_RPC_BASE_SEPOLIA": "https://node.example"},
    ):
        assert len(problems(environment)) == 1, environment


@pytest.mark.parametrize(
    "name", ["_env_file", "_cli_parse_args", "PUBLIC_URL", "secret_keys", "unfinal_spend_max_nano"]
)
def test_a_name_of_the_model_or_of_its_library_is_no_setting(name: str) -> None:
    (line,) = problems(toml=f'{name} = "x"')
    assert line.startswith(f"{name}: there is no such setting")


def test_a_table_of_the_wrong_kind_is_one_problem_beside_the_environment() -> None:
    found = problems({"TOLLWAY_LIMIT_HEADERS_MAX": "50"}, "limits = 1\nnetworks = 5")
    assert [line.partition(":")[0] for line in found] == ["networks", "limits"]


def test_names_of_other_commands_are_no_error() -> None:
    package = Path(tollway.__file__).parent
    texts = [path.read_text() for name in ("cli", "client") for path in (package / name).glob("*.py")]
    read_elsewhere = set(re.findall(r"\"TOLLWAY_([A-Z_]+)\"", "".join(texts)))
    assert read_elsewhere <= CLIENT_NAMES | {key.upper() for key in SETTING_NAMES}
    assert load({f"TOLLWAY_{name}": "x" for name in CLIENT_NAMES - {"CONFIG"}}).public_url


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://GW.example.com/", "https://gw.example.com"),
        ("https://gw.example.com:443", "https://gw.example.com"),
        ("http://[::1]:8402", "http://[::1]:8402"),
    ],
)
def test_public_url_is_kept_as_an_origin(given: str, kept: str) -> None:
    assert load({"TOLLWAY_PUBLIC_URL": given}).public_url == kept


def test_a_network_without_preset_is_described_in_full() -> None:
    settings = load(
        toml="""
        allow_mixed_networks = true
        [[networks]]
        chain_id = 31337
        kind = "test"
        rpc_urls = ["http://127.0.0.1:8545", "http://127.0.0.1:8546"]
        agreement_min = 2
        agreement_above = {USDC = "100", ETH = "0.02"}
        confirmations = [["0", 1], ["2.5", 3]]
        assets = [{symbol = "ETH"}, {symbol = "USDC", token = "0x036CbD53842c5426634e7929541eC2318f3dCF7e", decimals = 6}]
        """
    )
    network = settings.networks[0]
    assert network.rules.chain_id == 31337
    assert network.rules.confirmations == ((0, 1), (2_500_000_000, 3))
    assert [(asset.symbol, asset.decimals) for asset in network.rules.assets] == [("ETH", 18), ("USDC", 6)]
    assert (len(network.rpc_urls), network.agreement_min) == (2, 2)
    assert network.rules.agreement_above == (("USDC", 100 * 10**9), ("ETH", 2 * 10**7))
    assert network.rules.finality_depth == FINALITY_DEPTH


@pytest.mark.parametrize(
    ("toml", "depth"),
    [
        ("", 1_800),
        ("confirmations = 5", 1_800),
        ("confirmations = 5_000", 5_000),
        ("finality_depth = 900", 900),
    ],
)
def test_finality_depth_is_the_presets_unless_a_setting_says_otherwise(toml: str, depth: int) -> None:
    settings = load(toml=f'[[networks]]\npreset = "base"\n{toml}')
    assert settings.networks[0].rules.finality_depth == depth


def test_refuses_a_finality_depth_that_a_payment_may_exceed() -> None:
    with pytest.raises(SettingsInvalid, match="finality_depth"):
        load(toml='[[networks]]\npreset = "base"\nfinality_depth = 599')


def test_variable_replaces_the_nodes_of_a_preset_in_the_file() -> None:
    toml = '[[networks]]\npreset = "base"\nconfirmations = 5\nrpc_urls = ["https://old.example"]'
    (network,) = load(toml=toml).networks
    assert (network.rules.confirmations, network.agreement_min) == (((0, 5),), 1)
    assert network.rpc_urls[0].get_secret_value() == RPC["TOLLWAY_RPC_BASE"]


def test_limits_are_overridden_by_name() -> None:
    settings = load({"TOLLWAY_LIMIT_HEADERS_MAX": "50"}, "[limits]\nrpc_deadline_s = 3.5\nheaders_max = 10")
    assert (settings.limits.headers_max, settings.limits.rpc_deadline_s) == (50, 3.5)


def test_operators_are_wallets() -> None:
    assert load({}).operators == frozenset()
    assert load({"TOLLWAY_OPERATORS": f"{WALLET},0x{'22' * 20}"}).operators == {
        Address.parse(WALLET),
        Address(b"\x22" * 20),
    }
    assert load({}, f'operators = ["{WALLET}"]').operators == {Address.parse(WALLET)}


def test_lists_and_maxima_from_the_environment() -> None:
    settings = load(
        {
            "TOLLWAY_REGISTRATION": "allowlist",
            "TOLLWAY_ALLOWLIST": f"{WALLET}, {WALLET.lower()}",
            "TOLLWAY_RETIRED_RECEIPT_SIGNERS": f"0x{'22' * 20}, {WALLET}, {WALLET.lower()}",
            "TOLLWAY_TRUSTED_PROXIES": "10.0.0.0/8,::1,::ffff:192.0.2.0/120",
            "TOLLWAY_MCP_ORIGINS": "https://Chat.example.com/,http://localhost:6274",
            "TOLLWAY_UNFINAL_SPEND_MAX": "USDC:100,ETH:0.05",
            "TOLLWAY_ADMIN_LISTEN": "off",
            "TOLLWAY_OPERATOR_CONTACT": "mailto:ops@gw.example.com",
            "TOLLWAY_NAME_SERVERS": "192.0.2.53, 192.0.2.54:5353,[2001:DB8::53]:5353,2001:db8::54",
        }
    )
    assert [(server.ip, server.port) for server in settings.name_servers] == [
        ("192.0.2.53", 53),
        ("192.0.2.54", 5353),
        ("2001:db8::53", 5353),
        ("2001:db8::54", 53),
    ]
    assert settings.allowlist == {Address.parse(WALLET)}
    assert settings.retired_receipt_signers == (Address(b"\x22" * 20), Address.parse(WALLET))
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1/128", "192.0.2.0/24")
    assert settings.mcp_origins == {"https://chat.example.com", "http://localhost:6274"}
    assert dict(settings.unfinal_spend_max_nano) == {"USDC": 100 * 10**9, "ETH": 5 * 10**7}
    assert settings.admin_listen is None
    assert settings.operator_contact == "mailto:ops@gw.example.com"


def test_secrets_never_show() -> None:
    environment = {
        "TOLLWAY_SECRET_KEY": KEY,
        "TOLLWAY_DATABASE_URL": "postgresql://u:pa55@h/n",
        "TOLLWAY_RATE_LIMIT_URL": "redis://:pa66@cache.example",
    }
    shown = repr(load(environment))
    for secret in ("pa55", "pa66", "hush-hush", KEY, repr(bytes.fromhex(KEY))):
        assert secret not in shown
    assert "hush" not in "\n".join(problems({"TOLLWAY_RPC_BASE": "ftp://node/hush"}))


@pytest.mark.parametrize("mask", UMASKS)
def test_the_key_file_is_made_once_private_and_read_again(mask: int) -> None:
    with umask(mask):
        first = ensure_secret_key(load())
    path = Path("tollway.sqlite3.key")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.secret_key is not None
    assert len(first.secret_key.get_secret_value()) == 32
    assert ensure_secret_key(load()).secret_key == first.secret_key


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_file_that_others_can_read_is_refused(mode: int) -> None:
    Path("gas.key").write_text(GAS_KEY)
    os.chmod("gas.key", mode)
    assert "chmod 600" in "\n".join(problems({"TOLLWAY_GAS_KEYS_BASE": "gas.key"}))
    ensure_secret_key(load())
    os.chmod("tollway.sqlite3.key", mode)
    assert "chmod 600" in "\n".join(problems())


def test_a_key_file_of_ones_own_serves_on_a_public_address() -> None:
    write_private("key", KEY)
    of_file = {"TOLLWAY_SECRET_KEY_FILE": "key", "TOLLWAY_LISTEN": "[::]:80"}
    settings = load({**of_file, "TOLLWAY_PUBLIC_URL": "https://gw.example.com"})
    assert settings.secret_key == Secret(bytes.fromhex(KEY))
    assert str(settings.listen) == "[::]:80"


@pytest.mark.parametrize("source", ["environment", "toml", "file"])
def test_the_first_of_several_keys_is_the_one_in_use(source: str) -> None:
    text = f"{KEY}\n  {OLD_KEY}\n"
    write_private("key", text)
    environment, toml = {
        "environment": ({"TOLLWAY_SECRET_KEY": text}, ""),
        "toml": ({}, f'secret_key = "{KEY} {OLD_KEY}"'),
        "file": ({"TOLLWAY_SECRET_KEY_FILE": "key"}, ""),
    }[source]
    settings = load(environment, toml)
    assert settings.secret_key == Secret(bytes.fromhex(KEY))
    assert settings.secret_keys == (Secret(bytes.fromhex(KEY)), Secret(bytes.fromhex(OLD_KEY)))
    assert OLD_KEY not in repr(settings)


def test_a_key_that_the_gateway_made_itself_is_changed_in_its_file() -> None:
    made = ensure_secret_key(load())
    path = Path("tollway.sqlite3.key")
    path.write_text(KEY + "\n" + path.read_text())
    assert made.secret_key is not None
    assert load().secret_keys == (Secret(bytes.fromhex(KEY)), made.secret_key)
    assert ensure_secret_key(load()).secret_keys == load().secret_keys


# ---- Settling authorisations.


def test_a_network_without_a_key_settles_nothing_and_says_what_it_would_cost() -> None:
    rules = load().networks[0].settlement
    assert not rules.has_rail
    assert (rules.min_nano, rules.gas_price_max_wei) == (10**7, 2 * 10**9)
    assert (rules.is_min_own, rules.native_price_nano) == (False, 3_000 * 10**9)
    assert (rules.gas_floor_wei, rules.listing_budget_wei) == (5 * 10**14, 10**17)
    assert rules.network_budget_wei == 10**18
    assert rules.block_time_s == 2.0
    assert load().x402
    assert load().mpp


def test_ethereum_settles_from_a_whole_dollar() -> None:
    toml = '[[networks]]\npreset = "ethereum"\nrpc_urls = ["https://n.example"]'
    assert load(toml=toml).networks[0].settlement.min_nano == 10**9


FACTORIES = "0xBA5ED110eFDBa3D005bfC882d75358ACBbB85842", "0x4e1DCf7AD4e460CfD30791CCC4F9c8a4f820ec67"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "",
            (
                "0x0BA5ED0c6AA8c49038F819E587E2633c4A9F428a",
                "0xBA5ED110eFDBa3D005bfC882d75358ACBbB85842",
                "0xa6B71E26C5e0845f74c812102Ca7114b6a896AB2",
                "0xC22834581EbC8527d974F8a1c97E1bEA4EF910BC",
                "0x4e1DCf7AD4e460CfD30791CCC4F9c8a4f820ec67",
            ),
        ),
        ("wallet_factories = []", ()),
        (f'wallet_factories = ["{FACTORIES[0]}"]', FACTORIES[:1]),
        (f'wallet_factories = ["{FACTORIES[0].lower()}", "{FACTORIES[1]}"]', FACTORIES),
    ],
)
def test_a_network_names_the_factories_that_may_deploy_a_wallet(line: str, expected: tuple[str, ...]) -> None:
    rules = load(toml=OPTIMISM + line).networks[0].settlement
    assert tuple(map(str, rules.wallet_factories)) == expected
    documented = (Path(__file__).parents[2] / "docs" / "gateway-behaviour.md").read_text()
    assert all(f"`{factory}`" in documented for factory in expected)


@pytest.mark.parametrize(
    "network",
    [
        'preset = "sandbox"\n',
        'preset = "local"\nassets = [{symbol = "ETH"}]\n',
        'chain_id = 8453\nassets = [{symbol = "ETH"}]\n',
    ],
)
def test_a_network_without_known_factories_allows_none(network: str) -> None:
    write_private("tollway.toml", f'[[networks]]\n{network}rpc_urls = ["https://n.example"]\n')
    assert load_settings({}).networks[0].settlement.wallet_factories == ()


OPTIMISM_USDC = "0x0b2C639c533813f4Aa9D7837CAf62653d097Ff85"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('["0x01"]', r"wallet_factories\[0\]"),
        (
            f'["{FACTORIES[0]}", "0xcA11bde05977b3631167028862bE2a173976CA11"]',
            r"wallet_factories\[1\]: 0xcA11.* is no wallet factory",
        ),
        (f'["{OPTIMISM_USDC}"]', "is no wallet factory"),
        ('["0x' + "00" * 20 + '"]', "is no wallet factory"),
        (f'["{FACTORIES[0]}", "{FACTORIES[0]}"]', r"wallet_factories\[1\] stands twice"),
        ("[" + ", ".join(f'"0x{number:040x}"' for number in range(1, 34)) + "]", "at most 32"),
        ("5", "must be a list of strings"),
    ],
)
def test_other_contracts_are_no_factories(value: str, problem: str) -> None:
    with pytest.raises(SettingsInvalid, match=problem):
        load(toml=OPTIMISM + f"wallet_factories = {value}")


def test_gas_keys_come_from_hex_from_files_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "gas.key"
    write_private(path, "0x" + "5e" * 32 + "\n")
    settings = load(
        {"TOLLWAY_GAS_KEYS_BASE": f"{GAS_KEY}, {path}", "TOLLWAY_X402": "off"},
        OPTIMISM + f'gas_keys = ["{path}"]\nsettlement_min = "0.02"\ngas_price_max_gwei = 0.5\n'
        'gas_floor = "0.01"\nlisting_gas_budget = "0.2"',
    )
    optimism, base = settings.networks
    assert len(base.settlement.gas_keys) == 2
    assert base.settlement.gas_keys[1].address == optimism.settlement.gas_keys[0].address
    rules = optimism.settlement
    assert (rules.min_nano, rules.gas_price_max_wei) == (2 * 10**7, 5 * 10**8)
    assert rules.is_min_own
    assert not base.settlement.is_min_own
    assert (rules.gas_floor_wei, rules.listing_budget_wei) == (10**16, 2 * 10**17)
    assert rules.network_budget_wei == 2 * 10**18
    assert not settings.x402


def test_the_price_of_the_native_coin_is_the_operators_to_say_and_unknown_elsewhere() -> None:
    assert load({}, OPTIMISM + 'native_price = "4321.5"').networks[0].settlement.native_price_nano == (
        4_321_500_000_000
    )
    other = '[[networks]]\nchain_id = 5\nrpc_urls = ["https://n.example"]\nassets = [{symbol = "ETH"}]'
    assert load(toml=other).networks[0].settlement.native_price_nano is None


def test_the_budget_of_a_network_and_its_block_time_are_the_operators_to_say() -> None:
    network = load({}, OPTIMISM + 'gas_budget = "0.3"\nblock_time_s = 0.5').networks[0]
    assert network.settlement.network_budget_wei == 3 * 10**17
    assert network.block_time_s == network.settlement.block_time_s == 0.5


def test_a_command_that_signs_nothing_leaves_the_files_of_gas_keys_out(tmp_path: Path) -> None:
    missing = f'gas_keys = ["/run/credentials/tollway.service/gas.key", "{GAS_KEY}"]'
    config = tmp_path / "tollway.toml"
    write_private(config, OPTIMISM + missing)
    environment = {**RPC, "TOLLWAY_GAS_KEYS_BASE": str(tmp_path / "gas.key")}
    settings = load_settings(environment, config=config, gas_key_files="leave_out")
    assert [len(network.settlement.gas_keys) for network in settings.networks] == [1, 0]
    with pytest.raises(SettingsInvalid, match=r"gas\.key cannot be used"):
        load_settings(environment, config=config)


@pytest.mark.parametrize(
    "text", ["networks = 5", "networks = [5]", f"{OPTIMISM}gas_keys = 5", f"{OPTIMISM}gas_keys = [5]"]
)
def test_leaving_files_out_hides_no_problem(tmp_path: Path, text: str) -> None:
    config = tmp_path / "tollway.toml"
    config.write_text(text)
    with pytest.raises(SettingsInvalid, match="networks"):
        load_settings({}, config=config, gas_key_files="leave_out")


def test_a_development_key_serves_on_a_test_network() -> None:
    toml = '[[networks]]\npreset = "sandbox"\nrpc_urls = ["http://127.0.0.1:8545"]'
    settings = load(
        {"TOLLWAY_GAS_KEYS_SANDBOX": DEVELOPMENT_KEY, "TOLLWAY_ALLOW_MIXED_NETWORKS": "yes"}, toml
    )
    assert settings.networks[0].settlement.has_rail


def test_neither_gas_keys_nor_headers_of_a_facilitator_ever_show() -> None:
    toml = 'facilitator = {url = "https://f.example/x402", settle_headers = {Authorization = "Bearer hush"}}'
    settings = load({"TOLLWAY_GAS_KEYS_BASE": GAS_KEY}, OPTIMISM + toml)
    facilitator = existing(settings.networks[0].settlement.facilitator)
    assert facilitator.settle_headers == (("Authorization", "Bearer hush"),)
    assert GAS_KEY[2:] not in repr(settings)
    assert "hush" not in repr(facilitator)
    wrong = "\n".join(problems({"TOLLWAY_GAS_KEYS_BASE": GAS_KEY + "f"}))
    assert "4d4d" not in wrong


def test_a_token_of_ones_own_names_its_domain_and_a_known_one_keeps_it() -> None:
    assets = (
        f'assets = [{{symbol = "EURC", token = "{WALLET}", decimals = 6, name = "EURC", version = "2"}},'
        f'{{symbol = "USDC", token = "{OPTIMISM_USDC}", decimals = 6}}, {{symbol = "DAI", token = "{RPC_TOKEN}", decimals = 18}}]'
    )
    domains = [asset.domain for asset in load(toml=OPTIMISM + assets).networks[0].rules.assets]
    assert domains == [TokenDomain(name="EURC", version="2"), TokenDomain(name="USD Coin", version="2"), None]


# ---- Public facts of a network.


def profile_of(more: str = "", toml: str = OPTIMISM) -> NetworkProfile:
    return load({}, toml + more).networks[0].profile


def test_a_preset_has_the_public_facts_of_its_network() -> None:
    assert profile_of() == NetworkProfile(
        name="OP Mainnet",
        native_symbol="ETH",
        native_decimals=18,
        explorer_url="https://optimistic.etherscan.io",
        wallet_rpc_url="https://mainnet.optimism.io",
    )


def test_the_public_facts_of_a_network_can_be_set_and_removed() -> None:
    set_all = profile_of('name = "OP"\nexplorer_url = "https://e.example/op/"\nwallet_rpc_url = ""')
    assert (set_all.name, set_all.explorer_url) == ("OP", "https://e.example/op")
    assert set_all.wallet_rpc_url is None


def test_a_network_without_a_preset_has_its_id_as_name() -> None:
    token = "0x" + "11" * 20
    plain = f'[[networks]]\nchain_id = 99\nrpc_urls = ["https://n.example"]\nassets = [{{symbol = "XYZ", token = "{token}", decimals = 8}}]\n'
    assert profile_of(toml=plain) == NetworkProfile(
        name="eip155:99", native_symbol=None, native_decimals=None, explorer_url=None, wallet_rpc_url=None
    )


@pytest.mark.parametrize(
    "line",
    [
        *('name = ""', f'name = "{"x" * 41}"', "name = 7", 'name = "a\\nb"'),
        'explorer_url = "basescan.org"',
        'explorer_url = "javascript:alert(1)"',
        'explorer_url = "https://user:key@e.example"',
        'explorer_url = "https://e.example/?key=1"',
        'wallet_rpc_url = "https://e.example/#a"',
        'wallet_rpc_url = "https://exämple.example"',
        "wallet_rpc_url = 7",
    ],
)
def test_a_wrong_public_fact_of_a_network_is_refused(line: str) -> None:
    with pytest.raises(SettingsInvalid):
        load({}, OPTIMISM + line)


# ---- The operator's logo.


def test_the_logo_is_read_and_checked_by_its_content() -> None:
    image = b"\xff\xd8\xff" + b"x" * 20 + b"\xff\xd9"
    Path("logo.svg").write_bytes(image)
    settings = load({"TOLLWAY_OPERATOR_LOGO": "logo.svg"})
    assert settings.operator_logo == Logo(media_type="image/jpeg", suffix=".jpg", content=image)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "logo.png is an SVG image, which can hold scripts"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * LOGO_BYTES_MAX, "logo.png has more than 64 KiB"),
        (b"<!doctype html>", "logo.png is no PNG, JPEG or WebP image"),
    ],
)  # fmt: skip
def test_a_hostile_or_large_logo_is_refused_by_name(content: bytes, said: str) -> None:
    Path("logo.png").write_bytes(content)
    (problem,) = problems({"TOLLWAY_OPERATOR_LOGO": "logo.png"})
    assert problem.startswith(f"TOLLWAY_OPERATOR_LOGO: {said}")


def test_a_pipe_in_place_of_a_logo_does_not_hold_up_the_start() -> None:
    os.mkfifo("logo.png")
    assert problems(toml='operator_logo = "logo.png"') == ["operator_logo: logo.png is no file"]
