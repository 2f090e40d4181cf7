"""Every control header in every disguise, twelve secrets, and five hundred ways out of a base path, through a real gateway:
what is honoured, what leaks, and where a path arrives is seen at the other end.
"""

import asyncio
import itertools
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import httpx
import pytest
import pytest_asyncio
from eth_account import Account

from tests.kit.ports import find_low_port
from tests.kit.waits import DEADLINE_S
from tests.system.attack import strict_upstream
from tests.system.attack.attacked_gateway import free_listing
from tollway.client.wallet import Wallet

BASE = "/base/path"
CROWD = 16


pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTROL = (
    "X-Payment-Tx",
    "X-Signature",
    "X-Signature-Params",
    "X-Payment-Network",
    "PAYMENT-SIGNATURE",
    "X-PAYMENT",
    "Authorization",
    "Idempotency-Key",
    "Tollway-Max-Price",
    "SIGN-IN-WITH-X",
    "Signature",
    "Signature-Input",
    "Content-Digest",
)
NOT_FROM_UPSTREAM = (
    "Tollway-Call-Id",
    "Tollway-Payment-State",
    "Tollway-Price",
    "Tollway-Credit-Remaining",
    "Tollway-Anything",
    "PAYMENT-REQUIRED",
    "PAYMENT-RESPONSE",
    "PAYMENT-SIGNATURE",
    "X-PAYMENT",
    "X-PAYMENT-RESPONSE",
    "X-Payment-Tx",
    "X-Signature",
    "Payment-Receipt",
    "Settlement-Overrides",
    "Idempotency-Replayed",
    "Set-Cookie",
    "Set-Cookie2",
    "Strict-Transport-Security",
    "Public-Key-Pins",
    "Clear-Site-Data",
    "Alt-Svc",
    "NEL",
    "Report-To",
    "Access-Control-Allow-Credentials",
    "SIGN-IN-WITH-X",
    "Accept-Signature",
    "CDN-Loop",
    "Proxy-Authenticate",
    "Upgrade",
    "Trailer",
    "Keep-Alive",
)
SEEDED = {
    name: secrets.token_hex(16)
    for name in (
        "Cookie",
        "Authorization",
        "X-Signature",
        "X-Signature-Params",
        "PAYMENT-SIGNATURE",
        "X-PAYMENT",
        "SIGN-IN-WITH-X",
        "Signature",
        "Proxy-Authorization",
        "session token",
        "session signature",
        "upstream secret",
    )
}
"""Twelve values that nobody but their owner may ever see again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    fields: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    gateway: Any
    upstream: Any
    folder: Path
    admin_url: str
    api_id: str
    guarded_id: str

    async def send(self, raw_target: str, *lines: str) -> Reply:
        """One request, byte for byte, on a connection of its own."""
        parts = urlsplit(self.gateway.base_url)
        head = "\r\n".join(
            [f"GET {raw_target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close", *lines, "", ""]
        )
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(head.encode())
            async with asyncio.timeout(DEADLINE_S):
                received = await reader.read()
        finally:
            writer.close()
        told, _, body = received.partition(b"\r\n\r\n")
        first, *rest = told.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in rest)
        return Reply(
            status=int(first.split()[1]),
            fields={name.lower(): value.strip() for name, _, value in pairs},
            body=body,
        )

    async def call(self, rest: str, *lines: str, api_id: str | None = None) -> Reply:
        return await self.send(f"/api/v2/gateway/{api_id or self.api_id}{rest}", *lines)

    def head_of(self, rest: str) -> bytes | None:
        """What the upstream has seen of the request for that path; None when it saw none."""
        wanted = BASE + rest
        seen = zip(self.upstream.targets, self.upstream.heads, strict=True)
        return next((head for target, head in seen if target == wanted), None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory, run_gateway: Any) -> AsyncIterator[Harness]:
    folder, admin_port = tmp_path_factory.mktemp("tables"), find_low_port()
    settings = {
        "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
        "TOLLWAY_LOG_LEVEL": "debug",
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{admin_port}",
    }
    async with (
        run_gateway(folder, environment=settings) as gateway,
        strict_upstream.run_upstream() as upstream,
    ):
        upstream.extra = b"".join(f"{name}: leaked\r\n".encode() for name in NOT_FROM_UPSTREAM)
        secret = {"in": "header", "name": "X-Api-Key", "value": SEEDED["upstream secret"]}
        yield Harness(
            gateway=gateway,
            upstream=upstream,
            folder=folder,
            admin_url=f"http://127.0.0.1:{admin_port}",
            api_id=await publish(gateway, upstream.url + BASE),
            guarded_id=await publish(gateway, upstream.url + BASE, upstreamAuth=secret),
        )


async def publish(gateway: Any, endpoint: str, **more: Any) -> str:
    wallet = Wallet.from_key(Account.create().key)
    body, headers = gateway.sign_create(wallet, free_listing(endpoint, **more))
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(gateway.base_url + "/api/v2/apis", content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def code_of(reply: Reply) -> str | None:
    return json.loads(reply.body)["code"] if reply.status >= 400 else None


# ---- Headers.


def disguise(way: str, name: str, value: str) -> list[str]:
    return {
        "nominated": [f"Connection: {name}", f"{name}: {value}"],
        "underscored": [f"{name.replace('-', '_')}_: {value}"],
        "twice": [f"{name}: {value}", f"{name}: {value}"],
        "twice in other case": [f"{name.lower()}: {value}", f"{name.upper()}: {value}"],
    }[way]


@pytest.mark.parametrize("way", ["nominated", "underscored", "twice", "twice in other case"])
async def test_a_disguised_control_header_is_refused_and_goes_nowhere(harness, way):
    seen = {}
    for name in CONTROL:
        rest, value = f"/{way.replace(' ', '-')}/{name.lower()}", secrets.token_hex(8)
        reply = await harness.call(rest, *disguise(way, name, value))
        leaks = value.encode() in reply.body
        seen[name] = (reply.status, code_of(reply), harness.head_of(rest), leaks)
    assert seen == dict.fromkeys(CONTROL, (400, "invalid_request", None, False))


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
async def test_in_any_case_it_is_the_gateways_and_not_the_upstreams(harness, change):
    values = {name: secrets.token_hex(8) for name in CONTROL}
    statuses = {
        name: (await harness.call(f"/{change.__name__}/{name.lower()}", f"{change(name)}: {value}")).status
        for name, value in values.items()
    }
    heads = b"".join(harness.upstream.heads)
    assert [name for name, value in values.items() if value.encode() in heads] == []
    assert [name for name, status in statuses.items() if status >= 500] == []


async def test_the_upstreams_word_never_passes_for_the_gateways(harness):
    reply = await harness.call("/answered")
    assert reply.status == 200
    assert reply.body == f"{BASE}/answered".encode()
    assert [name for name, value in reply.fields.items() if "leaked" in value] == []


# ---- Secrets.


async def test_twelve_secrets_are_in_no_output(harness):
    """Sent in every request where their kind belongs, to a gateway that logs everything."""
    shown = [f"{name}: {value}" for name, value in SEEDED.items() if " " not in name]
    assert len(SEEDED) == 12
    answers = [await harness.call(f"/secret-{n}", line) for n, line in enumerate(shown)]
    answers.append(await harness.call("/guarded", api_id=harness.guarded_id))
    for path in ("/api/v2/history", "/api/v2/payments", "/api/v2/apis", f"/api/v2/apis/{harness.guarded_id}"):
        bearer = f"Authorization: Bearer {SEEDED['session token']}"
        answers += [await harness.send(path, bearer), *[await harness.send(path, line) for line in shown]]
    async with httpx.AsyncClient(trust_env=False, base_url=harness.gateway.base_url) as http:
        message = {"message": "sign in", "signature": "0x" + SEEDED["session signature"]}
        told = await http.post("/api/v2/auth/session", json=message)
        metrics = (await http.get(harness.admin_url + "/metrics")).content
    places = {
        "an answer": b"".join(one.body + repr(one.fields).encode() for one in answers) + told.content,
        "the log": harness.gateway.log.read_bytes(),
        "the metrics": metrics,
        "the database": b"".join(path.read_bytes() for path in harness.folder.glob("attacked.sqlite3*")),
        "the upstream": b"".join(harness.upstream.heads),
    }
    assert all(places.values()), "each place was looked at"
    leaks = [
        (name, place)
        for name, value in SEEDED.items()
        for place, content in places.items()
        if value.encode() in content and (name, place) != ("upstream secret", "the upstream")
    ]
    assert leaks == []
    assert SEEDED["upstream secret"].encode() in places["the upstream"], "where it belongs"


# ---- Paths.


def ways_out() -> list[str]:
    """Paths that some server may read as one above the base."""
    dots = (
        "..",
        "%2e%2e",
        ".%2e",
        "%2E.",
        "%252e%252e",
        ".%252e",
        "%c0%ae%c0%ae",
        "%e0%80%ae.",
        "..%00",
        "%u002e.",
        "..;",
        "..;x=1",
        "．．",
    )
    slashes = ("/", "%2f", "%2F", "%252f", "%5c", "%255c", "\\", "%c0%af", "//")
    rests = [
        f"{before}{dot}{slash}{dot}{slash}etc"
        for before, dot, slash in itertools.product(("/", "/a/", "/./", "/a%2f"), dots, slashes)
    ]
    return [*rests, *_odd_ways_out()]


def _odd_ways_out() -> Iterator[str]:
    for depth in range(1, 9):
        yield "/.." * depth
        yield "/a" * depth + "/.." * (depth + 1)
        yield "/%2e%2e" * depth + "/etc/passwd"
        yield "/a/b" + "/..;/.." * depth
    yield from (
        "/..",
        "/../",
        "/.",
        "/./",
        "/..?x",
        "/...",
        "/....//....//etc",
        "/..././..././etc",
        "/.%00./etc",
        "/%2e",
        "/%2e/",
    )
    yield from (
        "/..%0a/etc",
        "/..%0d%0aX:y/etc",
        "/..%09/etc",
        "/..%20/etc",
        "/..%ff/etc",
        "/%fe%fe/etc",
        "/..%3f/etc",
        "/..%23/etc",
    )
    yield from (
        "/http://169.254.169.254/",
        "/@169.254.169.254/",
        "//169.254.169.254/",
        "/%2f%2f169.254.169.254/",
        ":80/",
        "@evil.test/",
        ".evil.test/",
    )


WAYS_OUT = ways_out()


def readings(target: str) -> Iterator[str]:
    """The path as servers may read it: as it stands, and after one and two decodes; each with the dots resolved."""
    path = target.partition("?")[0].encode("latin-1")
    for _ in range(3):
        text = path.decode("latin-1").replace("\\", "/")
        yield resolve(re.sub(r";[^/]*", "", text))
        path = unquote_to_bytes(path)


def resolve(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


async def test_five_hundred_ways_out_of_the_base_path_end_inside_it_or_in_a_refusal(harness):
    assert len(WAYS_OUT) >= 500
    begun = len(harness.upstream.targets)
    ways, replies = iter(WAYS_OUT), dict.fromkeys(WAYS_OUT, 0)

    async def send() -> None:
        for rest in ways:
            replies[rest] = (await harness.call(rest)).status

    await asyncio.gather(*(send() for _ in range(CROWD)))
    arrived = harness.upstream.targets[begun:]
    outside = [
        target
        for target in arrived
        if not all(read == BASE or read.startswith(BASE + "/") for read in readings(target))
    ]
    assert outside == []
    assert set(replies.values()) <= {200, 400, 404}, replies
    assert list(replies.values()).count(400) > 400, "most of them could be read as leaving"
