"""On every rail, the forwarded request has the gateway's signature over the sent bytes, and no signature header from anywhere else."""

import itertools
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from pydantic_core import to_json

from tests.kit.gateway import PUBLIC_URL, InProcessGateway
from tests.kit.mcp import QUOTES, mcp_context, mcp_request
from tests.kit.payer import KeyWallet, Payer
from tests.kit.upstream import Arrived, hang_up, plain
from tollway.client.provider import Forwarded, ForwardedRefused, ForwardedVerifier
from tollway.gateway.request_signing import format_digest
from tollway.identity.http_signatures import encode_base64url
from tollway.ledger.records import Dialect
from tollway.money import Price
from tollway.registry.listing import UpstreamAuth
from tollway.web.api.mcp_tools import McpTools, ToolInvocation

LARGE = b"x" * 200_000


class Provider:
    """The provider's side of one gateway: every request that arrived, judged."""

    def __init__(self, gateway: InProcessGateway, *api_ids: str, secrets: Mapping[str, str] = {}) -> None:
        self.gateway = gateway
        self.verifier = ForwardedVerifier(
            PUBLIC_URL,
            endpoint=gateway.upstream.url + "/base",
            api_ids=api_ids or ["api_quotes"],
            secrets=secrets,
            fetch=lambda url: to_json(gateway.signer.describe()),
            now_s=lambda: gateway.now_ms / 1000,
        )

    def verify(self, arrived: Arrived) -> Forwarded:
        return self.verifier.verify(arrived.method, arrived.target, arrived.headers, bytes(arrived.body))

    def judge_last(self) -> Forwarded:
        return self.verify(self.gateway.upstream.arrived[-1])


@pytest.fixture
def provider(gateway: InProcessGateway) -> Provider:
    return Provider(gateway)


async def test_a_call_paid_by_a_transaction(gateway: InProcessGateway, provider: Provider) -> None:
    await gateway.publish()
    one, other = await gateway.pay(), await gateway.pay()
    proofs = (gateway.bound_proof(one.tx_hash, target="/q?a=%20b"), gateway.plain_proof(other.tx_hash))
    for proof in proofs:
        answer = await gateway.ask("GET", "/q?a=%20b", proof)
        forwarded = provider.judge_last()
        assert forwarded.call_id == answer.headers["tollway-call-id"]
        assert (forwarded.api_id, forwarded.payer) == ("api_quotes", str(gateway.wallet.address))
        assert forwarded.covers == "nothing"


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_call_paid_by_an_authorisation(
    gateway: InProcessGateway, provider: Provider, dialect: Dialect
) -> None:
    await gateway.publish()
    payer = Payer.funded(gateway, 10_000)
    answer = await payer.buy("POST", "/quote?x=1", dialect, chunks=[b'{"q":1}'])
    forwarded = provider.judge_last()
    assert (forwarded.call_id, forwarded.covers) == (answer.headers["tollway-call-id"], "digest")
    assert forwarded.payer == str(gateway.wallet.address)


async def test_a_free_call_has_no_payer_header_even_when_the_request_has_one(
    gateway: InProcessGateway, provider: Provider
) -> None:
    await gateway.publish(price=Price.parse("0"))
    await gateway.ask(headers=[("Tollway-Payer", str(gateway.wallet.address)), ("Tollway-Call-Id", "mine")])
    forwarded = provider.judge_last()
    assert (forwarded.payer, forwarded.call_id.startswith("call_")) == (None, True)


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "REPORT")
TARGETS = ("", "/", "/a%2Fb//c;d=1?x=1&x=2&y", "/caf%C3%A9?q=a+b%20c", "/~a:b@c!$&'()*+,=")


async def test_method_and_target_are_those_on_the_wire(gateway: InProcessGateway, provider: Provider) -> None:
    await gateway.publish(price=Price.parse("0"))
    calls = list(itertools.product(METHODS, TARGETS))
    for method, target in calls:
        await gateway.ask(method, target)
    refused = []
    for call, arrived in zip(calls, gateway.upstream.arrived, strict=True):
        try:
            provider.verify(arrived)
        except ForwardedRefused as failure:
            refused.append((*call, failure.reason))
    assert refused == []


async def test_the_secret_in_the_query_is_signed_too(gateway: InProcessGateway, provider: Provider) -> None:
    await gateway.publish(
        price=Price.parse("0"), upstream_auth=UpstreamAuth(location="query", name="key", value="s3 cret")
    )
    await gateway.ask("GET", "/q?a=1")
    (arrived,) = gateway.upstream.arrived
    assert arrived.target == "/base/q?a=1&key=s3%20cret"
    assert provider.verify(arrived)


# ---- Bodies.


@pytest.mark.parametrize(
    ("body", "more", "headers", "covers"),
    [
        (b"hello", {}, [], "digest"),
        (b"hello", {}, [("Content-Digest", format_digest(b"another"))], "digest"),
        (b"hello", {}, [("Content-Digest", "rubbish")], "digest"),
        (b"", {}, [("Content-Digest", format_digest(b""))], "nothing"),
        (LARGE, {}, [], "length"),
        (LARGE, {}, [("Content-Digest", "rubbish")], "length"),
        (LARGE, {}, [("Content-Digest", format_digest(LARGE))], "digest"),
        (LARGE, {"is_chunked": True}, [("Content-Digest", format_digest(LARGE))], "digest"),
    ],
)
async def test_a_body_by_its_digest_or_by_its_length(
    gateway: InProcessGateway,
    provider: Provider,
    body: bytes,
    more: dict[str, Any],
    headers: Any,
    covers: str,
) -> None:
    await gateway.publish(price=Price.parse("0"))
    chunks = [body] if body else []
    assert (await gateway.ask("POST", "/q", headers, chunks, **more)).status == 200
    (arrived,) = gateway.upstream.arrived
    assert provider.verify(arrived).covers == covers
    assert ("content-digest" in arrived.names) is (covers == "digest")


async def test_a_body_without_a_length_is_not_covered_by_the_signature(gateway: InProcessGateway) -> None:
    await gateway.publish(price=Price.parse("0"))
    await gateway.ask("POST", "/q", [], [LARGE], is_chunked=True)
    with pytest.raises(ForwardedRefused) as caught:
        Provider(gateway).judge_last()
    assert caught.value.reason == "body_not_covered"


async def test_a_body_that_is_covered_by_the_payers_signature_is_read_first_and_digested(
    gateway: InProcessGateway, provider: Provider
) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash, method="POST", target="/q", body=LARGE)
    assert (await gateway.ask("POST", "/q", proof, [LARGE])).status == 200
    assert provider.judge_last().covers == "digest"


async def test_a_wrong_digest_of_the_callers_is_seen_by_the_provider(
    gateway: InProcessGateway, provider: Provider
) -> None:
    await gateway.publish(price=Price.parse("0"))
    await gateway.ask("POST", "/q", [("Content-Digest", format_digest(b"another"))], [LARGE])
    with pytest.raises(ForwardedRefused) as caught:
        provider.judge_last()
    assert caught.value.reason == "digest_mismatch"


# ---- Again.


async def test_a_repeat_under_the_same_claim_is_signed_anew(
    gateway: InProcessGateway, provider: Provider
) -> None:
    await gateway.publish()
    gateway.upstream.answer = hang_up
    proof = await gateway.plain_payment()
    await gateway.ask("GET", "/q", proof)
    gateway.upstream.answer = plain(b"late")
    gateway.now_ms += 3_600_000
    assert (await gateway.ask("GET", "/q", proof)).status == 200
    first, second = gateway.upstream.arrived
    assert provider.verify(second).call_id == first.find("tollway-call-id")
    with pytest.raises(ForwardedRefused) as caught:
        provider.verify(second)
    assert caught.value.reason == "replayed"


# ---- The key of a repeat.


def keys_of(gateway: InProcessGateway) -> list[str | None]:
    return [arrived.find("idempotency-key") for arrived in gateway.upstream.arrived]


@pytest.mark.parametrize("signature", ["ed25519", "none"])
async def test_an_api_that_names_the_idempotency_key_gets_one_for_each_payer(
    gateway: InProcessGateway, signature: Any
) -> None:
    """The API sees one client: with the callers' own keys it would return the paid response of one to the other."""
    await gateway.publish(forward_headers=("idempotency-key",), forward_signature=signature)
    alice, bob = gateway.wallet, KeyWallet.named("bob")
    for wallet, key in ((alice, "k1"), (bob, "k1"), (alice, "k2")):
        proof = await gateway.plain_payment(wallet=wallet)
        answer = await gateway.ask("POST", "/q", [("Idempotency-Key", key), *proof], [b"{}"])
        assert answer.status == 200
    keys = keys_of(gateway)
    assert len({str(UUID(key)) for key in keys if key is not None}) == 3
    assert not {"k1", "k2"} & set(keys)
    assert gateway.signer.name_repeat("k1", api_id="api_other", payer=alice.address, client="")[1] not in keys


async def test_a_repeat_has_the_same_key_so_that_the_api_acts_once(gateway: InProcessGateway) -> None:
    await gateway.publish(forward_headers=("Idempotency-Key",))
    gateway.upstream.answer = hang_up
    request = [("Idempotency-Key", "k1"), *await gateway.plain_payment()]
    held = await gateway.ask("POST", "/q", request, [b"{}"])
    assert held.headers["tollway-payment-state"] == "held"
    gateway.upstream.answer = plain(b"late")
    gateway.now_ms += 3_600_000
    assert (await gateway.ask("POST", "/q", request, [b"{}"])).status == 200
    first, second = keys_of(gateway)
    assert first is not None
    assert first == second


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_a_call_paid_by_an_authorisation_has_the_key_of_its_payer(
    gateway: InProcessGateway, dialect: Dialect
) -> None:
    await gateway.publish(forward_headers=("Idempotency-Key",))
    payer = Payer.funded(gateway, 10_000)
    answer = await payer.buy("POST", "/q", dialect, headers=[("Idempotency-Key", "k1")], chunks=[b"{}"])
    assert answer.status == 200
    expected = gateway.signer.name_repeat("k1", api_id="api_quotes", payer=gateway.wallet.address, client="")
    assert keys_of(gateway) == [expected[1]]


async def test_a_free_call_has_the_key_of_its_network(gateway: InProcessGateway) -> None:
    await gateway.publish(price=Price.parse("0"), forward_headers=("Idempotency-Key",))
    for _ in range(2):
        assert (await gateway.ask("POST", "/q", [("Idempotency-Key", "k1")], [b"{}"])).status == 200
    first, second = keys_of(gateway)
    assert first is not None
    assert first == second
    name_repeat = gateway.signer.name_repeat
    networks = [name_repeat("k1", api_id="a", payer=None, client=client) for client in ("1.2.3.4", "1.2.3.5")]
    assert len(set(networks)) == 2


@pytest.mark.parametrize("headers", [(), ("X-Idempotency-Key",)])
async def test_an_api_that_does_not_name_the_key_gets_none(
    gateway: InProcessGateway, headers: tuple[str, ...]
) -> None:
    await gateway.publish(price=Price.parse("0"), forward_headers=headers)
    await gateway.ask("POST", "/q", [("Idempotency-Key", "k1")], [b"{}"])
    await gateway.publish("api_named", price=Price.parse("0"), forward_headers=("Idempotency-Key",))
    await gateway.ask("POST", "/q", (), [b"{}"], listing="api_named")
    assert keys_of(gateway) == [None, None]


async def test_a_tool_of_mcp_is_signed_as_any_call(gateway: InProcessGateway, provider: Provider) -> None:
    await gateway.publish(openapi=QUOTES, price=Price.parse("0"))
    room = McpTools(mcp_context(gateway))

    async def ask(name: str, **arguments: Any) -> Any:
        answer = await room.run(
            ToolInvocation(name=name, arguments=arguments, meta={}, mcp_request=mcp_request())
        )
        assert answer is not None
        assert not answer.is_error, answer.content
        return answer.content

    tools = {tool["path"]: tool["toolName"] for tool in (await ask("get_api", apiId="api_quotes"))["tools"]}
    await ask("proxy_tool_call", toolName=tools["/quote/{asset}"], arguments={"asset": "ETH"})
    assert provider.judge_last().api_id == "api_quotes"


# ---- A listing that has the signature switched off.


SIGNED_NAMES = ("signature", "signature-input", "content-digest")
CALL_NAMES = ("tollway-call-id", "tollway-api-id", "tollway-payer")


def names_call(gateway: InProcessGateway, answer: Any, *, payer: str | None) -> None:
    """The last upstream request identifies its call, and has no signature."""
    arrived = gateway.upstream.arrived[-1]
    assert not set(SIGNED_NAMES) & set(arrived.names)
    named = [arrived.find(name) for name in CALL_NAMES]
    assert named == [answer.headers["tollway-call-id"], "api_quotes", payer]


async def test_an_unsigned_call_paid_by_a_transaction(gateway: InProcessGateway) -> None:
    await gateway.publish(forward_signature="none")
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash, method="POST", target="/q", body=LARGE)
    answer = await gateway.ask("POST", "/q", proof, [LARGE])
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "charged")
    names_call(gateway, answer, payer=str(gateway.wallet.address))


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_an_unsigned_call_paid_by_an_authorisation(gateway: InProcessGateway, dialect: Dialect) -> None:
    await gateway.publish(forward_signature="none")
    payer = Payer.funded(gateway, 10_000)
    answer = await payer.buy("POST", "/quote?x=1", dialect, chunks=[b'{"q":1}'])
    assert answer.status == 200
    names_call(gateway, answer, payer=str(gateway.wallet.address))


@pytest.mark.parametrize("body", [b"", b"hello", LARGE])
async def test_an_unsigned_call_carries_no_signature_or_digest_of_its_caller(
    gateway: InProcessGateway, body: bytes
) -> None:
    names = tuple(name for name, _ in FORGED)
    await gateway.publish(price=Price.parse("0"), forward_signature="none", forward_headers=names)
    headers = [*FORGED[:-1], ("Content-Digest", format_digest(body))]
    answer = await gateway.ask("POST", "/q", headers, [body] if body else [])
    names_call(gateway, answer, payer=None)
    (arrived,) = gateway.upstream.arrived
    assert not [value for _, value in arrived.headers if "forged" in value or "AAAA" in value]


async def test_without_its_signature_a_call_carries_the_same_headers(gateway: InProcessGateway) -> None:
    secret = UpstreamAuth(location="header", name="X-Key", value="s3cret")
    for name, value in (("api_signed", "ed25519"), ("api_unsigned", "none")):
        await gateway.publish(name, upstream_auth=secret, forward_signature=value)
        proof = await gateway.plain_payment()
        assert (await gateway.ask("POST", "/q", proof, [b"hello"], listing=name)).status == 200
    one, other = (arrived.headers for arrived in gateway.upstream.arrived)
    own = {"tollway-call-id", "tollway-api-id"}
    kept = [(key, value) for key, value in one if key.lower() not in {*SIGNED_NAMES, *own}]
    assert kept == [(key, value) for key, value in other if key.lower() not in own]


async def test_the_verifier_refuses_a_call_that_is_not_signed(
    gateway: InProcessGateway, provider: Provider
) -> None:
    await gateway.publish(price=Price.parse("0"), forward_signature="none")
    await gateway.ask()
    with pytest.raises(ForwardedRefused) as caught:
        provider.judge_last()
    assert (caught.value.reason, caught.value.is_temporary) == ("signature_missing", False)


async def test_an_edit_switches_the_signature_from_the_next_call_on(
    gateway: InProcessGateway, provider: Provider
) -> None:
    listing = await gateway.publish(price=Price.parse("0"))
    for _ in range(2):
        await gateway.ask()
        assert provider.judge_last()
        listing = await gateway.revise(listing, forward_signature="none")
        names_call(gateway, await gateway.ask(), payer=None)
        listing = await gateway.revise(listing, forward_signature="ed25519")


async def test_a_listing_with_a_secret_has_its_calls_signed_with_it(gateway: InProcessGateway) -> None:
    provider = Provider(gateway, secrets={"api_quotes": encode_base64url(b"s" * 32)})
    listing = await gateway.publish(forward_signature="hmac-sha256", forward_secret=b"s" * 32)
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash, method="POST", target="/q", body=b"hello")
    assert (await gateway.ask("POST", "/q", proof, [b"hello"])).status == 200
    forwarded = provider.judge_last()
    assert (forwarded.payer, forwarded.covers) == (str(gateway.wallet.address), "digest")
    assert 'alg="hmac-sha256"' in gateway.upstream.arrived[-1].find("signature-input")
    await gateway.revise(listing, forward_signature="ed25519", forward_secret=None)
    assert (await gateway.ask("GET", "/q", await gateway.plain_payment())).status == 200
    assert 'alg="ed25519"' in gateway.upstream.arrived[-1].find("signature-input")
    assert provider.judge_last()


async def test_a_listing_whose_secret_is_lost_is_not_called(gateway: InProcessGateway) -> None:
    await gateway.publish(forward_signature="hmac-sha256")
    answer = await gateway.ask("GET", "/q", await gateway.plain_payment())
    assert (answer.status, answer.problem["code"]) == (503, "storage_unavailable")
    assert not gateway.upstream.arrived


# ---- What looks like the gateway's.


FORGED = (
    ("Signature", "tollway=:AAAA:"),
    ("Signature-Input", 'tollway=("@method");tag="tollway-forward"'),
    ("Tollway-Call-Id", "forged"),
    ("Tollway-Api-Id", "forged"),
    ("Tollway-Payer", "forged"),
    ("Tollway-Anything", "forged"),
    ("Content-Digest", "forged"),
)


@pytest.mark.parametrize("change", [str, str.lower, str.upper])
async def test_nothing_of_it_comes_from_the_caller_for_every_listing(
    gateway: InProcessGateway, provider: Provider, change: Any
) -> None:
    names = tuple(change(name) for name, _ in FORGED)
    await gateway.publish(price=Price.parse("0"), forward_headers=names)
    await gateway.ask(headers=FORGED)
    (arrived,) = gateway.upstream.arrived
    assert provider.verify(arrived)
    assert not [value for _, value in arrived.headers if "forged" in value or "AAAA" in value]
    for one in ("signature", "signature-input", "tollway-call-id", "tollway-api-id"):
        assert [key.lower() for key, _ in arrived.headers].count(one) == 1


async def test_two_listings_of_the_same_host_are_distinguished_by_the_signature(
    gateway: InProcessGateway, provider: Provider
) -> None:
    await gateway.publish("api_thief", price=Price.parse("0"))
    await gateway.ask(listing="api_thief")
    with pytest.raises(ForwardedRefused) as caught:
        provider.judge_last()
    assert caught.value.reason == "wrong_listing"
