"""The systemd units under a real systemd (`make units-test`): installed, started, hung, killed, stopped and restored as docs/running.md says.

A minimal Debian is made by mmdebstrap and booted (`tests/kit/systemd_machine.py`). The blocks of the page that are marked `systemd` run in it, as printed. Replaced: the
network and its node by the chain of the tests, ports, `public_url`, and the package index by a folder with the locked wheels and ours.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from deploy.image import BasePython, write_context
from release.build import build, read_epoch
from tests.kit.debian_base import make_base_tar
from tests.kit.gateway_cluster import PRICE_UNITS, GatewayCluster, plain
from tests.kit.gateway_process import answers, poll
from tests.kit.page_blocks import PageBlock, read_blocks
from tests.kit.ports import find_low_ports
from tests.kit.systemd_machine import SystemdMachine, missing_programs
from tollway.ids import TxHash
from tollway.sandbox.chain import FundedAccount

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "running.md"
BLOCKS = [block for block in read_blocks(PAGE.read_text()) if "systemd" in block.mark]
PACKAGES = "systemd,systemd-sysv,dbus,sudo,curl,openssl,python3,python3-venv,ca-certificates"
TEST_DEADLINE_S = 900
READY_DEADLINE_S = 60.0
WATCHDOG_S = 30
CALLERS = 8
CALLS_MIN = 40
PAID_CALLS = 50_000
TRAFFIC = "/readyz?for=traffic"
UNIT = "tollway.service"
BACKUP = "/var/lib/tollway-backup/tollway.backup"
ASK_PYTHON = "import json, platform; print(json.dumps([platform.python_version(), platform.machine()]))"
LOAD_ALL = """
import importlib.machinery, importlib.util, pathlib, sys
suffix, loaded = importlib.machinery.EXTENSION_SUFFIXES, 0
site = pathlib.Path(sys.prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
for path in sorted(site.rglob("*.so")):
    ending = next((one for one in suffix if path.name.endswith(one)), None)
    if ending is None or not (path.parent == site or (path.parent / "__init__.py").exists()):
        continue
    name = ".".join([*path.relative_to(site).parts[:-1], path.name.removesuffix(ending)])
    try:
        importlib.import_module(name)
        loaded += 1
    except ModuleNotFoundError as exc:
        print("skipped", name, exc, file=sys.stderr)
print(loaded)
"""
"""Imports every compiled module of the virtualenv. A module may need a package that is not installed."""


def _why_not() -> str | None:
    if not os.environ.get("UNITS_TEST"):
        return "`make units-test` runs it"
    if missing := missing_programs():
        return f"not on this machine: {', '.join(missing)}"
    return None if os.geteuid() == 0 else "it needs root"


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.timeout(TEST_DEADLINE_S),
]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdMachine]:
    """A booted Debian with `deploy/` in the home folder of root and the wheels in `/srv`."""
    folder = tmp_path_factory.mktemp("units")
    root = folder / "root"
    root.mkdir()
    archive = make_base_tar("units-base.tar", PACKAGES)
    subprocess.run(
        ["tar", "--extract", "--file", archive, "--directory", root], check=True, timeout=TEST_DEADLINE_S
    )
    for timer in root.glob("etc/systemd/system/timers.target.wants/*"):  # apt would ask its mirrors
        timer.unlink()
    shutil.copytree(ROOT / "deploy", root / "root" / "deploy")
    wheel, _ = build(ROOT, folder / "dist", epoch_s=read_epoch())
    told = subprocess.run(
        ["chroot", root, "python3", "-c", ASK_PYTHON],
        check=True,
        capture_output=True,
        text=True,
        timeout=READY_DEADLINE_S,
    )
    version, machine = json.loads(told.stdout)
    write_context(root / "srv", python=BasePython(version=version, machine=machine), wheel=wheel, extras=())
    booted = SystemdMachine(root=root, log=folder / "boot.log")
    try:
        yield booted
    finally:
        booted.stop()
        shutil.rmtree(root, ignore_errors=True)


@dataclass(kw_only=True)
class Scene:
    """The machine of the page with its gateway, one listing, and a caller whose transaction pays for many calls."""

    cluster: GatewayCluster
    debian: SystemdMachine
    base_url: str
    public_url: str
    admin_url: str
    node: str
    caller: FundedAccount | None = None
    api_id: str = ""
    tx_hash: TxHash | None = None

    @property
    def port(self) -> int:
        return int(self.base_url.rpartition(":")[2])

    def adapt(self, text: str) -> str:
        for old, new in {
            'public_url = "https://gateway.example.com"': f'public_url = "{self.public_url}"\n'
            f'listen = "127.0.0.1:{self.port}"\nadmin_listen = "{self.admin_url.removeprefix("http://")}"\n'
            "allow_private_endpoints = true",
            'preset = "base"': 'preset = "sandbox"',
            "https://node.example": self.node,
            "127.0.0.1:8402": f"127.0.0.1:{self.port}",
            "/pip install": "/pip install --no-index --find-links /srv/wheels",
        }.items():
            text = text.replace(old, new)
        return text

    def run_block(self, block: PageBlock) -> str:
        return self.debian.run(self.adapt(block.text))

    async def wait_serving(self, path: str = TRAFFIC) -> None:
        await poll(lambda: answers(self.port, path), what=path)

    def main_pid(self) -> int:
        """The process of the unit, in the numbers of the machine; 0 without one."""
        return int(self.debian.show(UNIT, "MainPID")["MainPID"])

    def signal(self, number: signal.Signals) -> None:
        self.debian.run(f"systemctl kill --kill-whom=main --signal={number.name} {UNIT}")

    def journal(self, unit: str = UNIT) -> str:
        return self.debian.run(f"journalctl --no-pager -u {unit} -o cat")

    def operate(self, *words: str) -> Any:
        """A command of the gateway, as the runbooks begin."""
        return json.loads(
            self.debian.run(f". /etc/tollway/operator.sh\ntollway gateway {' '.join(words)} --json")
        )

    async def call(self, path: str) -> Any:
        assert self.caller is not None
        assert self.tx_hash is not None
        headers = plain(self.caller, self.tx_hash)
        return await self.cluster.call(self, self.api_id, path, headers=headers)

    async def call_until_away(self, path: str, outcomes: Counter[str]) -> None:
        """Calls one after another until the gateway accepts no connection."""
        while True:
            try:
                reply = await self.call(path)
            except aiohttp.ClientConnectorError:
                return
            except aiohttp.ClientError:
                outcomes["cut"] += 1
            else:
                outcomes[f"{reply.status} {reply.state}"] += 1

    async def count_states(self) -> Counter[str]:
        assert self.caller is not None
        calls = await self.cluster.history(self, self.caller)
        return Counter(call["payment"]["state"] for call in calls)


def block_with(text: str) -> PageBlock:
    (block,) = [block for block in BLOCKS if text in block.text]
    return block


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(cluster: GatewayCluster, debian: SystemdMachine) -> AsyncIterator[Scene]:
    """Installs by the blocks of the page, in their order, up to its first check."""
    port, admin_port = find_low_ports(2)
    scene = Scene(
        cluster=cluster,
        debian=debian,
        base_url=f"http://127.0.0.1:{port}",
        public_url=f"http://127.0.0.1:{port}",
        admin_url=f"http://127.0.0.1:{admin_port}",
        node=cluster.driver.rpc_url,
    )
    try:
        for block in BLOCKS[: BLOCKS.index(block_with("gateway doctor"))]:
            print(scene.run_block(block))
        provider, scene.caller = await cluster.wallets(2)
        scene.api_id = await cluster.publish(scene, provider)
        # More than the callers of `test_a_stop_under_load_loses_no_call` can spend while a busy machine stops the service.
        scene.tx_hash = await cluster.send_tokens(scene.caller, provider.address, PAID_CALLS * PRICE_UNITS)
        yield scene
    except BaseException:
        print(debian.try_run("journalctl --no-pager | tail -60").stdout)
        raise


async def test_the_service_is_active_when_its_port_is_open(scene: Scene) -> None:
    """`systemctl enable --now` has returned: with `Type=notify` that is after READY=1."""
    found = scene.debian.show(UNIT, "ActiveState", "SubState", "Type", "NRestarts")
    assert found == {"ActiveState": "active", "SubState": "running", "Type": "notify", "NRestarts": "0"}
    await scene.wait_serving()
    await scene.wait_serving("/readyz")
    print(scene.run_block(block_with("gateway doctor")))


async def test_a_call_is_paid(scene: Scene) -> None:
    reply = await scene.call("/quote/ETH")
    assert (reply.status, reply.state) == (200, "charged"), reply.body


async def test_the_process_has_a_user_of_its_own_and_reads_a_copy_of_the_key(scene: Scene) -> None:
    status = scene.debian.run(f"cat /proc/{scene.main_pid()}/status")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert 61184 <= int(lines["Uid"].split()[0]) <= 65519  # systemd's range of dynamic users
    assert int(lines["CapBnd"], 16) == 0
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")
    environment = scene.debian.run(f"tr '\\0' '\\n' < /proc/{scene.main_pid()}/environ")
    assert "TOLLWAY_SECRET_KEY_FILE=/run/credentials/tollway.service/secret.key" in environment
    modes = scene.debian.run(
        "stat -c '%a %u' /etc/tollway/secret.key /var/lib/private/tollway/tollway.sqlite3"
    )
    assert modes == f"600 0\n600 {lines['Uid'].split()[0]}\n"


async def test_a_hung_process_is_replaced_by_the_watchdog(scene: Scene) -> None:
    before = scene.main_pid()
    scene.signal(signal.SIGSTOP)
    await poll(
        lambda: scene.main_pid() not in (0, before), deadline_s=WATCHDOG_S + READY_DEADLINE_S, what="restart"
    )
    await scene.wait_serving()
    assert scene.debian.show(UNIT, "NRestarts") == {"NRestarts": "1"}
    assert "watchdog" in scene.debian.run(f"journalctl --no-pager -u {UNIT}").lower()
    assert (await scene.call("/quote/ETH")).state == "charged"


async def test_a_killed_process_is_started_again(scene: Scene) -> None:
    scene.signal(signal.SIGKILL)
    await poll(lambda: scene.debian.show(UNIT, "NRestarts")["NRestarts"] == "2", what="restart")  # fmt: skip
    await scene.wait_serving()
    assert (await scene.call("/quote/ETH")).state == "charged"


async def test_a_stop_under_load_loses_no_call(scene: Scene) -> None:
    before = (await scene.count_states())["charged"]
    outcomes: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(scene.call_until_away("/echo/stop", outcomes))
        await poll(lambda: outcomes["200 charged"] >= CALLS_MIN, what="calls under load")
        await asyncio.to_thread(scene.debian.run, f"systemctl stop {UNIT}")
    found = scene.debian.show(UNIT, "ActiveState", "Result", "ExecMainStatus")
    assert found == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    scene.debian.run(f"systemctl start {UNIT}")
    await scene.wait_serving()
    states = await scene.count_states()
    print(dict(outcomes), dict(states))
    # "cut": the connection closed under the request, or under its response.
    assert set(outcomes) <= {"200 charged", "cut"}
    charged = states["charged"] - before
    assert 0 <= charged - outcomes["200 charged"] <= outcomes["cut"]
    assert scene.cluster.provider.count("/echo/stop") == charged


@pytest.mark.parametrize("duty", ["audit", "backup"])
async def test_a_timer_that_is_due_runs_its_service(scene: Scene, duty: str) -> None:
    """A timer whose last run is long ago is due when it starts (`Persistent=yes`). Without its random delay, which is up to ten minutes."""
    timer, service = f"tollway-{duty}.timer", f"tollway-{duty}.service"
    scene.debian.run(
        f"systemctl stop {timer}; mkdir -p /run/systemd/system/{timer}.d\n"
        f"printf '[Timer]\\nRandomizedDelaySec=0\\n' > /run/systemd/system/{timer}.d/now.conf\n"
        f"touch -d '30 days ago' /var/lib/systemd/timers/stamp-{timer}\n"
        f"systemctl daemon-reload; systemctl start {timer}"
    )

    def has_run() -> bool:
        found = scene.debian.show(service, "ExecMainExitTimestampMonotonic", "Result", "ExecMainStatus")
        return found.pop("ExecMainExitTimestampMonotonic") != "0" and found == {"Result": "success", "ExecMainStatus": "0"}  # fmt: skip

    await poll(has_run, what=service)

    async def is_exposed() -> bool:
        async with scene.cluster.session.get(f"{scene.admin_url}/metrics") as response:
            return f"\ntollway_{duty}_last_seconds 1" in await response.text()

    await poll(is_exposed, what=f"tollway_{duty}_last_seconds")
    if duty == "backup":
        assert scene.debian.run(f"stat -c %a {BACKUP}") == "600\n"


async def test_a_backup_by_hand_and_the_commands_of_root_leave_the_service_its_files(scene: Scene) -> None:
    scene.run_block(block_with("gateway backup --force"))
    assert scene.operate("audit")["wrong"] == []
    scene.debian.run(f"systemctl restart {UNIT}")
    await scene.wait_serving()
    assert (await scene.call("/quote/ETH")).state == "charged"


async def test_a_restore_by_its_service_holds_every_balance_until_it_is_released(scene: Scene) -> None:
    """The backup of the timer is older than the last call."""
    assert (await scene.call("/quote/BTC")).state == "charged"
    scene.run_block(block_with("tollway-restore"))
    assert scene.debian.show("tollway-restore", "Result")["Result"] == "success"
    assert scene.debian.show(UNIT, "ActiveState")["ActiveState"] == "inactive"
    assert scene.operate("audit")["heldPayments"] == [str(scene.tx_hash)]
    scene.debian.run(". /etc/tollway/operator.sh\n" + block_with("--release").text)
    assert scene.operate("audit")["heldPayments"] == []
    scene.debian.run(f"systemctl start {UNIT}")
    await scene.wait_serving()
    assert (await scene.call("/quote/ETH")).state == "charged"


async def test_a_gas_key_is_handed_over_as_the_page_says(scene: Scene) -> None:
    page = PAGE.read_text()
    lines = ("LoadCredential=gas.key:/etc/tollway/gas.key", "Environment=TOLLWAY_GAS_KEYS_BASE=%d/gas.key")
    assert all(f"`{line}`" in page for line in lines)
    account = await scene.cluster.wallet()
    unit_lines = "\n".join(lines).replace("GAS_KEYS_BASE", "GAS_KEYS_SANDBOX")
    scene.debian.run(
        f"(umask 077 && echo {account.key.hex()} > /etc/tollway/gas.key)\n"
        f"mkdir /etc/systemd/system/{UNIT}.d\n"
        f"printf '[Service]\n%s\n' {shlex.quote(unit_lines)} > /etc/systemd/system/{UNIT}.d/override.conf\n"
        f"systemctl daemon-reload; systemctl restart {UNIT}"
    )
    await scene.wait_serving("/readyz")

    async def is_offered() -> bool:
        reply = await scene.cluster.call(scene, scene.api_id, "/quote/ETH")
        return {option["rail"] for option in reply.json["payment"]["options"]} > {"tx"}

    await poll(is_offered, what="an offer of signed payments")
    found = scene.debian.run(
        f". /etc/tollway/operator.sh; TOLLWAY_GAS_KEYS_SANDBOX=/run/credentials/{UNIT}/gas.key tollway gateway doctor"
    )
    assert str(account.address) in found


async def test_every_compiled_package_loads_without_memory_that_is_writable_and_executable(
    scene: Scene,
) -> None:
    program = scene.debian.root / "srv" / "load_all.py"
    program.write_text(LOAD_ALL)
    command = "systemd-run --wait --pipe --quiet -p DynamicUser=yes -p MemoryDenyWriteExecute=yes /opt/tollway/bin/python /srv/load_all.py"
    done = scene.debian.try_run(command)
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


async def test_bad_settings_end_the_service_once_and_say_why(scene: Scene) -> None:
    settings = "/etc/tollway/tollway.toml"
    scene.debian.run(
        f"systemctl stop {UNIT}; systemctl reset-failed; cp {settings} /root/good.toml; echo 'nonsense = 1' | cat - /root/good.toml > {settings}"
    )
    try:
        assert scene.debian.try_run(f"systemctl start {UNIT}").returncode != 0
        found = scene.debian.show(UNIT, "ActiveState", "ExecMainStatus", "NRestarts")
        assert found == {"ActiveState": "failed", "ExecMainStatus": "2", "NRestarts": "0"}
        assert "nonsense" in scene.journal()
    finally:
        scene.debian.run(f"cp /root/good.toml {settings}; systemctl reset-failed; systemctl start {UNIT}")
    await scene.wait_serving()


async def test_this_file_runs_every_block_of_the_machine() -> None:
    last = BLOCKS.index(block_with("gateway doctor"))
    later = ("gateway doctor", "gateway backup --force", "tollway-restore", "--release")
    assert [block for block in BLOCKS[last:] if not any(text in block.text for text in later)] == []
