"""Ownership that an operator requires, from publishing to the loss of the proof; and upstreams that fail and return.
With whole gateways, on both databases, and real payments."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import dns.message
import dns.rrset
import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import API, PRICE_UNITS, plain, sign_text
from tests.kit.gateway_process import poll
from tests.kit.upstream import Arrived, LoopbackUpstream, run_upstream
from tests.kit.upstream import plain as answered

pytestmark = pytest.mark.asyncio(loop_scope="module")

WELL_KNOWN = "/.well-known/tollway-verification"
SETTINGS = {
    "TOLLWAY_REQUIRE_OWNERSHIP": "true",
    "TEST_LIMIT_OWNERSHIP_RECHECK_S": "0.3",
    "TEST_LIMIT_OWNERSHIP_FAILURES_MAX": "2",
    "TEST_LIMIT_DIAL_PAUSE_S": "0.3",
}


@dataclass
class Zone(asyncio.DatagramProtocol):
    """A name server with the given TXT records."""

    texts: dict[str, str] = field(default_factory=dict)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        told, name = dns.message.make_response(question), question.question[0].name
        text = self.texts.get(name.to_text())
        if text is not None:
            told.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", f'"{text}"'))
        self.transport.sendto(told.to_wire(), addr)  # type: ignore[attr-defined] # a datagram transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    """`one` and `two` are the same gateway on SQLite, and two gateways over one database on PostgreSQL."""

    cluster: Any
    one: Any
    two: Any
    zone: Zone

    async def create(self, provider: Any, endpoint: str, **fields: Any) -> Any:
        return await self.cluster.control(
            self.one, provider, "POST", "/apis", self.cluster.draft(endpoint=endpoint, **fields)
        )

    async def read(self, path: str) -> Any:
        reply = await self.cluster.send(self.two.base_url + API + path)
        assert reply.status == 200, reply.body
        return reply.json

    async def check(self, provider: Any, api_id: str) -> Any:
        reply = await self.cluster.control(self.one, provider, "POST", f"/apis/{api_id}/ownership")
        assert reply.status == 200, reply.body
        return reply.json

    async def wait_answered(self, api_id: str, status: int) -> None:
        async def is_so() -> bool:
            answers = [await self.cluster.call(gateway, api_id) for gateway in (self.one, self.two)]
            return all(answer.status == status for answer in answers)

        await poll(is_so, what=f"calls of {api_id} answered {status} everywhere")


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
async def square(cluster: Any, request: pytest.FixtureRequest) -> AsyncIterator[Square]:
    loop = asyncio.get_running_loop()
    transport, zone = await loop.create_datagram_endpoint(Zone, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    settings = {**SETTINGS, "TOLLWAY_NAME_SERVERS": f"127.0.0.1:{port}"}
    try:
        if request.param == "sqlite":
            async with cluster.gateway(settings=settings) as one:
                yield Square(cluster=cluster, one=one, two=one, zone=zone)
            return
        url = await cluster.make_postgres()
        async with (
            cluster.gateway(database_url=url, settings=settings) as one,
            cluster.gateway(database_url=url, settings=settings, public_url=one.public_url) as two,
        ):
            yield Square(cluster=cluster, one=one, two=two, zone=zone)
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def run_origin(pages: dict[str, str]) -> AsyncIterator[LoopbackUpstream]:
    """An API that returns `ok`, and these pages."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        if arrived.target.startswith("/v1"):
            await answered(b"ok")(arrived, writer)
        else:
            page = pages.get(arrived.target)
            await answered((page or "").encode(), status=404 if page is None else 200)(arrived, writer)

    async with run_upstream() as upstream:
        upstream.answer = answer
        yield upstream


async def test_a_listing_is_neither_listed_nor_callable_without_a_proof_of_its_origin(
    square: Square,
) -> None:
    alice, bob, caller = await square.cluster.wallets(3)
    pages: dict[str, str] = {}
    async with run_origin(pages) as origin:
        endpoint = origin.url + "/v1"
        created = await square.create(alice, endpoint)
        rival = await square.create(bob, endpoint)
        assert (created.status, rival.status) == (201, 201)
        assert "ownership_unverified" in [one["code"] for one in created.json["warnings"]]
        api_id = created.json["id"]

        tx_hash = await square.cluster.send_tokens(caller, alice.address, 2 * PRICE_UNITS)
        for headers in ((), plain(caller, tx_hash)):
            refused = await square.cluster.call(square.two, api_id, headers=headers)
            assert (refused.status, refused.code, refused.state) == (403, "ownership_unverified", "none")
            assert not refused.asks_for_money
        assert api_id not in [one["id"] for one in (await square.read("/apis?limit=100"))["apis"]]

        told = await square.read(f"/apis/{api_id}/ownership")
        pages[WELL_KNOWN] = "# other lines\n" + told["challenge"]["wellKnown"]["content"] + "\n"
        assert (await square.check(bob, rival.json["id"]))["checks"]["wellKnown"] == "not_found"
        assert (await square.check(alice, api_id))["state"] == "verified"
        await square.wait_answered(api_id, 402)
        assert (await square.cluster.call(square.two, api_id, headers=plain(caller, tx_hash))).status == 200
        assert (await square.read(f"/apis/{api_id}"))["verified"] is True
        shown = [one["id"] for one in (await square.read("/apis?limit=100"))["apis"]]
        assert (api_id in shown, rival.json["id"] in shown) == (True, False)
        again = await square.create(bob, endpoint)
        assert (again.status, again.code) == (409, "already_exists")

        pages.clear()  # one of the gateways checks again, twice
        await square.wait_answered(api_id, 403)
        known = await square.read(f"/apis/{api_id}/ownership")
        assert (known["state"], known["verifiedAt"], known["failures"]) == ("unverified", None, 2)
        assert (await square.create(bob, endpoint)).status == 201


async def test_a_name_and_a_signature_of_the_payee_prove_it_too(square: Square) -> None:
    alice, payee = await square.cluster.wallets(2)
    pages: dict[str, str] = {}
    async with run_origin(pages) as origin:
        endpoint = origin.url.replace("127.0.0.1", "localhost") + "/v1"
        api_id = (await square.create(alice, endpoint, payTo=str(payee.address))).json["id"]
        challenge = (await square.read(f"/apis/{api_id}/ownership"))["challenge"]
        square.zone.texts[challenge["dns"]["name"] + "."] = challenge["dns"]["value"]
        assert (await square.check(alice, api_id))["method"] == "dns"
        square.zone.texts.clear()
        signature = sign_text(payee, challenge["signature"]["message"])
        pages["/openapi.json"] = json.dumps({"x-discovery": {"ownershipProofs": [signature]}})
        told = await square.check(alice, api_id)
        assert (told["method"], told["challenge"]["signature"]["signer"]) == (
            "signature",
            str(payee.address),
        )
        await square.wait_answered(api_id, 402)
        draft = square.cluster.draft(endpoint=endpoint, payTo=str(alice.address))
        edited = await square.cluster.control(square.one, alice, "PUT", f"/apis/{api_id}", draft)
        assert (edited.status, edited.json["verified"]) == (200, False)
        await square.wait_answered(api_id, 403)


async def test_calls_stop_while_the_upstream_is_down(cluster: Any) -> None:
    """No caller pays for a call to it."""
    settings = {"TEST_LIMIT_DIAL_PAUSE_S": "0.3"}
    provider, caller = await cluster.wallets(2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with cluster.gateway(settings=settings) as gateway:
        api_id = await cluster.publish(gateway, provider, endpoint=f"http://127.0.0.1:{port}/v1")
        tx_hash = await cluster.send_tokens(caller, provider.address, PRICE_UNITS)
        codes = []
        while "upstream_unavailable" not in codes:
            reply = await cluster.call(gateway, api_id, headers=plain(caller, tx_hash))
            codes.append(reply.code)
        assert codes == ["upstream_unreachable"] * 5 + ["upstream_unavailable"]
        refused = await cluster.call(gateway, api_id)
        assert (refused.status, refused.code) == (503, "upstream_unavailable")
        assert not refused.asks_for_money
        async with run_origin({}) as origin:
            server = await asyncio.start_server(origin.serve, "127.0.0.1", port)

            async def is_back() -> bool:
                return (await cluster.call(gateway, api_id)).status == 402

            await poll(is_back, what="the upstream")
            assert origin.arrived == []
            paid = await cluster.call(gateway, api_id, headers=plain(caller, tx_hash))
            assert (paid.status, paid.body) == (200, b"ok")
            server.close()
        assert "upstream_back" in gateway.read_log()
