"""The sender over a real outbox and a real client, with receivers on loopback that fail in every way."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, PROVIDER, new_payment
from tests.kit.narrowing import existing
from tests.kit.stores import InlineDatabase
from tests.kit.upstream import Arrived, LoopbackUpstream, hang_up, plain, pour, raw, run_upstream, say_nothing
from tests.kit.waits import until
from tests.kit.webhooks import WebhookHarness
from tollway.gateway.request_signing import SigningKey, UpstreamSigner
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.observability.background import BackgroundTask, TaskName
from tollway.outbound.client import HttpClient
from tollway.outbound.probes import post_webhook
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.web.http.query import format_time
from tollway.webhooks.endpoints import EndpointState, WebhookEndpoint
from tollway.webhooks.events import EventType
from tollway.webhooks.messages import sign_standard
from tollway.webhooks.sender import Delivered, WebhookSender

LIMITS = replace(DEFAULT_LIMITS, webhook_deadline_s=60.0, webhook_response_bytes_max=200)
SIGNER = UpstreamSigner([SigningKey(bytes(range(32)))])
CREDITED = EventType.PAYMENT_CREDITED


class Sending:
    """A sender, its receiver, and its stores."""

    def __init__(
        self,
        receiver: LoopbackUpstream,
        database: InlineDatabase,
        *,
        limits: Limits,
        allow_private: bool,
        signer: UpstreamSigner,
    ) -> None:
        self.receiver = receiver
        self._signer = signer
        self.database = database
        self.webhooks = WebhookHarness(database, limits=limits)
        self.http_client = HttpClient(
            limits=limits,
            allow_private=allow_private,
            lookup=lambda host, port: ["127.0.0.1"],
            ticks_ms=lambda: 0,
        )
        self.task = BackgroundTask(TaskName.WEBHOOK_DELIVERY)
        self._ids = iter(range(1_000))
        self.sender = WebhookSender(
            self.webhooks.outbox,
            post=partial(post_webhook, self.http_client),
            sign=self._sign,
            limits=limits,
            now_ms=self.webhooks.read_now_ms,
            clock=self.webhooks.clock,
            draw=lambda: 0.5,
            make_id=lambda: f"evt_challenge{next(self._ids)}",
            format_time=format_time,
            task=self.task,
        )

    def _sign(self, message: Delivered, headers: Any) -> list[tuple[str, str]]:
        return self._signer.sign_webhook(
            url=message.url,
            headers=headers,
            body=message.body,
            created_s=message.timestamp_s,
            nonces=["n" * 22] * len(self._signer.keys),
        )

    def url(self, path: str = "/hooks?token=1") -> str:
        return self.receiver.url + path

    async def register(self, **fields: Any) -> WebhookEndpoint:
        return await self.webhooks.register(url=self.url(), origin=self.receiver.url, **fields)

    async def activate(self, **fields: Any) -> WebhookEndpoint:
        return await self.webhooks.activate(url=self.url(), origin=self.receiver.url, **fields)

    async def emit(self, number: int = 1) -> None:
        await self.webhooks.write_events(self.webhooks.make_events(number, units=7))

    async def emit_and_run(self, number: int = 1) -> None:
        await self.emit(number)
        await self.run_once()

    async def run_once(self, *, after_s: float = 1.0) -> None:
        """One round, `after_s` later by the clock of the turns."""
        self.webhooks.clock.s += after_s
        await self.sender.run_once()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The sender with rounds of its own, until the end of the block."""
        running = asyncio.get_running_loop().create_task(self.sender.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def state(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        return await self.webhooks.find(endpoint)


@asynccontextmanager
async def open_sending(
    *, limits: Limits = LIMITS, allow_private: bool = True, signer: UpstreamSigner = SIGNER
) -> AsyncIterator[Sending]:
    async with run_upstream() as receiver:
        database = InlineDatabase()
        await PaymentLedgerStore(database).record_payments([new_payment(100)], now_ms=NOW_MS)
        sending = Sending(receiver, database, limits=limits, allow_private=allow_private, signer=signer)
        try:
            yield sending
        finally:
            await sending.http_client.close()
            await database.close()


@pytest.fixture
async def sending() -> AsyncIterator[Sending]:
    async with open_sending() as it:
        yield it


async def echo(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    challenge = json.loads(arrived.body)["data"]["challenge"]
    await plain(json.dumps({"challenge": challenge}).encode())(arrived, writer)


# ---- Challenges.


async def test_a_receiver_that_echoes_its_challenge_is_confirmed(sending: Sending) -> None:
    sending.receiver.answer = echo
    endpoint = await sending.register()
    await sending.run_once()
    known = await sending.state(endpoint)
    assert (known.state, known.active_from_ms) == (EndpointState.ACTIVE, NOW_MS + 5_000)
    (arrived,) = sending.receiver.arrived
    assert (arrived.method, arrived.target) == ("POST", "/hooks?token=1")
    assert {"signature", "signature-input", "content-digest", "webhook-id", "webhook-timestamp"} <= (
        arrived.names
    )
    assert "webhook-signature" not in arrived.names
    data = json.loads(arrived.body)["data"]
    assert (data["endpointId"], data["wallet"]) == (endpoint.id, str(PROVIDER))


async def reflect(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    await plain(bytes(arrived.body))(arrived, writer)


async def echo_after_many_bytes(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    challenge = json.loads(arrived.body)["data"]["challenge"]
    await plain(b" " * 10_000 + challenge.encode())(arrived, writer)


async def redirect(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    await plain(status=307, headers=("Location: http://127.0.0.1:1/elsewhere",))(arrived, writer)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"ok"),
        plain(b"", status=204),
        reflect,
        echo_after_many_bytes,
        pour,
        redirect,
        hang_up,
        plain(status=404),
        plain(status=500),
        raw(b"\x00\x01\x02 nonsense\r\n\r\n", close=True),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
async def test_a_receiver_without_an_echo_is_tried_five_times_and_disabled(
    sending: Sending, answer: Any
) -> None:
    sending.receiver.answer = answer
    endpoint = await sending.register()
    tries = 0
    while (await sending.state(endpoint)).state is EndpointState.UNCONFIRMED:
        await sending.run_once()
        tries += 1
        sending.webhooks.now_ms += 3_600_000
    assert tries == len(sending.receiver.arrived) == 5
    known = await sending.state(endpoint)
    assert (known.state, known.reason) == (EndpointState.DISABLED, "not_confirmed")


async def test_a_private_address_is_dialled_for_no_challenge() -> None:
    async with open_sending(allow_private=False) as sending:
        await sending.register()
        await sending.webhooks.register(url="https://rebinding.example:8443/x", origin="https://b.example")
        await sending.run_once()
        assert (sending.receiver.accepted, sending.receiver.arrived) == (0, [])


# ---- Messages.


async def test_a_message_is_signed_both_ways_where_there_is_a_secret(sending: Sending) -> None:
    secret = b"\x42" * 32
    endpoint = await sending.activate(secret=secret)
    await sending.emit_and_run()
    (arrived,) = sending.receiver.arrived
    timestamp_s = sending.webhooks.now_ms // 1000
    message_id = existing(arrived.find("webhook-id"))
    assert arrived.find("webhook-timestamp") == str(timestamp_s)
    assert arrived.find("webhook-signature") == sign_standard(
        secret, message_id=message_id, timestamp_s=timestamp_s, body=bytes(arrived.body)
    )
    signed = SIGNER.sign_webhook(
        url=sending.url(),
        headers={
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp_s),
        },
        body=bytes(arrived.body),
        created_s=timestamp_s,
        nonces=["n" * 22],
    )
    assert [(name, arrived.find(name)) for name, _ in signed] == signed
    body = json.loads(arrived.body)
    assert body["type"] == "payment.credited"
    assert (body["data"]["endpointId"], body["data"]["wallet"]) == (endpoint.id, str(PROVIDER))
    assert (body["data"]["amount"], body["data"]["value"]) == ("7", "0.000007")
    known = await sending.state(endpoint)
    assert (known.pending, known.dead) == (0, 0)


async def test_a_retry_has_the_same_id_and_body_and_a_new_timestamp_and_signature(sending: Sending) -> None:
    sending.receiver.answer = plain(status=503)
    await sending.activate(secret=b"\x42" * 32)
    await sending.emit_and_run(3)
    sending.receiver.answer = plain()
    sending.webhooks.now_ms += 6_000
    await sending.run_once()
    first, second = sending.receiver.arrived
    assert first.find("webhook-id") == second.find("webhook-id")
    assert first.body == second.body
    for name in ("webhook-timestamp", "signature", "signature-input", "webhook-signature"):
        assert first.find(name) != second.find(name)


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (plain(status=500), 500, None),
        (redirect, 307, None),
        (plain(status=400), 400, None),
        (hang_up, None, "bad_response"),
        (raw(b"HTTP/1.1 abc\r\n\r\n", close=True), None, "bad_response"),
    ],
    ids=("500", "redirect", "400", "hang_up", "nonsense"),
)
async def test_a_failed_attempt_is_listed_with_its_reason_and_its_next_time(
    sending: Sending, answer: Any, status: int | None, error: str | None
) -> None:
    sending.receiver.answer = answer
    endpoint = await sending.activate()
    await sending.emit_and_run()
    (delivery,) = await sending.webhooks.list_deliveries(endpoint)
    assert (delivery.state, delivery.attempts) == ("pending", 1)
    assert (delivery.last_status, delivery.last_error) == (status, error)
    assert delivery.next_ms == sending.webhooks.now_ms + 5_000


async def test_retry_after_delays_the_next_attempt(sending: Sending) -> None:
    sending.receiver.answer = plain(status=429, headers=("Retry-After: 90",))
    await sending.activate()
    await sending.emit_and_run()
    (message,) = await sending.webhooks.messages()
    assert message.due_ms == sending.webhooks.now_ms + 90_000


async def test_a_receiver_that_is_gone_gets_nothing_more(sending: Sending) -> None:
    sending.receiver.answer = plain(status=410)
    endpoint = await sending.activate()
    await sending.emit_and_run(2)
    await sending.emit_and_run()
    assert len(sending.receiver.arrived) == 1
    assert (await sending.state(endpoint)).state is EndpointState.DISABLED


async def test_a_response_of_a_gigabyte_is_a_success_that_is_not_read(sending: Sending) -> None:
    sending.receiver.answer = pour
    endpoint = await sending.activate()
    await sending.emit_and_run()
    assert (await sending.state(endpoint)).pending == 0
    await until(lambda: sending.receiver.ended == sending.receiver.accepted)


async def test_a_message_that_always_fails_is_a_dead_letter_after_a_day(sending: Sending) -> None:
    sending.receiver.answer = plain(status=500)
    endpoint = await sending.activate()
    await sending.emit()
    started_ms = sending.webhooks.now_ms
    while not (await sending.state(endpoint)).dead:
        await sending.run_once()
        (message,) = await sending.webhooks.messages()
        if message.state == "pending":
            sending.webhooks.now_ms = message.due_ms
    assert len(sending.receiver.arrived) == 8
    assert sending.webhooks.now_ms <= started_ms + 86_400_000
    assert (await sending.state(endpoint)).dead == 1
    bodies = {bytes(arrived.body) for arrived in sending.receiver.arrived}
    assert len(bodies) == 1


async def test_a_receiver_that_never_responds_is_left_at_the_deadline() -> None:
    async with open_sending(limits=replace(LIMITS, webhook_deadline_s=0.02)) as sending:
        sending.receiver.answer = say_nothing
        endpoint = await sending.activate()
        await sending.emit_and_run()
        (delivery,) = await sending.webhooks.list_deliveries(endpoint)
        assert (delivery.last_status, delivery.last_error) == (None, "timeout")


async def trickle_a_head(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"H")
        await writer.drain()
        await asyncio.sleep(0.005)


async def test_a_receiver_that_sends_its_head_slowly_is_left_at_the_deadline() -> None:
    async with open_sending(limits=replace(LIMITS, webhook_deadline_s=0.05)) as sending:
        sending.receiver.answer = trickle_a_head
        endpoint = await sending.activate()
        await sending.emit_and_run()
        assert (await sending.state(endpoint)).pending == 1


# ---- Turns.


async def test_an_origin_gets_one_request_a_second(sending: Sending) -> None:
    for _ in range(3):
        await sending.activate()
    await sending.emit_and_run(5)
    await sending.run_once(after_s=0.5)
    assert len(sending.receiver.arrived) == 1
    await sending.run_once(after_s=0.5)
    await sending.run_once()
    assert len(sending.receiver.arrived) == 3
    messages = [json.loads(one.body)["data"]["events"] for one in sending.receiver.arrived]
    assert len({events[0]["data"]["endpointId"] for events in messages}) == 3


async def test_a_slow_origin_has_one_request_at_a_time_and_delays_no_other(sending: Sending) -> None:
    gate = asyncio.Event()

    async def wait(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await plain()(arrived, writer)

    sending.receiver.answer = wait
    slow = await sending.activate()
    async with run_upstream() as other:
        quick = await sending.webhooks.activate(url=other.url + "/x", origin=other.url)
        await sending.emit()
        async with sending.running():
            await until(lambda: bool(other.arrived and sending.receiver.arrived))
            sending.webhooks.clock.s += 10
            await sending.emit()
            await until(lambda: len(other.arrived) == 2)
            assert len(sending.receiver.arrived) == 1
            assert (await sending.state(slow)).pending == 2
            gate.set()
            sending.webhooks.clock.s += 10
            await until(lambda: len(sending.receiver.arrived) == 2)
        assert quick.id


async def test_few_requests_run_at_once() -> None:
    limits = replace(LIMITS, webhook_in_flight_max=1)
    async with open_sending(limits=limits) as sending, run_upstream() as other:
        sending.receiver.answer = other.answer = say_nothing
        await sending.activate()
        await sending.webhooks.activate(url=other.url + "/x", origin=other.url)
        await sending.emit()
        async with sending.running():
            await until(lambda: len(sending.receiver.arrived) + len(other.arrived) == 1)
            sending.webhooks.clock.s += 10
            sending.task.wake()
            await until(lambda: sending.task.has_succeeded)
            assert len(sending.receiver.arrived) + len(other.arrived) == 1


async def test_challenges_to_an_origin_take_turns_with_its_messages(sending: Sending) -> None:
    """A stranger that registers URLs of an origin does not hold up the messages of others."""
    await sending.activate()
    await sending.emit()
    for _ in range(4):
        await sending.register()
    kinds = []
    for _ in range(4):
        await sending.run_once()
        kinds.append(json.loads(sending.receiver.arrived[-1].body)["type"])
        if kinds[-1] == "payment.credited":
            await sending.emit()
    assert kinds == ["webhook.challenge", "payment.credited"] * 2


async def test_a_failed_round_is_counted_and_the_next_one_goes_on(sending: Sending) -> None:
    await sending.activate()
    await sending.emit()
    sending.database.is_away = True
    async with sending.running():
        await until(lambda: sending.task.failures > 0)
        sending.database.is_away = False
        sending.task.wake()
        await until(lambda: bool(sending.receiver.arrived))


async def test_an_attempt_whose_end_is_not_recorded_is_made_again_with_the_same_body(
    sending: Sending,
) -> None:
    async def lose_the_database(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        sending.database.is_away = True
        await plain()(arrived, writer)

    sending.receiver.answer = lose_the_database
    await sending.activate()
    await sending.emit_and_run(2)
    sending.database.is_away = False
    sending.receiver.answer = plain()
    sending.webhooks.now_ms += 60_000
    await sending.run_once()
    first, second = sending.receiver.arrived
    assert (first.find("webhook-id"), first.body) == (second.find("webhook-id"), second.body)
