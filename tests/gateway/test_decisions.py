"""The cache of decisions: each input of `INPUTS` is changed between two calls, and the second call is decided as if nothing were cached."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tollway
from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import CHAIN, InProcessGateway, open_gateway
from tests.kit.payer import KeyWallet
from tests.kit.upstream import plain
from tollway.chain.port import ContractResult
from tollway.chain.tokens import ERC1271_MAGIC
from tollway.gateway.decisions import DECISIONS_MAX, INPUTS, PLAIN_VALUE_BYTES_MAX, SEEN_MAX, Follows
from tollway.gateway.headers import DECIDING
from tollway.gateway.request_signing import format_digest
from tollway.ledger.records import Payment
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.registry.listing import Listing, RateLimit

PRICE = 10_000
AGENT = ("User-Agent", "one")


@dataclass(slots=True, kw_only=True)
class Request:
    method: str = "GET"
    target: str = "/quote?x=1"
    headers: list[tuple[str, str]] = field(default_factory=lambda: [AGENT])
    body: bytes = b""
    listing: str = "api_quotes"


@dataclass(slots=True, kw_only=True)
class Scene:
    """One payment with much credit, and one request that spends it."""

    gateway: InProcessGateway
    listing: Listing
    payment: Payment
    request: Request = field(default_factory=Request)
    is_bound: bool = False
    proof: list[tuple[str, str]] = field(default_factory=list)

    async def ask(self) -> Exchange:
        request = self.request
        proof = self.proof or self.gateway.plain_proof(self.payment.tx_hash)
        if self.is_bound:
            proof = self.gateway.bound_proof(
                self.payment.tx_hash,
                method=request.method,
                target=request.target,
                body=request.body,
                listing=request.listing,
            )
        chunks = [request.body] if request.body else []
        headers = [*request.headers, *proof]
        return await self.gateway.ask(
            request.method, request.target, headers, chunks, listing=request.listing
        )

    async def remember(self) -> None:
        """The first call of a request makes the payment a known one, the second is seen, the third is remembered, the fourth uses it."""
        for _ in range(4):
            decided = self.gateway.decisions.decided
            assert (await self.ask()).status == 200
        assert self.gateway.decisions.decided == decided, "nothing has changed, and it was decided anew"


async def open_scene(gateway: InProcessGateway, **listing: Any) -> Scene:
    gateway.upstream.answer = plain(b"ok")
    return Scene(
        gateway=gateway, listing=await gateway.publish(**listing), payment=await gateway.pay(100 * PRICE)
    )


Change = Callable[[Scene], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`change` is made between two calls. `served`: what the second call gets, 200 or the code of its refusal; `check` looks at what reached
    the upstream. `is_bound`, `listing`, `request`: of both calls."""

    change: Change
    served: object = 200
    check: Callable[[Scene], None] = lambda scene: None
    is_bound: bool = False
    listing: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)


def set_request(**changes: Any) -> Change:
    def change(scene: Scene) -> None:
        for name, value in changes.items():
            setattr(scene.request, name, value)

    return change


def add_header(name: str, value: str) -> Change:
    def change(scene: Scene) -> None:
        scene.request.headers = [*scene.request.headers, (name, value)]

    return change


def last(scene: Scene) -> Any:
    return scene.gateway.upstream.arrived[-1]


def check_target(scene: Scene) -> None:
    assert last(scene).target == "/base/quote?x=2"


def check_values(scene: Scene) -> None:
    headers = dict(last(scene).headers)
    assert (headers["User-Agent"], headers["X-Kept"]) == ("two", "2")
    assert "X-Session-Id" not in headers


def check_body(scene: Scene) -> None:
    assert bytes(last(scene).body) == b"another"


def sign_by_another(scene: Scene) -> None:
    scene.proof = scene.gateway.plain_proof(scene.payment.tx_hash, wallet=KeyWallet.named("thief"))


def sign_bound_by_another(scene: Scene) -> None:
    scene.is_bound = False
    scene.proof = scene.gateway.bound_proof(
        scene.payment.tx_hash, target=scene.request.target, wallet=KeyWallet.named("thief")
    )


async def open_other_listing(scene: Scene) -> None:
    await scene.gateway.publish("api_other")
    scene.request.listing = "api_other"


async def raise_price(scene: Scene) -> None:
    scene.listing = await scene.gateway.revise(scene.listing, price=Price.parse("0.02"))


async def end_price(scene: Scene) -> None:
    """The old price counts for ten minutes, and is remembered in that time."""
    before = await scene.gateway.remaining_units(scene.payment)
    await raise_price(scene)
    await scene.remember()
    assert before - await scene.gateway.remaining_units(scene.payment) == 4 * PRICE
    scene.gateway.now_ms += DEFAULT_LIMITS.price_memory_s * 1000 + 1


def require_query(scene: Scene) -> None:
    scene.request.target = "/quote"


def block(scene: Scene) -> None:
    scene.gateway.blocked.add(scene.gateway.wallet.address)


def forget_payment(scene: Scene) -> None:
    scene.gateway.transaction_verifier.forget(scene.payment.tx_hash)


def close_upstream(scene: Scene) -> None:
    origin = scene.gateway.upstream.url.removesuffix("/base")
    for _ in range(100):
        scene.gateway.breaker.record_failed(origin)


def describe_body(body: bytes) -> list[tuple[str, str]]:
    return [("Content-Type", f"text/x-{len(body)}"), ("Content-Digest", format_digest(body))]


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Quotes", "version": "1"},
    "paths": {
        "/quote": {
            "get": {
                "parameters": [{"name": "x", "in": "query", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"description": "ok"}},
            }
        }
    },
}

ROWS = {
    "method": Row(change=set_request(method="HEAD")),
    "listing": Row(change=open_other_listing),
    "path": Row(change=set_request(target="/quote/BTC?x=1")),
    "names of query parameters": Row(change=set_request(target="/quote?y=1")),
    "values of query parameters": Row(change=set_request(target="/quote?x=2"), check=check_target),
    "plain signature": Row(change=sign_by_another, served="payment_pending"),
    "bound signature": Row(change=lambda scene: None, is_bound=True),
    "names and order of the headers": Row(change=add_header("X-Other", "1")),
    "value of a header that decides": Row(
        change=set_request(headers=[("CDN-Loop", "b")]), request={"headers": [("CDN-Loop", "a")]}
    ),
    "value of another header": Row(
        change=set_request(headers=[("User-Agent", "two"), ("X-Session-Id", "2"), ("X-Kept", "2")]),
        check=check_values,
        listing={"forward_headers": ("X-Kept",)},
        request={"headers": [AGENT, ("X-Session-Id", "1"), ("X-Kept", "1")]},
    ),
    "value that may be refused": Row(
        change=set_request(headers=[("User-Agent", "x" * (PLAIN_VALUE_BYTES_MAX + 1))])
    ),
    "header that Connection names": Row(change=add_header("Connection", "User-Agent")),
    "header given twice": Row(change=add_header("X-Twice", "1")),
    "Idempotency-Key": Row(change=add_header("Idempotency-Key", "one")),
    "Tollway-Max-Price": Row(change=add_header("Tollway-Max-Price", "1")),
    "body": Row(
        change=set_request(body=b"another", headers=describe_body(b"another")),
        check=check_body,
        request={"method": "POST", "body": b"one", "headers": describe_body(b"one")},
    ),
    "parameters that the document requires": Row(
        change=require_query, served="validation_failed", listing={"openapi": DOCUMENT}
    ),
    "revision of the listing": Row(change=raise_price),
    "known payment": Row(change=forget_payment),
    "time at which a price ends": Row(change=end_price),
    "ownership of the listing": Row(
        change=lambda scene: scene.gateway.verified.clear(), served="ownership_unverified"
    ),
    "circuit breaker": Row(change=close_upstream, served="upstream_unavailable"),
    "blocked wallet": Row(change=block, served="wallet_blocked"),
    "rate of the listing": Row(
        change=lambda scene: None, served="rate_limited", listing={"rate_limit": RateLimit(calls=4, per_s=60)}
    ),
}


CONSTANT = r'([A-Z_]+_HEADER) = b"([^"]+)"'
"""The name of a header with a name in the source."""


def test_each_input_has_a_row() -> None:
    assert ROWS.keys() == INPUTS.keys()


def test_each_header_that_the_gateway_reads_decides_or_is_read_at_each_call() -> None:
    root = Path(tollway.__file__).parent
    sources = [
        path.read_text() for package in ("gateway", "payments") for path in (root / package).glob("*.py")
    ]
    constants = {name: f'b"{value}"' for text in sources for name, value in re.findall(CONSTANT, text)}
    given = {
        constants.get(one, one) for text in sources for one in re.findall(r"find_header\(([^)]+)\)", text)
    }
    read = {one[2:-1].encode() for one in given if one.startswith('b"')}
    assert len(read) > 3
    assert read - DECIDING == {b"content-digest"}  # the coverage of the body


@pytest.mark.parametrize("name", ROWS)
async def test_a_remembered_decision_follows_its_input(name: str) -> None:
    row, follows = ROWS[name], INPUTS[name]
    async with open_gateway(only_verified=name == "ownership of the listing") as gateway:
        gateway.verified.add("api_quotes")
        scene = await open_scene(gateway, **row.listing)
        scene.is_bound = row.is_bound
        for changed, value in row.request.items():
            setattr(scene.request, changed, value)
        await scene.remember()
        decided, known = gateway.decisions.decided, set(gateway.decisions._known._entries)
        made = row.change(scene)
        if made is not None:
            await made
            decided = gateway.decisions.decided
        answer = await scene.ask()
        assert (200 if answer.status == 200 else answer.problem["code"]) == row.served
        if row.served == 200:
            assert gateway.decisions.decided - decided == (0 if follows is Follows.CALL else 1)
        row.check(scene)
        if follows is Follows.NEVER:
            for _ in range(3):
                await scene.ask()
            assert gateway.decisions._known._entries.keys() == known


# ---- Of single inputs, the rest.


async def test_a_bound_signature_of_another_wallet_buys_nothing_by_memory(gateway: InProcessGateway) -> None:
    scene = await open_scene(gateway)
    scene.is_bound = True
    await scene.remember()
    sign_bound_by_another(scene)
    answer = await scene.ask()
    assert answer.problem["code"] == "payment_pending"
    assert await gateway.remaining_units(scene.payment) == 96 * PRICE


async def test_a_bound_nonce_buys_once_by_memory_too(gateway: InProcessGateway) -> None:
    scene = await open_scene(gateway)
    scene.is_bound = True
    await scene.remember()
    scene.is_bound, scene.proof = (
        False,
        gateway.bound_proof(scene.payment.tx_hash, target=scene.request.target),
    )
    assert (await scene.ask()).status == 200
    assert (await scene.ask()).problem["code"] == "nonce_reused"


async def test_a_value_that_is_not_utf_8_is_refused_although_its_request_is_remembered(
    gateway: InProcessGateway,
) -> None:
    scene = await open_scene(gateway)
    await scene.remember()
    scene.request.headers = [("User-Agent", "latin-1: \xf6")]
    assert (await scene.ask()).status == 400


async def test_a_request_without_coding_is_another_one_than_a_request_with_a_coding(
    gateway: InProcessGateway,
) -> None:
    """Of `Accept-Encoding` one value goes upstream, so that the fields of a remembered request would be wrong for it."""
    scene = await open_scene(gateway)
    scene.request.headers = [("Accept-Encoding", "gzip")]
    await scene.remember()
    scene.request.headers = [("Accept-Encoding", "identity")]
    assert (await scene.ask()).status == 200
    assert dict(last(scene).headers).get("Accept-Encoding") == "identity"


async def test_headers_that_could_grow_over_their_limit_are_not_remembered() -> None:
    async with open_gateway(headers_bytes_max=900) as gateway:
        scene = await open_scene(gateway)
        scene.request.headers = [AGENT, ("Accept", "*/*")]
        for _ in range(5):
            assert (await scene.ask()).status == 200
        assert gateway.decisions.decided == 5


async def test_a_refused_call_is_not_remembered(gateway: InProcessGateway) -> None:
    scene = await open_scene(gateway)
    await scene.remember()
    decided = gateway.decisions.decided
    scene.request.headers = [*scene.request.headers, ("X-Other", "1")]
    block(scene)
    assert (await scene.ask()).problem["code"] == "wallet_blocked"
    assert gateway.decisions.decided == decided


async def test_the_memory_of_decisions_is_bounded(gateway: InProcessGateway) -> None:
    scene = await open_scene(gateway)
    await scene.remember()
    memory = gateway.decisions._known
    gateway.decisions._seen.update(dict.fromkeys(range(SEEN_MAX - len(gateway.decisions._seen))))
    (decision,) = list(memory._entries.values())[-1:]
    for number in range(DECISIONS_MAX - len(memory)):
        memory.put(number, decision, size_bytes=1)
    decided = gateway.decisions.decided
    scene.request.target = "/quote/other"
    for _ in range(2):
        assert (await scene.ask()).status == 200
    assert (gateway.decisions.decided, len(memory)) == (decided + 2, DECISIONS_MAX)
    assert len(gateway.decisions._seen) <= SEEN_MAX


@pytest.mark.parametrize("place", ["header", "query", "path"])
async def test_a_request_with_a_long_head_is_decided_each_time(gateway: InProcessGateway, place: str) -> None:
    scene = await open_scene(gateway)
    long = "x" * gateway.limits.remembered_bytes_max
    if place == "header":
        scene.request.headers = [*scene.request.headers, ("X-Other", long)]
    else:
        scene.request.target = f"/quote?x={long}" if place == "query" else f"/{long}"
    for _ in range(5):
        assert (await scene.ask()).status == 200
    assert (gateway.decisions.decided, len(gateway.decisions._known)) == (5, 0)


async def test_the_memory_of_decisions_is_bounded_by_bytes() -> None:
    async with open_gateway(decisions_bytes_max=12_000) as gateway:
        scene = await open_scene(gateway)
        known = gateway.decisions._known
        for number in range(12):
            scene.request.headers = [AGENT, ("X-Other", f"{number}" + "x" * 1_500)]
            for _ in range(3):
                assert (await scene.ask()).status == 200
        assert 10_000 < known.total_bytes <= 12_000
        assert len(known) == 6


async def test_a_contract_wallet_is_verified_at_each_call(gateway: InProcessGateway) -> None:
    """It may end a signature that it has accepted before."""
    scene = await open_scene(gateway)
    wallet = KeyWallet.named("contract").address
    answers = [ContractResult(reverted=False, payload=ERC1271_MAGIC.ljust(32, b"\0"))]
    gateway.chain.deploy(CHAIN, wallet, lambda calldata: answers[-1])
    payment = gateway.sample_payment(payer=wallet, value_units=100 * PRICE)
    (scene.payment,) = await gateway.ledger.record_payments([payment], now_ms=gateway.now_ms)
    for _ in range(5):
        assert (await scene.ask()).status == 200
    assert gateway.decisions.decided == 5
    answers.append(ContractResult(reverted=False, payload=bytes(32)))
    assert (await scene.ask()).status != 200
    assert await gateway.remaining_units(scene.payment) == 95 * PRICE
