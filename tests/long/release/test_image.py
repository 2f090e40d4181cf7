"""The image (`make image-test`): built without a registry, run with a root that it cannot write, and stopped and killed while it serves paid calls.

The base is a minimal Debian with Python, made by mmdebstrap. `buildah` builds; the container runs as `chroot` in a mount namespace of its own, with the user, the
folder, the variables and the command of the image's configuration. It needs root, `buildah` and `mmdebstrap` (Debian packages).
"""

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.kit.debian_base import make_base_tar
from tests.kit.gateway_cluster import PRICE_UNITS, GatewayCluster, plain
from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.ports import find_low_ports
from tollway.ids import TxHash
from tollway.sandbox.chain import FundedAccount

ROOT = Path(__file__).parents[3]
BASE, IMAGE = "localhost/tollway-base:test", "localhost/tollway:test"
BUILD_DEADLINE_S = 900
STATE = "/var/lib/tollway"
CALLERS = 8
CALLS_MIN = 40
IMAGE_BYTES_MAX, IMAGE_COMPRESSED_MAX = 400 * 1000**2, 130 * 1000**2
SLIM_BASE_BYTES, SLIM_BASE_COMPRESSED = 135 * 1000**2, 50 * 1000**2
"""The slim base of a release, rounded up. The base of this test is a bare Debian, which is larger: so what we add to a base is measured."""


def _why_not() -> str | None:
    if not os.environ.get("IMAGE_TEST"):
        return "`make image-test` runs it"
    missing = [name for name in ("buildah", "mmdebstrap", "unshare") if shutil.which(name) is None]
    if missing:
        return f"not on this machine: {', '.join(missing)} (Debian packages)"
    return None if os.geteuid() == 0 else "it needs root"


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.timeout(BUILD_DEADLINE_S),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image, mounted at `root`. `config`: of the OCI image. `sbom`: the list of its system's packages."""

    builder: tuple[str, ...]
    root: Path
    config: dict[str, Any]
    sbom: Path

    def command(self, volume: Path, *arguments: str) -> list[str]:
        """The image's entry point with these arguments, or its own: on a root that cannot be written, `/tmp` in memory, and one volume."""
        words = [*self.config["Entrypoint"], *(arguments or self.config["Cmd"])]
        steps = (
            'mount --bind "$0" "$0"',
            'mount -o remount,bind,ro "$0"',
            'mount -t tmpfs -o size=64m tmpfs "$0/tmp"',
            'mount --bind "$1" "$0$2"',
            'mount -t proc proc "$0/proc"',
            'mount --rbind /dev "$0/dev"',
            'user="$3"; root="$0"; folder="$2"; shift 3',
            'exec chroot --userspec="$user" "$root" /bin/sh -c \'cd "$0" && exec "$@"\' "$folder" "$@"',
        )
        place = (str(self.root), str(volume), self.config["WorkingDir"], self.config["User"])
        return ["unshare", "--mount", "sh", "-ec", "; ".join(steps), *place, *words]

    @property
    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.config["Env"])

    def run(self, volume: Path, env: dict[str, str], *arguments: str) -> str:
        """One command of the image; it must succeed."""
        done = subprocess.run(
            self.command(volume, *arguments),
            env=self.environment | env,
            capture_output=True,
            text=True,
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    builder = (
        "buildah",
        "--storage-driver",
        "vfs",
        "--root",
        f"{folder}/store",
        "--runroot",
        f"{folder}/run",
    )

    def build(*words: str, command: tuple[str, ...] = builder) -> str:
        done = subprocess.run(
            (*command, *words),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    archive = make_base_tar("image-base.tar", "python3,python3-venv,ca-certificates")
    base = build("from", "scratch")
    build("add", base, str(archive), "/")
    build("commit", "--rm", base, BASE)
    build(
        "deploy/image.py",
        "--builder",
        " ".join(builder),
        "--base",
        BASE,
        "--tag",
        IMAGE,
        "--sbom",
        str(folder / "system.cdx.json"),
        command=(sys.executable,),
    )
    container = build("from", IMAGE)
    root = Path(build("mount", container))
    try:
        inspected = json.loads(build("inspect", "--type", "image", IMAGE))
        yield Image(
            builder=builder, root=root, config=inspected["OCIv1"]["config"], sbom=folder / "system.cdx.json"
        )
    finally:
        build("umount", container)
        build("rm", container)
        shutil.rmtree(folder / "store", ignore_errors=True)


class ImageGateway(GatewayProcess):
    """A gateway of the image, at a port of loopback. Its process is the one that signals reach."""

    def __init__(self, image: Image, *, volume: Path, env: dict[str, str], folder: Path) -> None:
        self._image, self._volume = image, volume
        super().__init__(env=image.environment | env, folder=folder, name="image")

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._image.command(self._volume),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


@dataclass(kw_only=True)
class Scene:
    """A gateway of the image with one listing, and a caller whose transaction pays for many calls."""

    cluster: GatewayCluster
    image: Image
    gateway: ImageGateway
    volume: Path
    caller: FundedAccount
    api_id: str
    tx_hash: TxHash

    async def call(self, path: str) -> Any:
        headers = plain(self.caller, self.tx_hash)
        return await self.cluster.call(self.gateway, self.api_id, path, headers=headers)

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
        calls = await self.cluster.history(self.gateway, self.caller)
        return Counter(call["payment"]["state"] for call in calls)

    def audit(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(
            self.image.run(self.volume, self.gateway.env, "gateway", "audit", "--json")
        )
        return report


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    cluster: GatewayCluster, image: Image, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("run")
    volume = folder / "volume"
    volume.mkdir()
    os.chown(volume, 65532, 65532)
    (port,) = find_low_ports(1)
    env = cluster.environment(
        database_url="sqlite:///tollway.sqlite3", public_url=f"http://127.0.0.1:{port}", port=port
    )
    env = {name: value for name, value in env.items() if name.startswith("TOLLWAY_")}
    migrated = json.loads(image.run(volume, env, "gateway", "migrate", "--json"))
    assert migrated["now"] == "current", migrated
    gateway = ImageGateway(image, volume=volume, env=env, folder=folder)
    try:
        await gateway.wait_ready()
        provider, caller = await cluster.wallets(2)
        api_id = await cluster.publish(gateway, provider)
        tx_hash = await cluster.send_tokens(caller, provider.address, 50_000 * PRICE_UNITS)
        yield Scene(
            cluster=cluster,
            image=image,
            gateway=gateway,
            volume=volume,
            caller=caller,
            api_id=api_id,
            tx_hash=tx_hash,
        )
    finally:
        if gateway.is_running:
            gateway.kill()
        gateway.print_log()


async def test_the_image_is_small_and_has_no_installer(image: Image) -> None:
    added = image.root / "opt" / "tollway"
    size = sum(path.lstat().st_size for path in added.rglob("*") if path.is_file() and not path.is_symlink())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        archive.add(added, arcname="tollway")
    compressed = packed.getbuffer().nbytes
    print(f"{size / 1e6:.0f} MB beside the base, {compressed / 1e6:.0f} MB compressed")
    assert size > 100 * 1000**2
    assert SLIM_BASE_BYTES + size < IMAGE_BYTES_MAX, size
    assert SLIM_BASE_COMPRESSED + compressed < IMAGE_COMPRESSED_MAX, compressed
    assert not (image.root / "opt/tollway/bin/pip").exists()
    assert image.config["User"] == "65532:65532"


async def test_the_packages_of_the_system_are_listed(image: Image) -> None:
    components = json.loads(image.sbom.read_text())["components"]
    installed = (image.root / "var/lib/dpkg/status").read_text().count("\nStatus: install ok installed\n")
    assert len(components) == installed > 50
    assert {"libc6", "python3", "openssl"} <= {component["name"] for component in components}


async def test_a_call_is_paid_and_the_root_is_not_written(scene: Scene) -> None:
    reply = await scene.call("/quote/ETH")
    assert (reply.status, reply.state) == (200, "charged"), reply.body
    status = Path(f"/proc/{scene.gateway.pid}/status").read_text()
    assert "Uid:\t65532\t65532" in status
    mounts = Path(f"/proc/{scene.gateway.pid}/mountinfo").read_text().splitlines()
    options = {line.split()[4]: line.split()[5].split(",") for line in mounts}
    assert "ro" in options["/"]
    assert {path.name.split("-")[0] for path in scene.volume.iterdir()} >= {"tollway.sqlite3"}


async def test_a_stop_under_load_loses_no_call(scene: Scene) -> None:
    before = (await scene.count_states())["charged"]
    outcomes: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(scene.call_until_away("/echo/stop", outcomes))
        await poll(lambda: outcomes["200 charged"] >= CALLS_MIN, what="calls under load")
        assert await scene.gateway.stop() == 0
    assert outcomes["200 charged"] >= CALLS_MIN
    assert scene.audit()["wrong"] == []
    scene.gateway.start()
    await scene.gateway.wait_ready()
    states = await scene.count_states()
    print(dict(outcomes), dict(states))
    assert states["charged"] - before == outcomes["200 charged"]
    assert scene.cluster.provider.count("/echo/stop") == outcomes["200 charged"]
    assert set(states) <= {"charged", "released"}


async def test_a_kill_under_load_charges_no_call_that_was_not_sent(scene: Scene) -> None:
    before = (await scene.count_states())["charged"]
    outcomes: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(scene.call_until_away("/echo/kill", outcomes))
        await poll(lambda: outcomes["200 charged"] >= CALLS_MIN, what="calls under load")
        scene.gateway.kill()
    assert scene.audit()["wrong"] == []
    scene.gateway.start()
    await scene.gateway.wait_ready()
    states = await scene.count_states()
    print(dict(outcomes), dict(states))
    sent = scene.cluster.provider.count("/echo/kill")
    assert outcomes["200 charged"] <= states["charged"] - before <= sent
    assert sent - outcomes["200 charged"] <= CALLERS
    assert states["held"] <= CALLERS
    assert (await scene.call("/quote/ETH")).status == 200
