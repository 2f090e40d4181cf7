"""Passing off as the gateway at a provider's API, tried in every way that a caller, another provider and a listener on the
line have: against a production process, and judged by the provider's verifier and by one of other people.
"""

import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from eth_account import Account

from tests.clients import stock_clients as stock
from tests.kit.upstream import LoopbackUpstream, run_upstream
from tests.system.attack.attacked_gateway import free_listing
from tollway.client.provider import ForwardedRefused, ForwardedVerifier
from tollway.client.wallet import Wallet
from tollway.gateway.request_signing import UpstreamSigner, cover_body, format_digest

LONG = os.environ.get("ATTACK") == "long"
FORGERIES = 2_000 if LONG else 300
LARGE = b"x" * 150_000
OLD, NEW = secrets.token_hex(32), secrets.token_hex(32)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A request as it stands before the provider."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def changed(self, name: str, value: str) -> "Shown":
        return replace(
            self, headers=tuple((one, value if one.lower() == name else text) for one, text in self.headers)
        )

    def find(self, name: str) -> str:
        return next(text for one, text in self.headers if one.lower() == name)


@dataclass
class Harness:
    gateway: Any
    upstream: LoopbackUpstream
    api_id: str
    thief_id: str
    later_s: float = 0.0
    arrived: dict[str, Shown] = field(default_factory=dict)

    def verifier(self, **options: Any) -> ForwardedVerifier:
        declared = {"endpoint": self.upstream.url + "/base", "api_ids": [self.api_id], **options}
        return ForwardedVerifier(
            self.gateway.base_url, ticks_s=lambda: time.monotonic() + self.later_s, **declared
        )

    async def call(self, rest: str, *, method: str = "GET", api_id: str | None = None, **more: Any) -> Shown:
        """One call through the gateway, and what arrived of it."""
        begun = len(self.upstream.arrived)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            url = f"{self.gateway.base_url}/api/v2/gateway/{api_id or self.api_id}{rest}"
            answer = await http.request(method, url, **more)
        assert answer.status_code == 200, answer.text
        (arrived,) = self.upstream.arrived[begun:]
        return Shown(
            method=arrived.method, target=arrived.target, headers=arrived.headers, body=bytes(arrived.body)
        )


async def publish(gateway: Any, endpoint: str) -> str:
    wallet = Wallet.from_key(Account.create().key)
    names = ["Signature", "Content-Digest"]
    body, headers = gateway.sign_create(wallet, free_listing(endpoint, forwardHeaders=["X-Own"]))
    async with httpx.AsyncClient(trust_env=False) as http:
        for name in names:
            reserved = free_listing(endpoint, forwardHeaders=[name])
            refused_body, refused = gateway.sign_create(wallet, reserved)
            told = await http.post(gateway.base_url + "/api/v2/apis", content=refused_body, headers=refused)
            assert told.status_code == 422, told.text
        answer = await http.post(gateway.base_url + "/api/v2/apis", content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory, run_gateway: Any) -> AsyncIterator[Harness]:
    settings = {"TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true", "TOLLWAY_SECRET_KEY": OLD}
    folder = tmp_path_factory.mktemp("forwarded")
    async with run_gateway(folder, environment=settings) as gateway, run_upstream() as upstream:
        endpoint = upstream.url + "/base"
        own, thief = await publish(gateway, endpoint), await publish(gateway, endpoint)
        harness = Harness(gateway=gateway, upstream=upstream, api_id=own, thief_id=thief)
        harness.arrived = {
            "bare": await harness.call("/q?x=1"),
            "short body": await harness.call("/q", method="POST", content=b'{"a":1}'),
            "long body": await harness.call("/q", method="PUT", content=LARGE),
            "given digest": await harness.call(
                "/q", method="PUT", content=LARGE, headers={"Content-Digest": format_digest(LARGE)}
            ),
            "thief's": await harness.call("/q?x=1", api_id=thief),
        }
        yield harness


def refusal(verifier: ForwardedVerifier, shown: Shown) -> str:
    """Why; empty where the verifier was taken in."""
    try:
        verifier.verify(shown.method, shown.target, shown.headers, shown.body)
    except ForwardedRefused as refused:
        return refused.reason
    return ""


@pytest.mark.parametrize(
    ("name", "covers"),
    [("bare", "nothing"), ("short body", "digest"), ("long body", "length"), ("given digest", "digest")],
)
async def test_what_came_through_the_gateway_is_known_by_its_signature(
    harness: Harness, name: str, covers: str
) -> None:
    shown = harness.arrived[name]
    forwarded = harness.verifier().verify(shown.method, shown.target, shown.headers, shown.body)
    assert (forwarded.api_id, forwarded.payer, forwarded.covers) == (harness.api_id, None, covers)
    assert forwarded.call_id.startswith("call_")


async def test_what_was_overheard_counts_once(harness: Harness) -> None:
    verifier, shown = harness.verifier(), harness.arrived["bare"]
    assert refusal(verifier, shown) == ""
    assert {refusal(verifier, shown) for _ in range(50)} == {"replayed"}


async def test_nothing_that_was_overheard_can_be_changed(harness: Harness) -> None:
    """Every covered value, and single characters of every signed header: no change is accepted."""
    verifier, shown = harness.verifier(), harness.arrived["short body"]
    changes = [
        replace(shown, method="PUT"),
        replace(shown, target=shown.target + "?x"),
        replace(shown, target=shown.target + "/"),
        replace(shown, target="/base/other"),
        replace(shown, body=b'{"a":2}'),
        replace(shown, body=b""),
        shown.changed("content-digest", format_digest(b"")),
        shown.changed("tollway-call-id", "call_0"),
        shown.changed("tollway-api-id", harness.thief_id),
        replace(shown, headers=(*shown.headers, ("Tollway-Payer", "0x" + "11" * 20))),
        *_scratch(shown),
    ]
    taken_in = [one for one in changes if refusal(verifier, one) == ""]
    assert taken_in == []
    assert len(changes) == FORGERIES + 10


def _scratch(shown: Shown) -> Iterator[Shown]:
    """Of the last character of a signature some bits are beyond its bytes, so that one stays as it is."""
    names = ("signature", "signature-input", "content-digest", "tollway-call-id", "tollway-api-id")
    for number in range(FORGERIES):
        name = names[number % len(names)]
        text = shown.find(name)
        place = number * 7919 % (len(text) - 4)
        others = [one for one in 'Az09+/=:;"(), ' if one != text[place]]
        other = others[number % len(others)]
        yield shown.changed(name, text[:place] + other + text[place + 1 :])


async def test_a_listing_of_another_gateway_that_leads_here_is_distinguished(harness: Harness) -> None:
    """The listing is free, or its price goes to its owner: the gateway forwards the call all the same, and signs it."""
    shown = harness.arrived["thief's"]
    assert refusal(harness.verifier(), shown) == "wrong_listing"
    assert refusal(harness.verifier(), shown.changed("tollway-api-id", harness.api_id)) == "bad_signature"
    assert refusal(harness.verifier(api_ids=[harness.thief_id]), shown) == ""


async def test_what_was_signed_for_one_host_counts_at_no_other(harness: Harness) -> None:
    elsewhere = harness.verifier(endpoint="https://victim.example")
    assert refusal(elsewhere, harness.arrived["bare"].changed("host", "victim.example")) == "bad_signature"


async def test_a_gateway_signs_for_its_own_origin_only(harness: Harness) -> None:
    forger = UpstreamSigner.derive([secrets.token_bytes(32)])
    headers = forger.sign(
        method="GET",
        authority=harness.upstream.url.removeprefix("http://"),
        target="/base/q",
        api_id=harness.api_id,
        call_id="call_1",
        payer=None,
        body=cover_body(None, length=0, declared=None),
        created_s=int(time.time()),
        nonce=secrets.token_hex(16),
    )
    shown = Shown(method="GET", target="/base/q", headers=tuple(headers))
    assert refusal(harness.verifier(), shown) == "unknown_key"
    named = shown.changed(
        "signature-input",
        shown.find("signature-input").replace(
            forger.keys[0].keyid, harness.arrived["bare"].find("signature-input").split('keyid="')[1][:43]
        ),
    )
    assert refusal(harness.verifier(), named) == "bad_signature"


async def test_what_a_caller_makes_up_arrives_nowhere(harness: Harness) -> None:
    forged = {
        "Signature": "tollway=:" + "A" * 86 + "==:",
        "Signature-Input": harness.arrived["bare"].find("signature-input"),
        "Tollway-Call-Id": "forged",
        "Tollway-Api-Id": harness.thief_id,
        "Tollway-Payer": "0x" + "11" * 20,
        "Content-Digest": format_digest(b"forged"),
        "Trailer": "Signature",
    }
    shown = await harness.call("/forged", headers=forged)
    assert refusal(harness.verifier(), shown) == ""
    assert not [value for _, value in shown.headers if value in forged.values()]


async def test_a_stranger_is_a_stranger(harness: Harness) -> None:
    bare = Shown(method="GET", target="/base/q?x=1", headers=(("Host", "127.0.0.1"), ("Accept", "*/*")))
    assert refusal(harness.verifier(), bare) == "signature_missing"


async def test_a_verifier_of_other_people_says_the_same(harness: Harness) -> None:
    """The npm package http-message-signatures, with the keys that the gateway publishes."""
    good = [harness.arrived[name] for name in ("bare", "short body", "long body", "given digest")]
    bad = [
        replace(good[0], method="POST"),
        replace(good[0], target="/base/q?x=2"),
        good[0].changed("tollway-call-id", "call_0"),
        good[1].changed("content-digest", format_digest(b"")),
        good[2].changed("content-length", "7"),
    ]
    requests = [
        {"method": one.method, "url": harness.upstream.url + one.target, "headers": dict(one.headers)}
        for one in (*good, *bad)
    ]
    told = await stock.run_script(
        "verify_forwarded.mjs", harness.gateway.base_url, env={"REQUESTS": json.dumps(requests)}
    )
    assert told["verified"] == [True] * len(good) + [False] * len(bad)


async def test_a_key_that_replaces_another_refuses_no_caller(harness: Harness) -> None:
    """Last: the gateway is another process afterwards. One verifier sees the steps of a change, a minute apart."""
    verifier, gateway = harness.verifier(), harness.gateway
    steps = [[OLD, NEW], [NEW, OLD], *([[NEW]] if LONG else [])]
    key_ids = []
    assert refusal(verifier, await harness.call("/q")) == ""
    for keys in steps:
        await gateway.stop()
        gateway.env["TOLLWAY_SECRET_KEY"] = "\n".join(keys)
        gateway.start()
        await gateway.wait_up()
        harness.later_s += 60
        shown = await harness.call("/q")
        assert refusal(verifier, shown) == ""
        key_ids.append(shown.find("signature-input").split('keyid="')[1][:43])
    old = harness.arrived["bare"].find("signature-input").split('keyid="')[1][:43]
    assert key_ids[0] == old
    assert old not in key_ids[1:]
