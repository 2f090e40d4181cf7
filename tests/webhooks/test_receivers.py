"""The sample receivers run as their page says, each in a process of its own: they accept what this gateway signed and refuse the rest.

They verify with published libraries, unmodified: `standardwebhooks` and `http-message-signatures`, of PyPI and of npm."""

import asyncio
import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.test_samples import SAMPLES, serving_keys
from tests.clients.stock_clients import find_interpreter
from tests.kit.forwarded_requests import SIGNER
from tests.kit.gateway_process import clean_environment, listens, poll
from tests.kit.ports import find_low_port
from tests.webhooks.test_sender import open_sending
from tollway.ids import Address
from tollway.webhooks.endpoints import WebhookEndpoint
from tollway.webhooks.messages import (
    CONTENT_TYPE,
    Recipient,
    StoredEvent,
    batch_body,
    challenge_body,
    event_body,
    format_secret,
    sign_standard,
)

SECRET = bytes(range(32))
AT = "2026-11-22T14:00:00.000Z"
EVENT = StoredEvent(id="evt_01", type="call.charged", at=AT, data='{"callId":"call_01"}')
SECOND = replace(EVENT, id="evt_02")
OWNER = Recipient(endpoint_id="wh_1", wallet=Address.parse("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"))
STRANGER = Recipient(endpoint_id="wh_2", wallet=Address(b"\x99" * 20))
RECEIVERS = ("webhook_v1.py", "webhook_v1.mjs", "webhook_signed.py", "webhook_signed.mjs")


class Receiver:
    def __init__(self, url: str, printed: Path) -> None:
        self.url = url
        self._printed = printed

    def sign(self, message_id: str, body: str, *, age_s: int = 0, url: str | None = None) -> dict[str, str]:
        timestamp_s = int(time.time()) - age_s
        headers = {
            "Content-Type": CONTENT_TYPE,
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp_s),
        }
        signed = SIGNER.sign_webhook(
            url=url or self.url,
            headers=headers,
            body=body.encode(),
            created_s=timestamp_s,
            nonces=[secrets.token_urlsafe(16)] * len(SIGNER.keys),
        )
        value = sign_standard(SECRET, message_id=message_id, timestamp_s=timestamp_s, body=body.encode())
        return {**headers, **dict(signed), "webhook-signature": value}

    async def post(self, headers: dict[str, str], body: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
            return await http.post(self.url, headers=headers, content=body.encode())

    async def deliver(self, message_id: str, body: str, **changes: Any) -> httpx.Response:
        return await self.post(self.sign(message_id, body, **changes), body)

    @property
    def handled(self) -> list[str]:
        return [json.loads(line)["id"] for line in self._printed.read_text().splitlines()]


@contextlib.asynccontextmanager
async def run_receiver(file: str, folder: Path) -> AsyncIterator[Receiver]:
    port = find_low_port()
    url = f"http://127.0.0.1:{port}/hooks?token=a%20b"
    async with serving_keys() as gateway:
        settings = {"GATEWAY": gateway, "URL": url, "WALLET": str(OWNER.wallet), "PORT": str(port)}
        environment = clean_environment({**settings, "SECRET": format_secret(SECRET)})
        printed = folder / "printed"
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [*find_interpreter(file), str(SAMPLES / file)], env=environment, cwd=folder, stdout=out
            )
        try:
            await poll(lambda: listens(port), deadline_s=30, what=file)
            yield Receiver(url, printed)
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


@pytest.mark.parametrize("file", RECEIVERS)
async def test_a_receiver_takes_signed_messages_and_no_other(file: str, tmp_path: Path) -> None:
    async with run_receiver(file, tmp_path) as receiver:
        challenge = challenge_body(to=OWNER, challenge="abc", at=AT)
        echoed = await receiver.deliver("evt_00", challenge)
        assert echoed.status_code == 200
        assert echoed.json() == {"challenge": "abc", "wallet": str(OWNER.wallet)}

        alone, both = event_body(EVENT, to=OWNER), batch_body([EVENT, SECOND], to=OWNER, at=AT)
        for message_id, body in (("evt_01", alone), ("evt_01", alone), ("evt_90", both)):
            assert (await receiver.deliver(message_id, body)).status_code == 200
        assert receiver.handled == ["evt_01", "evt_02"]

        signed = receiver.sign("evt_03", alone)
        foreign = {**signed, "webhook-signature": "v1," + "A" * 43 + "="}
        foreign["Signature"] = "tollway=:" + "A" * 86 + "==:"
        refused = [
            await receiver.post(foreign, alone),
            await receiver.post(signed, alone.replace("call_01", "call_02")),
            await receiver.post({**signed, "webhook-id": "evt_04"}, alone),
            await receiver.post({"webhook-id": "evt_05"}, alone),
            await receiver.deliver("evt_06", alone, age_s=900),
        ]
        assert [one.status_code for one in refused] == [401] * len(refused)
        assert receiver.handled == ["evt_01", "evt_02"]


@pytest.mark.parametrize("file", [name for name in RECEIVERS if "signed" in name])
async def test_a_message_for_another_url_is_refused(file: str, tmp_path: Path) -> None:
    """What the gateway sends to one receiver counts at no other."""
    async with run_receiver(file, tmp_path) as receiver:
        body = event_body(EVENT, to=OWNER)
        foreign = await receiver.deliver("evt_01", body, url="https://mallory.example/hooks")
        assert foreign.status_code == 401
        assert (await receiver.deliver("evt_01", body)).status_code == 200


@pytest.mark.parametrize("file", RECEIVERS)
async def test_a_receiver_takes_nothing_of_another_wallet(file: str, tmp_path: Path) -> None:
    """A stranger registered the URL too: the gateway signs that wallet's challenge and events for the same URL."""
    async with run_receiver(file, tmp_path) as receiver:
        refused = [
            await receiver.deliver("evt_00", challenge_body(to=STRANGER, challenge="abc", at=AT)),
            await receiver.deliver("evt_01", event_body(EVENT, to=STRANGER)),
            await receiver.deliver("evt_90", batch_body([EVENT, SECOND], to=STRANGER, at=AT)),
        ]
        assert [one.status_code for one in refused] == [404] * 3
        assert not any("abc" in one.text for one in refused)
        assert receiver.handled == []
        assert (await receiver.deliver("evt_01", event_body(EVENT, to=OWNER))).status_code == 200
        assert receiver.handled == ["evt_01"]


@pytest.mark.parametrize("file", RECEIVERS)
async def test_a_stranger_never_gets_an_active_webhook_at_the_url_of_a_receiver(
    file: str, tmp_path: Path
) -> None:
    """The sender of the gateway and the receiver as it is in the documentation: in both orders, shared or not."""
    async with run_receiver(file, tmp_path) as receiver, open_sending(signer=SIGNER) as sending:

        async def register(wallet: Address, **fields: Any) -> WebhookEndpoint:
            place = {"url": receiver.url, "origin": receiver.url.partition("/hooks")[0], "secret": SECRET}
            return await sending.webhooks.register(wallet, **place, **fields)

        # The process of the receiver compares the time of a signature with its own.
        sending.webhooks.now_ms = int(time.time() * 1000)
        first = await register(STRANGER.wallet)
        own = await register(OWNER.wallet, is_shared=False)
        later = await register(STRANGER.wallet)
        for _ in range(3):
            await sending.run_once()
        states = [(await sending.state(one)).state for one in (first, own, later)]
        assert states == ["unconfirmed", "active", "unconfirmed"]
