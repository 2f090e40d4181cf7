"""A signature counts only for its purpose: a sign-in pays for nothing, a payment opens no session, and
a request that differs in one byte from the signed one is another request."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.chain import Transaction, transfer_log
from tests.kit.gateway import PUBLIC_URL, TOKEN, InProcessGateway, open_gateway
from tests.kit.narrowing import existing, problem_of
from tests.kit.payer import KeyWallet, sign_in_with_x
from tollway.errors import Code, Problem, Refusal
from tollway.identity.http_signatures import SignedRequest, read_http_proofs, signature_headers
from tollway.identity.signatures import eip191_digest, paid_call_digest, transaction_digests
from tollway.identity.siwe import (
    SignInMessage,
    SignInProof,
    check_sign_in,
    format_moment,
    format_sign_in,
    parse_origin,
    parse_sign_in,
    read_siwx,
)
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.ledger.records import Payment
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.proof import format_binding, parse_binding, parse_proof

CHAIN = ChainId(84532)
ORIGIN = parse_origin(PUBLIC_URL)
TX = TxHash(b"\x5a" * 32)
NOW_MS = 1_795_239_000_000
BARE = SignedRequest(method="GET", raw_path=b"/api/v2/history", query=b"", headers=[], body=b"")
BRIEF = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as gateway:
        yield gateway


# ---- A login pays for nothing.


def login_text(address: Address, *, request_id: str | None = None, now_ms: int = NOW_MS) -> str:
    return format_sign_in(
        SignInMessage(
            domain=ORIGIN.authority,
            address=str(address),
            uri=f"{ORIGIN}/api/v2/auth/session",
            chain_id=CHAIN,
            nonce="a1b2c3d4e5f67890",
            issued_at=format_moment(now_ms),
            request_id=request_id,
        )
    )


def signed_request_digest(address: Address, headers: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    found: list[bytes] = []

    def keep(digest: bytes) -> bytes:
        found.append(digest)
        return bytes(65)

    request = replace(BARE, raw_path=b"/api/v2/gateway/api_quotes", headers=headers)
    given: Any = {"created": 1, "expires": 2, "nonce": "n"}
    signature_headers(request, origin=ORIGIN, address=address, chain_id=CHAIN, sign=keep, **given)
    return found[0]


FOR_SOMETHING_ELSE: dict[str, Callable[[Address, TxHash], bytes]] = {
    "a login": lambda buyer, tx: eip191_digest(login_text(buyer).encode()),
    "a login that names the payment": lambda buyer, tx: eip191_digest(
        login_text(buyer, request_id=str(tx)).encode()
    ),
    "a signed request": lambda buyer, tx: signed_request_digest(buyer),
    "a signed request that names the payment": lambda buyer, tx: signed_request_digest(
        buyer, ((b"x-payment-tx", str(tx).encode()),)
    ),
    "an endpoint of its own": lambda buyer, tx: eip191_digest(PUBLIC_URL.encode()),
    "the hash in upper case": lambda buyer, tx: eip191_digest(str(tx).upper().encode()),
    "the hash without its 0x": lambda buyer, tx: eip191_digest(str(tx)[2:].encode()),
    "the hash with a line under it": lambda buyer, tx: eip191_digest(f"{tx}\n".encode()),
    "the bare hash, without a prefix": lambda buyer, tx: bytes(tx),
    "another payment": lambda buyer, tx: transaction_digests(TX)[0],
}


def mine_payment(gateway: InProcessGateway, paid: Payment) -> None:
    """The transaction of a payment, in a final block: the transfer is of the payer, for any signature."""
    logs = (transfer_log(TOKEN, paid.payer, paid.payee, paid.value_units),)
    transaction = Transaction(tx_hash=paid.tx_hash, sender=paid.payer, recipient=TOKEN, logs=logs)
    gateway.chain.mine(CHAIN, transaction)
    gateway.chain.bury(CHAIN, 12)


@pytest.mark.parametrize("name", FOR_SOMETHING_ELSE)
async def test_a_signature_for_another_purpose_pays_for_nothing(gateway: InProcessGateway, name: str) -> None:
    await gateway.publish()
    paid = await gateway.pay()
    mine_payment(gateway, paid)
    signature = gateway.wallet.sign_hex(FOR_SOMETHING_ELSE[name](gateway.wallet.address, paid.tx_hash))
    headers = [("X-Payment-Tx", str(paid.tx_hash)), ("X-Signature", signature)]
    answer = await gateway.ask("GET", "/q", headers)
    assert (answer.status, answer.problem["code"]) == (403, "payer_mismatch")
    assert not gateway.upstream.arrived
    answer = await gateway.ask("GET", "/q", gateway.plain_proof(paid.tx_hash))  # nothing was spent
    assert (answer.status, len(gateway.upstream.arrived)) == (200, 1)


async def test_a_sign_in_does_not_replace_a_payment(gateway: InProcessGateway) -> None:
    await gateway.publish()
    await gateway.pay()
    text = login_text(gateway.wallet.address)
    signature = gateway.wallet.sign_hex(eip191_digest(text.encode()))
    payload = base64.b64encode(json.dumps({"signature": signature, "type": "eip191"}).encode()).decode()
    logins = {
        "a session": ("Authorization", "Bearer " + "a" * 43),
        "a sign-in in a header": ("SIGN-IN-WITH-X", payload),
        "a signed request": ("Signature", "eth=:AAAA:"),
    }
    for name, header in logins.items():
        answer = await gateway.ask("GET", "/q", [header])
        assert (answer.status, answer.problem["code"]) == (402, "payment_required"), name
    for wrong in ("PAYMENT-SIGNATURE", "X-PAYMENT"):
        answer = await gateway.ask("GET", "/q", [(wrong, payload)])
        assert (answer.status, answer.problem["code"]) == (400, "payment_malformed"), wrong
    assert not gateway.upstream.arrived


# ---- A payment opens no session.


def payment_digests(address: Address) -> dict[str, bytes]:
    plain, raw = transaction_digests(TX)
    bound = paid_call_digest(
        chain_id=CHAIN,
        gateway=str(ORIGIN),
        api_id="api_quotes",
        method="GET",
        target=b"/api/v2/history",
        body_hash=keccak256(b""),
        transaction=TX,
        valid_until=NOW_MS // 1000 + 60,
        nonce=bytes(32),
    )
    return {"the plain form": plain, "the raw form": raw, "the bound form": bound}


@pytest.mark.parametrize("form", ["the plain form", "the raw form", "the bound form"])
async def test_a_payments_signature_opens_no_session(harness, wallet, form: str) -> None:
    signature = wallet.sign(payment_digests(wallet.address)[form])
    text = (await harness.sign_in.create_challenge()).format_message(address=wallet.address, chain_id=CHAIN)
    for shown in (text, str(TX), bytes(TX).decode("latin-1"), f"{TX}\n{text}"):
        with pytest.raises(Refusal) as refused:
            await harness.sign_in.open_session(text=shown, signature=signature, client_address="192.0.2.1")
        assert refused.value.problem.code is Code.INVALID_SIGNATURE
    request = harness.signed(wallet, sign=lambda digest: signature)
    assert (await problem_of(harness.authenticator.authenticate(request))).reason == "signature_mismatch"
    shown_as_payment = [
        (b"x-payment-tx", str(TX).encode()),
        (b"x-signature", b"0x" + signature.hex().encode()),
    ]
    with pytest.raises(Refusal) as refused:
        await harness.authenticator.authenticate(replace(BARE, headers=shown_as_payment))
    assert refused.value.problem.code is Code.AUTHENTICATION_REQUIRED
    good = wallet.sign(eip191_digest(text.encode()))  # and its nonce is still good
    await harness.sign_in.open_session(text=text, signature=good, client_address="192.0.2.1")


@BRIEF
@given(st.binary(min_size=32, max_size=32))
def test_no_text_that_pays_is_a_login(drawn: bytes) -> None:
    for text in (str(TxHash(drawn)), drawn.decode("latin-1")):
        with pytest.raises(ValueError):
            parse_sign_in(text)


# ---- A request that differs from the signed one is another request.

_PATHS = st.text("abc/%2eXY019;=.", max_size=12).map(lambda text: b"/" + text.encode())
_QUERIES = st.text("abc&=%2019", max_size=12).map(str.encode)


@BRIEF
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    path=_PATHS,
    query=_QUERIES,
    body=st.binary(max_size=8),
    other=st.tuples(st.sampled_from(["GET", "POST", "PUT"]), _PATHS, _QUERIES, st.binary(max_size=8)),
)
def test_a_signature_covers_method_path_query_and_body(
    method: str, path: bytes, query: bytes, body: bytes, other: tuple[str, bytes, bytes, bytes]
) -> None:
    bare = SignedRequest(method=method, raw_path=path, query=query, headers=[], body=body)
    given: Any = {"created": NOW_MS // 1000, "expires": NOW_MS // 1000 + 60, "nonce": "n"}
    signer: Any = {"address": Address(b"\x11" * 20), "sign": lambda digest: b"\x01" * 65}
    more = signature_headers(bare, origin=ORIGIN, chain_id=CHAIN, **signer, **given)
    signed = replace(bare, headers=[(name.lower().encode(), value.encode()) for name, value in more])

    def digest_of(request: SignedRequest) -> bytes | None:
        found = read_http_proofs(request, origin=ORIGIN, limits=DEFAULT_LIMITS, now_ms=NOW_MS)
        return None if isinstance(found, Problem) else found[0].digest

    assert digest_of(signed) is not None
    changes = ("method", "raw_path", "query", "body")
    for name, value in zip(changes, other, strict=True):
        changed = replace(signed, **{name: value})
        if changed != signed:
            assert digest_of(changed) != digest_of(signed), name


# ---- For every input, a parser returns a record or a refusal.

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_MEMBERS = ("domain", "address", "uri", "version", "chainId", "type", "nonce", "issuedAt", "signature")
_GOOD = {
    "domain": ORIGIN.authority,
    "address": str(Address(b"\x11" * 20)),
    "uri": f"{ORIGIN}/api/v2/history",
    "version": "1",
    "chainId": f"eip155:{CHAIN}",
    "type": "eip191",
    "nonce": "a1b2c3d4e5f67890",
    "issuedAt": format_moment(NOW_MS),
    "signature": "0x" + "ab" * 65,
}


@BRIEF
@given(
    _JSON, st.sampled_from((*_MEMBERS, "statement", "expirationTime", "notBefore", "requestId", "resources"))
)
def test_any_value_in_any_member_is_a_proof_or_a_refusal(value: object, member: str) -> None:
    header = base64.b64encode(json.dumps({**_GOOD, member: value}).encode()).decode()
    found = read_siwx(header)
    assert isinstance(found, SignInProof | Problem)
    if isinstance(found, SignInProof):
        assert parse_sign_in(format_sign_in(found.message)) == found.message


@BRIEF
@given(st.binary(max_size=80))
def test_any_bytes_in_a_sign_in_header_are_refused(raw: bytes) -> None:
    assert isinstance(read_siwx(base64.b64encode(raw).decode()), Problem)
    assert isinstance(read_siwx(raw.decode("latin-1")), Problem)


@BRIEF
@given(
    domain=st.sampled_from([ORIGIN.authority, "evil.example", ORIGIN.authority + ":443", "gw.example.com.evil.example"]),
    uri=st.sampled_from(
        [f"{ORIGIN}{end}" for end in ("", "/x", ".evil.example/", "@evil.example/", ":444/")]
        + ["http" + str(ORIGIN)[5:] + "/"]
    ),
    issued_s=st.integers(-400, 20),
    lasts_s=st.none() | st.integers(-20, 400),
    waits_s=st.none() | st.integers(-20, 20),
)  # fmt: skip
def test_a_signature_counts_for_this_gateway_and_now_only(
    domain: str, uri: str, issued_s: int, lasts_s: int | None, waits_s: int | None
) -> None:
    def moment(seconds: int | None) -> str | None:
        return None if seconds is None else format_moment(NOW_MS + seconds * 1000)

    message = SignInMessage(
        domain=domain,
        address=_GOOD["address"],
        uri=uri,
        chain_id=CHAIN,
        nonce=_GOOD["nonce"],
        issued_at=format_moment(NOW_MS + issued_s * 1000),
        expiration_time=moment(lasts_s),
        not_before=moment(waits_s),
    )
    counts = check_sign_in(message, origin=ORIGIN, limits=DEFAULT_LIMITS, now_ms=NOW_MS) is None
    assert counts == (
        domain == ORIGIN.authority
        and uri in (str(ORIGIN), f"{ORIGIN}/x")
        and -300 <= issued_s <= 5
        and (lasts_s is None or lasts_s > 0)
        and (waits_s is None or waits_s <= 0)
    )


_HEADER_BYTES = st.binary(max_size=70) | st.text("0x9aAfF;=v1nonceblidUtH ", max_size=70).map(str.encode)


@BRIEF
@given(_HEADER_BYTES, _HEADER_BYTES, st.none() | _HEADER_BYTES, st.none() | _HEADER_BYTES)
def test_any_bytes_in_payment_headers_are_a_proof_or_a_refusal(
    tx: bytes, signature: bytes, params: bytes | None, network: bytes | None
) -> None:
    shown = [(b"x-payment-tx", tx), (b"x-signature", signature)]
    shown += [(b"x-signature-params", params)] if params is not None else []
    shown += [(b"x-payment-network", network)] if network is not None else []
    found = existing(parse_proof(shown))
    if isinstance(found, Problem):
        assert found.code is Code.INVALID_REQUEST
    elif found.binding is not None:
        assert parse_binding(format_binding(found.binding)) == found.binding


async def test_the_same_sign_in_sent_by_fifty_at_once_reads_once(harness, wallet) -> None:
    header = sign_in_with_x(await harness.sign_in.create_challenge(), wallet).encode()
    request = replace(BARE, headers=[(b"sign-in-with-x", header)])
    outcomes = await asyncio.gather(
        *(harness.authenticator.authenticate(request) for _ in range(50)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert len(refused) == 49
    assert {refusal.problem.code for refusal in refused} == {Code.NONCE_REUSED}


async def test_a_bound_signature_for_another_host_is_refused_with_the_public_url(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.publish()
    paid = await gateway.pay()
    mine_payment(gateway, paid)
    monkeypatch.setattr("tests.kit.gateway.HOST", "10.0.0.5:8402")
    proof = gateway.bound_proof(paid.tx_hash, target="/q", wallet=KeyWallet.named("stranger"))
    answer = await gateway.ask("GET", "/q", proof)
    assert (answer.status, answer.problem["code"]) == (403, "payer_mismatch")
    named = f"public_url of this gateway is {PUBLIC_URL}, and the request came for 10.0.0.5:8402"
    assert named in answer.problem["detail"]
