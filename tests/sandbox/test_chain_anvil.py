import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap

import aiohttp
import psutil
import pytest

from tests.kit.waits import bounded, until
from tollway.sandbox import chain as anvil_module
from tollway.sandbox.anvil_binary import AnvilPackage, AnvilUnavailable, find_anvil, name_platform
from tollway.sandbox.chain import ChainDriver, run_anvil


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_digest_of_the_binary_is_that_of_the_installed_package() -> None:
    package = AnvilPackage.load(platform_name=name_platform())
    assert package is not None
    assert package.binary_sha256.hex() == hashlib.sha256(find_anvil().read_bytes()).hexdigest()


@pytest.mark.live
async def test_serves_the_chain_on_loopback_in_our_process_group():
    async with run_anvil() as anvil, aiohttp.ClientSession() as session:
        assert int(await ChainDriver(session, anvil.rpc_url, anvil.chain_id).rpc("eth_chainId"), 16) == 84532
        assert os.getpgid(anvil.pid) == os.getpgid(0)
        listening = [c.laddr.ip for c in psutil.Process(anvil.pid).net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]


@pytest.mark.live
async def test_the_states_of_old_blocks_leave_no_file(tmp_path, monkeypatch):
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    async with run_anvil() as anvil, aiohttp.ClientSession() as session:
        # More than it keeps in memory.
        await ChainDriver(session, anvil.rpc_url, anvil.chain_id).rpc("anvil_mine", hex(600))
        await until(lambda: [one for one in temporary.rglob("*") if one.is_file()])
    assert list(home.iterdir()) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.live
async def test_two_chains_stand_side_by_side():
    async with run_anvil() as one, run_anvil() as other:
        assert one.rpc_url != other.rpc_url


@pytest.mark.live
@pytest.mark.parametrize("failure", [None, RuntimeError, asyncio.CancelledError])
async def test_leaves_nothing_behind(failure):
    before, pid = psutil.Process().children(), 0
    try:
        async with run_anvil() as anvil:
            pid = anvil.pid
            if failure is not None:
                raise failure
    except (RuntimeError, asyncio.CancelledError):
        pass
    assert not psutil.pid_exists(pid)
    assert psutil.Process().children() == before


@pytest.mark.live
async def test_a_chain_that_ignores_the_polite_signal_is_killed(monkeypatch):
    monkeypatch.setattr(anvil_module, "_STOP_DEADLINE_S", 0.05)
    async with run_anvil() as anvil:
        os.kill(anvil.pid, signal.SIGSTOP)  # a stopped process takes no SIGTERM
    assert not psutil.pid_exists(anvil.pid)


@pytest.mark.live
async def test_a_port_in_use_fails_at_once():
    before = psutil.Process().children()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AnvilUnavailable, match="stopped at once"),
    ):
        async with run_anvil(port=taken.getsockname()[1]):
            pass
    assert psutil.Process().children() == before


@pytest.mark.live
@pytest.mark.skipif(sys.platform != "linux", reason="only this kernel ties a child to its parent")
async def test_dies_with_a_parent_that_is_killed():
    program = """
        import asyncio
        from tollway.sandbox.chain import run_anvil
        async def main():
            async with run_anvil() as anvil:
                print(anvil.pid, flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as parent:
        try:
            pid = int(await bounded(asyncio.to_thread(parent.stdout.readline)))
            assert is_running(pid)
        finally:
            parent.kill()
    try:
        await until(lambda: not is_running(pid))
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
