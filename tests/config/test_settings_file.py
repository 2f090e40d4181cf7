"""The settings file: found where it is named, refused where others may read a secret in it, and silent about its values."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tollway.config.settings import find_secrets, read_settings_file
from tollway.errors import SettingsInvalid

HUSH = "hushhushhushhushhushhushhushhush"
GAS_KEY = "0x" + "4d" * 32

SECRETS: list[tuple[dict[str, Any], str]] = [
    ({"secret_key": HUSH}, "secret_key"),
    ({"database_url": f"postgresql://me:{HUSH}@db.example/books"}, "database_url"),
    ({"database_url": f"postgresql://me@db.example/books?password={HUSH}"}, "database_url"),
    ({"database_url": f"postgresql://me:{HUSH}@[::1/books"}, "database_url"),
    ({"rate_limit_url": f"redis://:{HUSH}@cache.example"}, "rate_limit_url"),
    ({"networks": [{}, {"gas_keys": [GAS_KEY]}]}, "networks[1].gas_keys"),
    ({"networks": [{"gas_keys": f"/etc/gas.key, {GAS_KEY}"}]}, "networks[0].gas_keys"),
    ({"networks": [{"rpc_urls": [f"https://me:{HUSH}@node.example"]}]}, "networks[0].rpc_urls"),
    ({"networks": [{"rpc_urls": ["https://n.example", f"https://node.example/v2/{HUSH}"]}]}, "networks[0].rpc_urls"),
    ({"networks": [{"rpc_urls": f"https://node.example/?apikey={HUSH}"}]}, "networks[0].rpc_urls"),
    (
        {"networks": [{"facilitator": {"url": "https://f.example", "settle_headers": {"Authorization": HUSH}}}]},
        "networks[0].facilitator.settle_headers",
    ),
    (
        {"networks": [{"facilitator": {"verify_headers": {"X-Key": HUSH}}}]},
        "networks[0].facilitator.verify_headers",
    ),
]  # fmt: skip

HARMLESS: list[dict[str, Any]] = [
    {},
    {"public_url": f"https://{HUSH}.example.com", "secret_key_file": f"/etc/{HUSH}/secret.key"},
    {"database_url": "postgresql://me@db.example/books", "rate_limit_url": "redis://cache.example/0"},
    {"database_url": "sqlite:////var/lib/tollway/books.sqlite3"},
    {"networks": [{"gas_keys": ["/etc/tollway/gas.key", "./gas.key"]}]},
    {"networks": [{"rpc_urls": ["https://mainnet.base.org", "https://node.example/base/archive"]}]},
    {"networks": [{"facilitator": {"url": "https://f.example", "settle_headers": {}}}]},
    # The model refuses values that are not well formed.
    {"database_url": 5, "rate_limit_url": [], "networks": "all"},
    {"networks": [5, {"gas_keys": 5, "rpc_urls": 5, "facilitator": 5}]},
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("table", "name"), SECRETS)
def test_what_is_secret_is_known_by_its_setting(table: dict[str, Any], name: str) -> None:
    assert [*find_secrets(table)] == [name]


@pytest.mark.parametrize("table", HARMLESS)
def test_what_is_no_secret_is_not_taken_for_one(table: dict[str, Any]) -> None:
    assert [*find_secrets(table)] == []


def write(text: str, mode: int, name: str = "tollway.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o664, 0o755])
def test_a_world_readable_file_must_not_hold_a_secret(mode: int) -> None:
    write(f'secret_key = "{HUSH}"\n[[networks]]\ngas_keys = "{GAS_KEY}"\n', mode)
    table, (line,) = read_settings_file({}, None)
    assert table["secret_key"] == HUSH  # the rest is still judged
    assert line == (
        "tollway.toml: others may read it, and it holds a secret (secret_key, networks[0].gas_keys): "
        "chmod 640 tollway.toml, or set it in the environment"
    )


def test_a_line_stays_short_and_says_no_value() -> None:
    networks = "".join(f'[[networks]]\ngas_keys = "{GAS_KEY}"\n' for _ in range(40))
    path = write(networks, 0o644, "another.toml")
    _, (line,) = read_settings_file({}, path)
    assert len(line) <= 240
    assert GAS_KEY not in line
    assert "networks[2].gas_keys, …)" in line


@pytest.mark.parametrize(
    ("text", "mode"),
    [*itertools.product([f'secret_key = "{HUSH}"'], [0o600, 0o640, 0o400]), ('log_level = "debug"', 0o644)],
)
def test_its_owner_and_a_group_may_read_a_secret_and_everybody_the_rest(text: str, mode: int) -> None:
    path = write(text, mode)
    name, _, value = text.partition(" = ")
    assert read_settings_file({"TOLLWAY_CONFIG": str(path)}, None) == ({name: value.strip('"')}, ())


def test_without_a_file_nothing_is_set_and_a_named_one_must_be_there() -> None:
    assert read_settings_file({}, None) == ({}, ())
    for environment, config in (({"TOLLWAY_CONFIG": "nowhere.toml"}, None), ({}, Path("nowhere.toml"))):
        with pytest.raises(SettingsInvalid, match=r"nowhere\.toml: No such file"):
            read_settings_file(environment, config)


@pytest.mark.parametrize("content", [b"this is not TOML", b"\xff\xfe", b'secret_key = "' + HUSH.encode()])
def test_a_file_that_is_none_is_named_and_not_quoted(content: bytes) -> None:
    Path("tollway.toml").write_bytes(content)
    with pytest.raises(SettingsInvalid) as refused:
        read_settings_file({}, None)
    (line,) = refused.value.problems
    assert line.startswith("tollway.toml: ")
    assert HUSH not in line
