"""Control workers: they serve the control plane in processes of their own over the gateway's PostgreSQL, they serve nothing that pays, and they live as long as
their gateway. On SQLite a gateway with them does not start.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import API, PRICE_UNITS, GatewayCluster, plain
from tests.kit.gateway_process import TOLLWAY, GatewayProcess, answers, clean_environment, poll
from tests.kit.ports import find_low_port
from tests.kit.waits import bounded, run_program
from tollway.ids import TxHash
from tollway.sandbox.chain import FundedAccount

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

WORKERS = 2
LISTINGS = 30
FLOODERS = 8
CALLS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAddress:
    """Where the workers of a gateway listen."""

    base_url: str
    public_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A gateway with workers, a listing, and a payer with credit."""

    cluster: GatewayCluster
    gateway: GatewayProcess
    control: ControlAddress
    provider: FundedAccount
    payer: FundedAccount
    api_id: str
    tx_hash: TxHash

    @property
    def control_port(self) -> int:
        return int(self.control.base_url.rpartition(":")[2])

    def workers(self) -> dict[int, psutil.Process]:
        return {one.pid: one for one in psutil.Process(self.gateway.pid).children()}

    async def pay(self, rest: str = "/echo/paid") -> Any:
        return await self.cluster.call(
            self.gateway, self.api_id, rest, headers=plain(self.payer, self.tx_hash)
        )


@contextlib.asynccontextmanager
async def open_service(cluster: GatewayCluster, *, workers: int = WORKERS) -> AsyncIterator[Service]:
    port, gas = find_low_port(), await cluster.wallet()
    settings = {
        "TOLLWAY_CONTROL_WORKERS": str(workers),
        "TOLLWAY_CONTROL_LISTEN": f"127.0.0.1:{port}",
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
    }
    url = await cluster.make_postgres()
    async with cluster.gateway(database_url=url, settings=settings) as gateway:
        control = ControlAddress(base_url=f"http://127.0.0.1:{port}", public_url=gateway.public_url)
        provider, payer = await cluster.wallets(2)
        api_id = await cluster.publish(control, provider)
        tx_hash = await cluster.send_tokens(payer, provider.address, 1_000 * PRICE_UNITS)
        yield Service(
            cluster=cluster,
            gateway=gateway,
            control=control,
            provider=provider,
            payer=payer,
            api_id=api_id,
            tx_hash=tx_hash,
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(cluster: GatewayCluster) -> AsyncIterator[Service]:
    async with open_service(cluster) as service:
        yield service


async def test_a_worker_shows_what_the_gateway_shows(service: Service) -> None:
    """Also the offers: a worker has no gas key and knows whether one can pay."""
    cluster, gateway, control = service.cluster, service.gateway, service.control
    assert len(service.workers()) == WORKERS
    for path in (f"/apis/{service.api_id}", "/apis", "/networks"):
        told = [await cluster.send(one.base_url + API + path) for one in (gateway, control)]
        assert [one.status for one in told] == [told[0].status] * 2
        assert told[0].json == told[1].json, path
    rails = (await cluster.send(f"{control.base_url}{API}/networks")).body
    assert b"x402" in rails
    assert (await cluster.send(control.base_url + "/")).status == 200
    assert (await service.pay()).status == 200
    assert await cluster.history(control, service.payer) == await cluster.history(gateway, service.payer)


async def test_a_key_of_a_creation_counts_in_every_process(service: Service) -> None:
    cluster, more = service.cluster, [("Idempotency-Key", "one-creation")]
    created = [
        await cluster.control(one, service.provider, "POST", "/apis", cluster.draft(), more=more)
        for one in (service.gateway, service.control, service.control, service.control)
    ]
    assert [one.status for one in created] == [201] * 4
    assert len({one.json["id"] for one in created}) == 1


@pytest.mark.parametrize(
    "path", ["/api/v2/gateway/{api_id}/echo/x", "/mcp", "/mcp/{api_id}", "/api/v2/channels/a/b/c/d"]
)
async def test_a_worker_serves_nothing_that_pays(service: Service, path: str) -> None:
    seen = len(service.cluster.provider.seen)
    headers = plain(service.payer, service.tx_hash)
    url = service.control.base_url + path.format(api_id=service.api_id)
    before = await service.cluster.payment(service.control, service.payer, service.tx_hash)
    for method in ("GET", "POST"):
        reply = await service.cluster.send(url, method=method, headers=headers)
        assert (reply.status, reply.code, reply.json["paymentState"]) == (404, "route_not_found", "none")
        assert "control_listen" in reply.json["detail"]
    assert len(service.cluster.provider.seen) == seen
    assert await service.cluster.payment(service.control, service.payer, service.tx_hash) == before


async def test_paid_calls_pass_while_lists_flood_the_workers(service: Service) -> None:
    cluster, is_over, lists = service.cluster, asyncio.Event(), 0
    for number in range(LISTINGS):
        await cluster.publish(service.control, service.provider, name=f"Quotes {number}")
    before = int((await cluster.payment(service.control, service.payer, service.tx_hash))["credit"])

    async def flood() -> None:
        nonlocal lists
        while not is_over.is_set():
            reply = await cluster.send(f"{service.control.base_url}{API}/apis?limit={LISTINGS}")
            assert (reply.status, len(reply.json["apis"])) == (200, LISTINGS)
            lists += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(FLOODERS):
            group.create_task(flood())
        try:
            for _ in range(CALLS):
                assert (await service.pay()).status == 200
            await poll(lambda: lists > FLOODERS, what="the flood")
        finally:
            is_over.set()
    after = int((await cluster.payment(service.gateway, service.payer, service.tx_hash))["credit"])
    assert before - after == CALLS * PRICE_UNITS
    assert (await cluster.audit(service.gateway)).is_balanced


async def test_a_killed_worker_comes_back_and_the_others_serve_meanwhile(service: Service) -> None:
    before = service.workers()
    killed = next(iter(before.values()))
    killed.send_signal(signal.SIGKILL)
    await poll(lambda: not _is_alive(killed), what="the end of the worker")
    assert await answers(service.control_port, f"{API}/apis")  # by a connection of its own
    await poll(lambda: len(service.workers().keys() - before.keys()) == 1, what="another worker")
    await poll(lambda: answers(service.gateway.port, "/readyz"), what="readiness")
    assert "control_worker_ended" in service.gateway.read_log()
    assert (await service.pay()).status == 200


async def test_a_worker_that_stands_still_makes_the_gateway_unready_and_takes_no_calls_with_it(
    service: Service,
) -> None:
    paused = next(iter(service.workers().values()))
    paused.suspend()
    try:
        await poll(lambda: _is_unready(service), what="unreadiness")
        assert await answers(service.gateway.port, "/readyz?for=traffic")
        assert (await service.pay()).status == 200
    finally:
        paused.resume()
    await poll(lambda: answers(service.gateway.port, "/readyz"), what="readiness")


async def _is_unready(service: Service) -> bool:
    reply = await service.cluster.send(f"{service.gateway.base_url}/readyz")
    return reply.status == 503 and b"control_workers" in reply.body


async def test_a_stop_completes_the_responses_of_the_workers(cluster: GatewayCluster) -> None:
    async with open_service(cluster, workers=1) as service, asyncio.TaskGroup() as group:
        workers, seen = service.workers(), len(cluster.provider.seen)
        async with _held_at_the_provider(cluster) as has_arrived:
            path, trial = f"/apis/{service.api_id}/trial", {"method": "GET", "path": "/echo/held"}
            asking = group.create_task(
                cluster.control(service.control, service.provider, "POST", path, trial)
            )
            await bounded(has_arrived.wait())
            service.gateway.process.send_signal(signal.SIGTERM)
            await poll(lambda: _refuses(service.control_port), what="the end of the listener")
            assert not asking.done()
        assert (await asking).status == 200
        assert await service.gateway.wait_ended() == 0
        assert len(cluster.provider.seen) == seen + 1
        assert not any(map(_is_alive, workers.values()))


@contextlib.asynccontextmanager
async def _held_at_the_provider(cluster: GatewayCluster) -> AsyncIterator[asyncio.Event]:
    """Inside, the provider holds its responses; the event says that a request has arrived."""
    route, has_arrived = cluster.provider._route, asyncio.Event()
    async with cluster.holding():
        hold = cluster.provider._route

        async def note(*request: Any) -> Any:
            has_arrived.set()
            return await hold(*request)

        vars(cluster.provider)["_route"] = note
        yield has_arrived
    assert cluster.provider._route == route


async def _refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def test_a_killed_gateway_leaves_no_worker_and_its_port_is_free(cluster: GatewayCluster) -> None:
    async with open_service(cluster, workers=1) as service:
        workers = service.workers()
        service.gateway.kill_and_restart()
        await poll(lambda: not any(map(_is_alive, workers.values())), what="the end of the workers")
        await service.gateway.wait_ready()
        assert (await service.cluster.send(f"{service.control.base_url}{API}/apis")).status == 200


def _is_alive(worker: psutil.Process) -> bool:
    return worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE


async def test_on_sqlite_the_command_is_refused(cluster: GatewayCluster, tmp_path: Path) -> None:
    settings = {"TOLLWAY_RPC_SANDBOX": cluster.driver.rpc_url, "TOLLWAY_ADMIN_LISTEN": "off"}
    run = await run_program(
        *(*TOLLWAY, "gateway", "serve", "--control-workers", "1"),
        env=clean_environment({**settings, "TOLLWAY_DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3"}),
    )
    assert run.code == 2
    assert "control_workers" in run.errors
    assert "set database_url to a PostgreSQL server" in run.errors
    assert not list(tmp_path.iterdir())
