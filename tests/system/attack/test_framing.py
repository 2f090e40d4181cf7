"""Requests that can be read in two ways, through a real gateway to an upstream that reads by the standard: no entry
may become two requests, and the next bytes on the connection get their own response or none."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from eth_account import Account

from tests.kit.gateway_process import is_busy
from tests.system.attack import framing_corpus, strict_upstream
from tests.system.attack.attacked_gateway import free_listing
from tollway.client.wallet import Wallet

CROWD = 64
LOOK_S, QUIET_LOOKS = 0.5, 2
"""A connection on which nothing comes for so long waits for more of a body."""
DEADLINE_S = 60.0

_HEAD = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


CORPUS = framing_corpus.corpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`served`: the target that the upstream says it answered; None for an answer of the gateway's own."""

    status: int
    served: str | None
    body: bytes


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came back for one entry and for the request after it. `rest`: bytes that are no answer."""

    answers: list[Answer] = field(default_factory=list)
    is_closed: bool = False
    rest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    outcomes: list[Outcome]
    targets: list[str]
    breaches: list[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attack(tmp_path_factory: pytest.TempPathFactory, run_gateway: Any) -> AsyncIterator[Attack]:
    """The whole corpus, sent once."""
    private = {"TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true"}
    async with (
        run_gateway(tmp_path_factory.mktemp("framing"), environment=private) as gateway,
        strict_upstream.run_upstream() as upstream,
    ):
        api_id = await publish(gateway, upstream.url)
        outcomes = await send_all(gateway, api_id)
        yield Attack(outcomes=outcomes, targets=list(upstream.targets), breaches=list(upstream.breaches))


async def publish(gateway: Any, endpoint: str) -> str:
    wallet = Wallet.from_key(Account.create().key)
    body, headers = gateway.sign_create(wallet, free_listing(endpoint))
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(gateway.base_url + "/api/v2/apis", content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def send_all(gateway: Any, api_id: str) -> list[Outcome]:
    url = gateway.base_url
    outcomes: list[Outcome] = [Outcome() for _ in CORPUS]
    numbers = iter(range(len(CORPUS)))

    async def send() -> None:
        for number in numbers:
            wire = fill_in(CORPUS[number].wire, url, api_id, number)
            outcomes[number] = await exchange(gateway, wire, next_request(url, api_id, number))

    await asyncio.gather(*(send() for _ in range(CROWD)))
    return outcomes


def fill_in(wire: bytes, url: str, api_id: str, number: int) -> bytes:
    for place, value in (
        (framing_corpus.API, api_id.encode()),
        (framing_corpus.HOST, urlsplit(url).netloc.encode()),
        (framing_corpus.NUMBER, b"%03d" % number),
    ):
        assert len(place) == len(value)
        wire = wire.replace(place, value)
    return wire


def next_request(url: str, api_id: str, number: int) -> bytes:
    return fill_in(framing_corpus.HIDDEN.replace(b"hidden", b"next"), url, api_id, number)


async def exchange(gateway: Any, wire: bytes, after: bytes) -> Outcome:
    """Sends an entry, then a good request on the same connection, and reads until the end or until nothing comes."""
    outcome, received = Outcome(), b""
    parts = urlsplit(gateway.base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(wire)
            await writer.drain()
            received, outcome.is_closed = await read_until_quiet(reader, gateway)
            if not outcome.is_closed:
                writer.write(after)
                await writer.drain()
                more, outcome.is_closed = await read_until_quiet(reader, gateway)
                received += more
    except ConnectionError:
        outcome.is_closed = True
    finally:
        writer.close()
    outcome.answers, outcome.rest = read_answers(received)
    return outcome


async def read_until_quiet(reader: asyncio.StreamReader, gateway: Any) -> tuple[bytes, bool]:
    """What came, and whether the connection has ended. It is quiet when nothing comes while the gateway has nothing to do; a machine that stands still
    makes one look empty."""
    received, looks = b"", 0
    while looks < QUIET_LOOKS:
        try:
            async with asyncio.timeout(LOOK_S):
                piece = await reader.read(64 * 1024)
        except TimeoutError:
            looks = 0 if is_busy(gateway.pid) else looks + 1
            continue
        except ConnectionError:
            return received, True
        if not piece:
            return received, True
        received, looks = received + piece, 0
    return received, False


def read_answers(received: bytes) -> tuple[list[Answer], bytes]:
    """Every answer as the strictest client reads it, and what is left."""
    answers: list[Answer] = []
    while head := _HEAD.match(received):
        status, fields = int(head[1]), head[2].lower()
        length = re.search(rb"^content-length: ([0-9]+)\r$", fields, re.MULTILINE)
        served = re.search(rb"^x-served: ([^\r]*)\r$", fields, re.MULTILINE)
        size = int(length[1]) if length and status >= 200 else 0
        if _HEAD.match(received, head.end()):  # of a HEAD
            size = 0
        body = received[head.end() : head.end() + size]
        received = received[head.end() + size :]
        if status >= 200:
            answers.append(
                Answer(status=status, served=served[1].decode("latin-1") if served else None, body=body)
            )
    return answers, received


def numbered(attack: Attack) -> list[tuple[int, Any, Outcome]]:
    return [
        (number, entry, outcome)
        for number, (entry, outcome) in enumerate(zip(CORPUS, attack.outcomes, strict=True))
    ]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_there_are_more_than_three_hundred_entries():
    assert len(CORPUS) >= 300
    assert sum(entry.hides for entry in CORPUS) >= 200


async def test_the_upstream_never_sees_bytes_that_are_no_plain_request(attack):
    assert attack.breaches == []


async def test_no_hidden_request_reaches_an_upstream(attack):
    hiding = {number for number, entry, _ in numbered(attack) if entry.hides}
    found = {int(target.rpartition("-")[2]) for target in attack.targets if target.startswith("/hidden-")}
    assert [CORPUS[number].name for number in sorted(found & hiding)] == []


async def test_each_request_at_the_upstream_has_one_call_and_one_response(attack):
    """The number of responses that name a target equals the number of requests at the upstream, minus those whose
    caller had left."""
    told = [
        answer.served for _, _, outcome in numbered(attack) for answer in outcome.answers if answer.served
    ]
    assert not [target for target in set(told) if told.count(target) > attack.targets.count(target)]


async def test_the_next_request_is_answered_right_or_the_connection_is_closed(attack):
    wrong = []
    for number, entry, outcome in numbered(attack):
        after = [one for one in outcome.answers if one.served == f"/next-{number:03}"]
        is_last = not after or outcome.answers[-1] is after[-1]
        is_whole = all(one.status == 200 and one.body == f"/next-{number:03}".encode() for one in after)
        if not (len(after) <= 1 and is_last and is_whole):
            wrong.append(entry.name)
    assert wrong == []


async def test_every_byte_that_comes_back_belongs_to_an_answer(attack):
    torn = [entry.name for _, entry, outcome in numbered(attack) if outcome.rest]
    assert torn == []


async def test_nothing_in_the_corpus_makes_the_gateway_fail(attack):
    failed = [
        (entry.name, answer.status)
        for _, entry, outcome in numbered(attack)
        for answer in outcome.answers
        if answer.status >= 500 and answer.status not in (501, 505)
    ]
    assert failed == []
