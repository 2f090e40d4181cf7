"""A settled authorisation and its signature are public on the chain. It opens its call only together with something that is not public:
the challenge or the idempotency key of the claim, the client network of the claim, or a fresh proof of the wallet."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import USDC, InProcessGateway, open_gateway
from tests.kit.payer import CHAIN, KeyWallet, Payer, has_terms, is_replayed, sign_in_with_x
from tests.kit.upstream import hang_up, held, plain, raw
from tests.kit.waits import until
from tollway.gateway.idempotency import ClientNetworks
from tollway.identity.signatures import eip191_digest
from tollway.ledger.records import Dialect

PRICE = 10_000
TARGET = "/quote?x=1"
NONCE = b"\x42" * 32
HERE, NEIGHBOUR, ELSEWHERE = "2001:db8:1:2::5", "2001:db8:1:2:ffff::9", "2001:db8:1:3::5"
KEY = [("Idempotency-Key", "one")]
X402 = [Dialect.X402_V2, Dialect.X402_V1]
OTHER_WALLET = KeyWallet.named("other wallet")
Headers = Sequence[tuple[str, str]]


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(settle_wait_s=0.05, body_rate_grace_s=0.2) as small:
        await small.publish()
        yield small


async def buy_undecided(
    gateway: InProcessGateway,
    payer: Payer,
    dialect: Dialect = Dialect.X402_V2,
    *,
    method: str = "GET",
    headers: Headers = (),
    chunks: Sequence[bytes] = (),
) -> list[tuple[str, str]]:
    """A call whose answer is stored while its transaction is public and not mined."""
    shown = payer.show(await payer.quote(method), dialect)
    gateway.stop_mining()
    unknown = await gateway.ask(method, TARGET, [*shown, *headers], chunks, client=HERE)
    assert (unknown.status, unknown.problem["code"]) == (503, "payment_outcome_unknown")
    return shown


async def check_opens_nothing(gateway: InProcessGateway, answer: Exchange) -> None:
    (call,) = await gateway.history(gateway.wallet)
    assert answer.status == 409, answer.body[:80]
    assert answer.problem["code"] == "payment_already_used"
    assert answer.problem["callId"] == call.id
    assert not has_terms(answer)
    assert "idempotency-replayed" not in answer.headers


# ---- What calldata alone does not open.


@pytest.mark.parametrize("dialect", X402)
async def test_a_stored_answer_opens_in_the_client_network_of_the_claim_only(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    shown = await buy_undecided(gateway, payer, dialect)
    await gateway.recover_chain()
    await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, shown, client=ELSEWHERE))
    assert is_replayed(await gateway.ask("GET", TARGET, shown, client=HERE))
    assert is_replayed(await gateway.ask("GET", TARGET, shown, client=NEIGHBOUR))
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_an_undecided_settlement_is_reported_only_in_the_client_network_of_the_claim(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = await buy_undecided(gateway, payer)
    await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, shown, client=ELSEWHERE))
    told = await gateway.ask("GET", TARGET, shown, client=HERE)
    assert (told.status, told.problem["code"]) == (503, "payment_outcome_unknown")


async def test_the_one_repeat_of_a_lost_answer_is_not_taken_by_a_stranger(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """300 kB are too long to be stored, so the paid call runs once more."""
    gateway.upstream.answer = plain(b"x" * 300_000)
    shown = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, shown, client=ELSEWHERE))
    again = await gateway.ask("GET", TARGET, shown, client=HERE)
    assert (again.status, len(again.body)) == (200, 300_000)
    assert (gateway.served, gateway.earned) == (2, PRICE)


async def test_the_one_repeat_of_a_cut_answer_is_not_taken_by_a_stranger(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf", close=True)
    shown = payer.show(await payer.quote())
    await gateway.ask("GET", TARGET, shown, client=HERE)
    gateway.upstream.answer = plain()
    await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, shown, client=ELSEWHERE))
    again = await gateway.ask("GET", TARGET, shown, client=HERE)
    assert (again.status, again.body) == (200, b"ok")
    assert (gateway.served, gateway.earned) == (2, PRICE)


async def test_a_running_repeat_is_reported_to_its_caller_only(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = plain(b"x" * 300_000)
    shown = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    may_answer = asyncio.Event()

    gateway.upstream.answer = held(may_answer)
    async with asyncio.TaskGroup() as group:
        repeat = group.create_task(gateway.ask("GET", TARGET, shown, client=HERE))
        await until(lambda: gateway.served == 2)
        await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, shown, client=ELSEWHERE))
        told = await gateway.ask("GET", TARGET, shown, client=HERE)
        may_answer.set()
    assert (told.status, told.problem["code"]) == (409, "idempotency_in_progress")
    assert repeat.result().status == 200


async def test_an_unknown_call_settled_by_another_sender_is_not_repeated_without_a_further_proof(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote(), nonce=NONCE)
    assert (await gateway.ask("GET", TARGET, shown, client=HERE)).status == 504
    gateway.chain.settle_by_third_party(
        CHAIN, USDC.token, payer=payer.address, payee=_payee(gateway), base_units=PRICE, nonce=NONCE
    )
    gateway.upstream.answer = plain()
    await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, shown, client=ELSEWHERE))
    assert (await gateway.ask("GET", TARGET, shown, client=HERE)).status == 200
    assert (gateway.served, gateway.earned) == (2, PRICE)


def _payee(gateway: InProcessGateway) -> Any:
    return gateway.sample("any").pay_to


async def test_before_anything_was_sent_a_call_without_an_outcome_runs_again_from_anywhere(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, shown, client=HERE)).status == 504
    gateway.upstream.answer = plain()
    assert (await gateway.ask("GET", TARGET, shown, client=ELSEWHERE)).status == 200
    assert (gateway.served, gateway.earned) == (2, PRICE)


@pytest.mark.parametrize(("proof", "length"), [([], 10_000), ([("Signature-Input", "sig=()")], 10_000_000)])
async def test_a_stranger_is_refused_before_the_body_is_read(
    gateway: InProcessGateway, payer: Payer, proof: Headers, length: int
) -> None:
    """No body opens it without a proof of the wallet, nor one that is too long for such a proof."""
    shown = await buy_undecided(gateway, payer, method="POST", chunks=[b"{}"])
    await gateway.recover_chain()
    exchange = gateway.open(
        "POST", TARGET, [*shown, *proof], is_open=True, length=length, client=ELSEWHERE
    )  # of a body that never comes
    await check_opens_nothing(gateway, await gateway.run(exchange))


# ---- What opens it from elsewhere.


@pytest.mark.parametrize(("dialect", "headers"), [(Dialect.MPP, []), (Dialect.X402_V2, KEY)])
async def test_a_challenge_and_an_idempotency_key_open_it_from_everywhere(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect, headers: Headers
) -> None:
    shown = await buy_undecided(gateway, payer, dialect, headers=headers)
    await gateway.recover_chain()
    assert is_replayed(await gateway.ask("GET", TARGET, [*shown, *headers], client=ELSEWHERE))


def signed(
    gateway: InProcessGateway,
    *,
    method: str = "GET",
    path: str = "/quote",
    body: bytes = b"",
    wallet: KeyWallet | None = None,
    nonce: str = "n-1",
) -> Headers:
    """The headers of ERC-8128 for a call of the listing."""
    return gateway.sign_call(method, f"api_quotes{path}", "x=1", body=body, wallet=wallet, nonce=nonce)


async def sign_in(gateway: InProcessGateway) -> Headers:
    """`SIGN-IN-WITH-X` for a nonce of the gateway."""
    challenge = await gateway.sign_in.create_challenge()
    return [("SIGN-IN-WITH-X", sign_in_with_x(challenge, gateway.wallet))]


async def open_session(gateway: InProcessGateway) -> str:
    text = (await gateway.sign_in.create_challenge()).format_message(
        address=gateway.wallet.address, chain_id=CHAIN
    )
    signature = gateway.wallet.sign(eip191_digest(text.encode()))
    return (await gateway.sign_in.open_session(text=text, signature=signature, client_address=HERE)).token


@pytest.mark.parametrize("kind", ["ERC-8128", "SIGN-IN-WITH-X"])
async def test_a_fresh_proof_of_the_wallet_opens_it_once_from_everywhere(
    gateway: InProcessGateway, payer: Payer, kind: str
) -> None:
    shown = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    proof = signed(gateway) if kind == "ERC-8128" else await sign_in(gateway)
    assert is_replayed(await gateway.ask("GET", TARGET, [*shown, *proof], client=ELSEWHERE))
    await check_opens_nothing(gateway, await gateway.ask("GET", TARGET, [*shown, *proof], client=ELSEWHERE))


async def test_a_fresh_proof_covers_the_body(gateway: InProcessGateway, payer: Payer) -> None:
    shown = await buy_undecided(gateway, payer, method="POST", chunks=[b"{}"])
    await gateway.recover_chain()
    proof = signed(gateway, method="POST", body=b"{}")
    answer = await gateway.ask("POST", TARGET, [*shown, *proof], [b"{}"], client=ELSEWHERE)
    assert is_replayed(answer)


async def test_a_proof_that_does_not_hold_opens_nothing(gateway: InProcessGateway, payer: Payer) -> None:
    shown = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    proofs: dict[str, Headers] = {
        "another wallet's": signed(gateway, wallet=OTHER_WALLET),
        "another path's": signed(gateway, path="/other", nonce="n-2"),
        "another method's": signed(gateway, method="POST", nonce="n-3"),
        "no signature": [("Signature-Input", "sig=()"), ("Signature", "sig=:AA==:")],
        "no message": [("SIGN-IN-WITH-X", "e30=")],
        "a session": [("Authorization", f"Bearer {await open_session(gateway)}")],
    }
    for name, proof in proofs.items():
        answer = await gateway.ask("GET", TARGET, [*shown, *proof], client=ELSEWHERE)
        assert answer.status == 409, name
        await check_opens_nothing(gateway, answer)
    assert is_replayed(await gateway.ask("GET", TARGET, shown, client=HERE))


async def test_a_proof_of_the_wallet_never_goes_upstream(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.upstream.answer = plain(b"x" * 300_000)
    shown = await buy_undecided(gateway, payer)
    await gateway.recover_chain()
    answer = await gateway.ask(
        "GET", TARGET, [*shown, *signed(gateway), *await sign_in(gateway)], client=ELSEWHERE
    )
    assert answer.status == 200
    *_, arrived = gateway.upstream.arrived
    assert "erc8128" not in (arrived.find("signature-input") or "")
    assert "sign-in-with-x" not in arrived.names


# ---- What is kept of a client network.


def test_networks_are_kept_as_keyed_hashes_that_cannot_be_compared_with_each_other() -> None:
    networks = ClientNetworks.derive([b"\x01" * 32])
    kept = networks.hash(NONCE, HERE)
    assert len(kept) == 16
    assert networks.is_same(kept, NONCE, NEIGHBOUR)
    assert not networks.is_same(kept, NONCE, ELSEWHERE)
    assert not networks.is_same(None, NONCE, HERE)
    assert networks.hash(b"\x43" * 32, HERE) != kept
    assert ClientNetworks.derive([b"\x02" * 32]).hash(NONCE, HERE) != kept


def test_networks_are_recognised_after_the_secret_key_was_changed() -> None:
    kept = ClientNetworks.derive([b"\x01" * 32]).hash(NONCE, "192.0.2.7")
    changed = ClientNetworks.derive([b"\x02" * 32, b"\x01" * 32])
    assert changed.is_same(kept, NONCE, "192.0.2.7")
    assert not changed.is_same(kept, NONCE, "192.0.2.8")
