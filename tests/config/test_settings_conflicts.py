"""What is fine alone and does harm together is refused, and what is fine together is not. The tables of single mistakes
are in test_settings.py; here the real command also shows how a mistake ends a start.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tollway.config.settings import check_admin_listen, check_public_url, check_registration
from tollway.config.values import Listen, parse_listen

DEADLINE_S = 60.0
KEY = "00112233445566778899aabbccddeeff" * 2


def listen(text: str) -> Listen:
    return parse_listen(text)


@pytest.mark.parametrize(
    ("callers", "operator"),
    [
        ("127.0.0.1:8402", "127.0.0.1:9402"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:8402", "127.0.0.2:8402"),
        ("0.0.0.0:8402", "127.0.0.1:9402"),
        ("[::]:8402", "[::1]:9402"),
    ],
)
def test_two_listeners_at_different_addresses_are_valid(callers: str, operator: str) -> None:
    url = "https://gw.example.com"
    assert not [*check_admin_listen(listen=listen(callers), admin_listen=listen(operator))]
    assert not [*check_admin_listen(listen=listen(callers), admin_listen=None)]
    assert not [*check_public_url(listen=listen(callers), public_url=url)]


@pytest.mark.parametrize("is_open", [True, False])
def test_an_allowlist_goes_with_its_registration(is_open: bool) -> None:
    assert not [*check_registration(is_open=is_open, has_allowlist=not is_open)]


# ---- The command itself.


COMMON = {
    "TOLLWAY_RPC_BASE": "http://127.0.0.1:9/hush",
    "TOLLWAY_LISTEN": "127.0.0.1:0",
    "TOLLWAY_ADMIN_LISTEN": "off",
}
"""Any free port: another process may have that of the default."""


def _environment() -> dict[str, str]:
    """That of the tests, without settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOLLWAY_")}


def _start(folder: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-c", "from tollway.cli import main; main()", "serve"),
        env={**_environment(), **COMMON, **settings},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """`file`: `tollway.toml`, with its mode. `key`: a key file."""

    environment: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    mode: int = 0o600
    key_mode: int | None = None
    text: str


PUBLIC = {"TOLLWAY_SECRET_KEY": KEY, "TOLLWAY_PUBLIC_URL": "https://gw.example.com"}
OPTIMISM = '[[networks]]\npreset = "optimism"\nrpc_urls = ["https://node.example"]\n'
DEVELOPMENT_KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"


def of(text: str, **settings: str) -> Mistake:
    return Mistake(environment={f"TOLLWAY_{name}": value for name, value in settings.items()}, text=text)


MISTAKES: dict[str, Mistake] = {
    "a misspelt name": of("did you mean LISTEN?", LISTN="127.0.0.1:1"),
    "a misspelt limit": Mistake(file="[limits]\nheaders_mx = 1", text="limits.headers_mx: there is no such limit"),
    "no node": of("name at least one node", RPC_BASE=""),
    "a node that is none": of("rpc_urls[0] is not an http(s) URL", RPC_BASE="ftp://node/hush"),
    "a port that is none": of("must be host:port", LISTEN="127.0.0.1:84020"),
    "one port for both listeners": of("take another port, or off", LISTEN="127.0.0.1:9402", ADMIN_LISTEN="127.0.0.1:9402"),
    "open to all without a key": of("need a key of your own", LISTEN="0.0.0.0:8402", PUBLIC_URL="https://gw.example.com"),
    "PostgreSQL without a key": of("need a key of your own", DATABASE_URL="postgresql://me:hush@db.example/books"),
    "open to all under a name of its own": of("callers from outside cannot reach", LISTEN="0.0.0.0:8402", SECRET_KEY=KEY),
    "a public URL with a path": of("must be an origin", PUBLIC_URL="https://gw.example.com/api"),
    "a host that is none": of("no usable host", PUBLIC_URL="https://a b"),
    "every caller a proxy": of("would let every caller choose its client address", TRUSTED_PROXIES="0.0.0.0/0"),
    "a key of zeros": of("no random number", SECRET_KEY="0" * 64),
    "a key that is too short": of("must be 64 hex digits", SECRET_KEY="hush"),
    "a key and a file with one": of("not both", SECRET_KEY=KEY, SECRET_KEY_FILE="key"),
    "a key file that others can read": Mistake(environment={"TOLLWAY_SECRET_KEY_FILE": "key"}, key_mode=0o644, text="chmod 600 key"),
    "a settings file that others can read": Mistake(file=f'secret_key = "{KEY}"', mode=0o644, text="tollway.toml: others may read it"),
    "a settings file that is none": Mistake(file="this is not TOML", text="tollway.toml: "),
    "a settings file that is not there": of("nowhere.toml: No such file", CONFIG="nowhere.toml"),
    "a database that is none": of("must be sqlite:///file or postgresql://", DATABASE_URL="mysql://me:hush@db.example/books"),
    "a folder that is a file": of("/dev/null", DATABASE_URL="sqlite:////dev/null/tollway.sqlite3", SECRET_KEY=KEY),
    "a standby": Mistake(
        environment={**PUBLIC, "TOLLWAY_DATABASE_URL": "postgresql://me:hush@db.example/books?target_session_attrs=standby"},
        text="a gateway writes",
    ),
    "test money beside real money": of("test money buy real calls", RPC_BASE_SEPOLIA="https://node.example"),
    "a public gas key on a main network": of("a public development key", GAS_KEYS_BASE=DEVELOPMENT_KEY),
    "more nodes to agree than there are": Mistake(file=OPTIMISM + "agreement_min = 2", text="2 nodes cannot agree"),
    "a rate server of another kind": of("must be redis://", RATE_LIMIT_URL="http://me:hush@cache.example"),
    "an allowlist without effect": of("has no effect while registration is open", ALLOWLIST="0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
    "an allowlist without wallets": of("at least one wallet", REGISTRATION="allowlist"),
    "a maximum for no currency": of("USCD is no currency", UNFINAL_SPEND_MAX="USCD:100"),
    "a limit that is fixed": of("this limit is fixed now", LIMIT_OWNER_RENEW_S="16"),
}  # fmt: skip

SERVE_MANY = """
import json, os, sys
import pydantic.main
from tollway.cli import main, operator  # before the forks

sys.argv = ["tollway", "serve"]
for case in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        os.chdir(case["folder"])
        os.environ.update(case["environment"])
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(case["prefix"] + name, os.O_WRONLY | os.O_CREAT), number)
        try:
            main()
        except SystemExit as ended:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
"""The real command, many times in forks of one process, so that it imports once."""


def _prepare(folder: Path, mistake: Mistake) -> set[str]:
    """Writes the files of the folder before the start; returns their names."""
    folder.mkdir()
    if mistake.file is not None:
        path = folder / "tollway.toml"
        path.write_text(mistake.file)
        path.chmod(mistake.mode)
    if mistake.key_mode is not None:
        (folder / "key").write_text(KEY)
        (folder / "key").chmod(mistake.key_mode)
    return {path.name for path in folder.iterdir()}


@pytest.mark.process
def test_a_mistake_ends_the_start_with_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert len(MISTAKES) >= 20
    cases, before = [], {}
    for number, (name, mistake) in enumerate(MISTAKES.items()):
        folder = tmp_path / str(number)
        before[name] = folder, _prepare(folder, mistake)
        environment = {**COMMON, **mistake.environment}
        cases.append({"folder": str(folder), "prefix": f"{folder}.", "environment": environment})
    ran = subprocess.run(
        (sys.executable, "-c", SERVE_MANY),
        input=json.dumps(cases),
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert ran.stderr == ""
    codes = [int(line) for line in ran.stdout.split()]
    for code, (name, mistake) in zip(codes, MISTAKES.items(), strict=True):
        folder, files = before[name]
        assert code in (1, 2), name
        assert Path(f"{folder}.stdout").read_text() == "", name
        lines = Path(f"{folder}.stderr").read_text().splitlines()
        assert len(lines) == 1, (name, lines)
        (problem,) = json.loads(lines[0])["error"]["problems"]
        assert mistake.text in problem, name
        assert 20 <= len(problem) <= 240, name
        assert problem.isprintable(), name
        assert KEY not in lines[0], name
        assert "hush" not in lines[0], name
        assert {path.name for path in folder.iterdir()} == files, name


@pytest.mark.process
def test_a_mistake_is_shown_by_the_command_as_it_is_started(tmp_path: Path) -> None:
    process = _start(tmp_path, {"TOLLWAY_LISTN": "127.0.0.1:1"})
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    expected = {
        "code": "settings_invalid",
        "problems": ["TOLLWAY_LISTN: there is no such setting; did you mean LISTEN?"],
    }
    assert (process.returncode, stdout, json.loads(stderr)) == (2, "", {"error": expected})


@pytest.mark.process
def test_an_address_that_is_taken_ends_the_start_in_one_line(tmp_path: Path) -> None:
    """Either of the two listeners. Port 0 of the other is any free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        running = []
        for listener, other in (("LISTEN", "ADMIN_LISTEN"), ("ADMIN_LISTEN", "LISTEN")):
            folder = tmp_path / listener
            folder.mkdir()
            settings = {f"TOLLWAY_{listener}": address, f"TOLLWAY_{other}": "127.0.0.1:0"}
            running.append(_start(folder, settings))
        for process in running:
            _, stderr = process.communicate(timeout=DEADLINE_S)
            assert process.returncode != 0
            assert "Traceback" not in stderr
            assert address in stderr
