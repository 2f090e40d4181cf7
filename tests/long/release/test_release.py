"""The wheel in an empty environment (`make release-test`), for each Python that is found: no checkout, no Node, no network but loopback.

It installs `tollway[demo]` with the locked versions, then migrates, serves its pages, runs `doctor`, and pays calls in the demo. One demo with a network fetches
its chain node by digest. `tests/sandbox/test_anvil_binary.py` refuses a tarball with one flipped bit.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.deploy_programs import need_wheel
from tests.kit.ports import find_low_port
from tollway.sandbox.anvil_binary import find_anvil

ROOT = Path(__file__).parents[3]
MINORS = tuple(
    line.rpartition(" ")[2]
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    if line.startswith("Programming Language :: Python :: 3.")
)
DEADLINE_S = 600
KEPT = ("PIP_", "npm_config_", "NPM_CONFIG_", "SSL_CERT_", "REQUESTS_CA_")
"""Variables that name this machine's registries."""

pytestmark = [
    pytest.mark.skipif(not os.environ.get("RELEASE_TEST"), reason="`make release-test` runs it"),
    pytest.mark.timeout(DEADLINE_S),
]

SCENE = """
import json, os, signal, subprocess, sys, time, urllib.request
port = int(sys.argv[1])
tollway = os.path.join(os.path.dirname(sys.executable), "tollway")
environment = {**os.environ, "TOLLWAY_LISTEN": f"127.0.0.1:{port}", "TOLLWAY_PUBLIC_URL": f"http://127.0.0.1:{port}",
    "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1", "TOLLWAY_ADMIN_LISTEN": "off"}
def run(*words):
    done = subprocess.run([tollway, *words], env=environment, capture_output=True, text=True, timeout=120)
    return {"code": done.returncode, "stdout": done.stdout, "output": done.stdout + done.stderr}
found = {"version": run("--version"), "migrate": run("gateway", "migrate", "--json")}
server = subprocess.Popen([tollway, "gateway", "serve"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
deadline = time.monotonic() + 60
pages = {}
while not pages:
    assert server.poll() is None and time.monotonic() < deadline, server.stdout.read()
    try:
        for path in ("/healthz", "/", "/docs", "/openapi.json", "/llms.txt", "/problems", "/api/v2/apis"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                pages[path] = [answer.status, len(answer.read())]
    except ConnectionError:
        pages = {}
    except urllib.error.URLError as exc:
        if not isinstance(exc.reason, ConnectionError):
            raise
        pages = {}
found["pages"], found["doctor"] = pages, run("gateway", "doctor", "--json")
server.send_signal(signal.SIGTERM)
server.stdout.read()
found["serve"] = server.wait(60)
found["demo"] = run("demo", "--once", "--port", "0")
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A virtualenv with the wheel, and a folder that is its user's home."""

    python: Path
    home: Path

    def run(
        self, *words: str, is_online: bool = False, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program of the virtualenv; PATH has nothing else."""
        command = [str(self.python.parent / words[0]), *words[1:]]
        return subprocess.run(
            command if is_online else without_network(command),
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": str(self.python.parent), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )


def without_network(command: list[str]) -> list[str]:
    """In a network of its own that has loopback alone, where this process may make one; else as it is."""
    tools = [shutil.which(name) for name in ("unshare", "ip", "sh")]
    if os.geteuid() or not all(tools):
        return command
    unshare, ip, shell = map(str, tools)
    return [unshare, "--net", shell, "-ec", f'{ip} link set lo up; exec "$@"', "sh", *command]


def find_python(minor: str) -> str:
    """The interpreter of a version, also one that pyenv has installed and not switched on."""
    candidates = [shutil.which(f"python{minor}"), *map(str, sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python")))]  # fmt: skip
    for candidate in filter(None, candidates):
        told = subprocess.run([candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
        if told.stdout.strip() == minor:
            return candidate
    pytest.skip(f"Python {minor} is not on this machine")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from release.build import build, read_epoch

    found, _ = build(ROOT, tmp_path_factory.mktemp("dist"), epoch_s=read_epoch())
    return found


@pytest.fixture(scope="module", params=MINORS)
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:  # fmt: skip
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    home = folder / "home"
    home.mkdir()
    subprocess.run(
        [find_python(request.param), "-m", "venv", str(folder / "venv")], check=True, timeout=DEADLINE_S
    )
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    locks = [str(ROOT / "requirements" / f"{name}.txt") for name in ("gateway", "demo")]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in (*(["--require-hashes", "-r", lock] for lock in locks), ["--no-deps", str(wheel)]):
        subprocess.run([*pip, *words], env=env, check=True, timeout=DEADLINE_S)
    subprocess.run([str(python), "-m", "pip", "check"], env=env, check=True, timeout=DEADLINE_S)
    yield Installed(python=python, home=home)
    shutil.rmtree(folder / "venv")


def test_the_wheel_serves_without_checkout_node_and_network(installed: Installed) -> None:
    anvil = {"TOLLWAY_ANVIL": str(find_anvil())}
    ran = installed.run("python", "-c", SCENE, str(find_low_port()), env=anvil)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert found["version"]["output"] == f"tollway {version}\n"
    assert (found["migrate"]["code"], found["serve"]) == (0, 0), found
    assert {status for status, _ in found["pages"].values()} == {200}, found["pages"]
    report = json.loads(found["doctor"]["stdout"])
    assert "chain" in json.dumps(report), "the node is away, and doctor says so"
    assert found["demo"]["code"] == 0, found["demo"]["output"]
    assert "8 paid by x402" in found["demo"]["output"]


def name_registry() -> dict[str, str]:
    registry = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    npmrc = Path.home() / ".npmrc"
    if npmrc.exists():
        registry.setdefault("NPM_CONFIG_USERCONFIG", str(npmrc))
    return registry


def test_pipx_runs_the_demo_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """As a reader does: pipx resolves the extra from the package index, without the lock files; the demo fetches its chain node. PATH has no program."""
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [
            *(str(need_wheel("pipx")), "run", "--no-cache", "--spec", f"tollway[demo] @ {wheel.as_uri()}"),
            *("tollway", "demo", "--once", "--port", "0", "--yes"),
        ],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": str(empty), **name_registry()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Fetched and compared with its SHA-512" in done.stdout
    assert "8 paid by x402" in done.stdout


def test_the_demo_fetches_its_chain_node_and_pays(installed: Installed) -> None:
    """The same with the locked versions, and with the question before it fetches."""
    if sys.version_info[:2] != tuple(
        map(int, installed.python.resolve().name.removeprefix("python").split("."))
    ):
        pytest.skip("one interpreter is enough to fetch")
    registry = name_registry()
    asked = installed.run("tollway", "demo", "--once", "--port", "0", is_online=True, env=registry)
    assert asked.returncode == 1
    assert "nothing was fetched" in asked.stderr
    done = installed.run("tollway", "demo", "--once", "--port", "0", "--yes", is_online=True, env=registry)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Fetched and compared with its SHA-512" in done.stdout
    assert list(installed.home.glob(".cache/tollway/anvil-*/anvil"))
