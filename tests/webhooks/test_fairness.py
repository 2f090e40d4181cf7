"""Owners whose receivers never respond delay no other owner: scripted receivers, and a clock that only the test moves."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, PROVIDER, new_payment
from tests.kit.stores import InlineDatabase
from tests.kit.webhooks import ScriptedSending
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.webhooks.endpoints import WebhookEndpoint
from tollway.webhooks.events import EventType
from tollway.webhooks.messages import Echo

CREDITED = EventType.PAYMENT_CREDITED
HONEST = PROVIDER
HONEST_URL = "https://honest.example/hooks"
IN_FLIGHT = DEFAULT_LIMITS.webhook_in_flight_max


@pytest.fixture
async def sending() -> AsyncIterator[ScriptedSending]:
    """With one payment, which every event is about."""
    database = InlineDatabase()
    await PaymentLedgerStore(database).record_payments([new_payment(100)], now_ms=NOW_MS)
    sending = ScriptedSending(database)
    yield sending
    await sending.close()
    await database.close()


def wallet(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


async def register(sending: ScriptedSending, owner: Address, url: str, **fields: Any) -> WebhookEndpoint:
    origin = "/".join(url.split("/")[:3])
    return await sending.webhooks.register(owner, url=url, origin=origin, types=(CREDITED,), **fields)


async def register_honest(sending: ScriptedSending, url: str = HONEST_URL) -> WebhookEndpoint:
    return await register(sending, HONEST, url, network="203.0.113.7")


async def activate(sending: ScriptedSending, *endpoints: WebhookEndpoint) -> None:
    for endpoint in endpoints:
        await sending.webhooks.echo(endpoint, Echo.WALLET)
    sending.webhooks.now_ms += 5_000
    await sending.webhooks.store.refresh()


async def emit_and_begin(sending: ScriptedSending, *owners: Address) -> None:
    await sending.emit(*owners)
    await sending.begin_round()


# ---- New webhooks.


@pytest.mark.parametrize("is_one_url", [True, False], ids=["one url", "a url each"])
async def test_eighty_registrations_with_silent_receivers_delay_no_other_challenge(
    sending: ScriptedSending, is_one_url: bool
) -> None:
    """Of eight wallets at four addresses. The challenge of an honest webhook is in the next round."""
    for number in range(80):
        url = "https://silent.example/" if is_one_url else f"https://silent{number}.example/"
        await register(sending, wallet(number // 10 + 1), url, network=f"192.0.2.{number // 20}")
        sending.receivers.silent.add(url)
    for _ in range(3):
        await sending.begin_round()
    if not is_one_url:
        # The first attempts at so many silent receivers have the slots of challenges until their deadline.
        assert len(sending.receivers.waiting) == IN_FLIGHT // 4
        for _ in range(5):
            await sending.pass_deadline()
            await sending.begin_round()
        assert len(sending.receivers.waiting) == IN_FLIGHT // 8
    honest = await register_honest(sending)
    await sending.begin_round()
    assert sending.receivers.types_of(HONEST_URL) == ["webhook.challenge"]
    assert (await sending.webhooks.find(honest)).state == "active"


async def test_challenges_have_a_quarter_of_the_slots_and_messages_go_out_beside_them(
    sending: ScriptedSending,
) -> None:
    honest = await register_honest(sending)
    await activate(sending, honest)
    for number in range(60):
        url = f"https://silent{number}.example/"
        await register(sending, wallet(number + 1), url, network=f"192.0.2.{number}")
        sending.receivers.silent.add(url)
    await emit_and_begin(sending, HONEST)
    assert len(sending.receivers.waiting) == IN_FLIGHT // 4
    assert sending.receivers.types_of(HONEST_URL) == ["payment.credited"]


async def test_a_challenge_that_waits_for_its_response_is_not_sent_a_second_time(
    sending: ScriptedSending,
) -> None:
    sending.receivers.silent.add(HONEST_URL)
    await register_honest(sending)
    for _ in range(5):
        await sending.begin_round()
    assert sending.receivers.types_of(HONEST_URL) == ["webhook.challenge"]


# ---- Messages.


@pytest.mark.parametrize("networks", [1, 19], ids=["one address", "an address for each wallet"])
async def test_a_hundred_and_ninety_silent_endpoints_delay_no_other_event(
    sending: ScriptedSending, networks: int
) -> None:
    """Of 19 wallets, each endpoint at an origin of its own."""
    owners = [wallet(number + 1) for number in range(19)]
    for place, owner in enumerate(owners):
        urls = [f"https://silent{place}-{number}.example/" for number in range(10)]
        network = f"192.0.2.{place % networks}"
        await activate(sending, *[await register(sending, owner, url, network=network) for url in urls])
        sending.receivers.silent.update(urls)
    honest = await register_honest(sending)
    await activate(sending, honest)
    await emit_and_begin(sending, *owners)
    for _ in range(4):
        await sending.begin_round()
    per_address = DEFAULT_LIMITS.webhook_in_flight_per_address_max
    assert len(sending.receivers.waiting) == min(IN_FLIGHT, networks * per_address)
    if networks > 1:
        # So many owners have every slot once. An endpoint without a response waits behind the others from then on.
        for _ in range(4):
            await sending.pass_deadline()
            await emit_and_begin(sending, *owners)
        assert len(sending.receivers.waiting) == IN_FLIGHT // 2
    await emit_and_begin(sending, HONEST)
    assert sending.receivers.types_of(HONEST_URL) == ["payment.credited"]


async def test_the_silent_endpoints_of_a_customer_delay_no_other_customer_of_a_shared_host(
    sending: ScriptedSending,
) -> None:
    """Both hosts have answered before: the challenges of both customers."""
    host = "https://shared.example"
    urls = [f"{host}/customer/{number}" for number in range(10)]
    endpoints = [await register(sending, wallet(1), url, network="192.0.2.1") for url in urls]
    await register_honest(sending, f"{host}/honest")
    for _ in range(12):
        await sending.begin_round()
    assert {(await sending.webhooks.find(one)).state for one in endpoints} == {"active"}
    sending.webhooks.now_ms += 5_000
    await sending.webhooks.store.refresh()
    sending.receivers.silent.update(urls)
    await emit_and_begin(sending, wallet(1))
    for _ in range(5):
        await sending.begin_round()
    running = len(sending.receivers.waiting)
    assert running == DEFAULT_LIMITS.webhook_in_flight_per_origin_max - 1
    await emit_and_begin(sending, HONEST)
    assert sending.receivers.types_of(f"{host}/honest") == ["webhook.challenge", "payment.credited"]
    assert len(sending.receivers.waiting) == running
    # Later too, when all of them are known to be silent.
    for _ in range(5):
        await sending.pass_deadline()
        for _ in range(3):
            await sending.begin_round()
    assert len(sending.receivers.waiting) == 1
    await emit_and_begin(sending, HONEST)
    assert sending.receivers.types_of(f"{host}/honest").count("payment.credited") == 2


async def test_wallets_have_turns_at_an_origin_however_many_endpoints_they_have(
    sending: ScriptedSending,
) -> None:
    host = "https://shared.example"
    many = [await register(sending, wallet(1), f"{host}/{number}") for number in range(10)]
    honest = await register_honest(sending, f"{host}/honest")
    await activate(sending, *many, honest)
    await sending.emit(wallet(1))
    await sending.emit(HONEST)
    for _ in range(2):
        await sending.begin_round()
    assert f"{host}/honest" in [url for url, _ in sending.receivers.posted]


async def test_a_wallet_with_many_endpoints_has_one_turn_in_a_round_of_all_wallets(
    sending: ScriptedSending,
) -> None:
    """More wallets than slots, each with endpoints that always have something to send: each wallet has its turn within two rounds."""
    owners = [wallet(number + 1) for number in range(100)]
    endpoints = [
        await register(
            sending, owner, f"https://w{place}n{number}.example/", network=f"192.0.2.{place}"
        )
        for place, owner in enumerate(owners)
        for number in range(3)
    ]  # fmt: skip
    await activate(sending, *endpoints)
    await sending.emit(*owners)
    await sending.begin_round(after_s=0.5)
    first = {message["data"]["wallet"] for _, message in sending.receivers.posted}
    assert len(first) == len(sending.receivers.posted) == IN_FLIGHT
    await sending.begin_round(after_s=0.5)
    assert {message["data"]["wallet"] for _, message in sending.receivers.posted} == set(map(str, owners))
