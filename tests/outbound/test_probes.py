"""Requests of the gateway itself to a provider's server."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import CONFIRMED
from tests.kit.payer import KeyWallet
from tests.kit.ports import find_free_port
from tests.kit.upstream import Arrived, LoopbackUpstream, plain, run_upstream, say_nothing
from tollway.errors import EndpointNotAllowed, UpstreamBadResponse, UpstreamUnreachable
from tollway.identity.signatures import SignatureVerifier, eip191_digest
from tollway.ids import ChainId, ListingId
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.client import HttpClient
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.outbound.probes import (
    DOCUMENT_BYTES_MAX,
    PROBE_BYTES_MAX,
    EvidenceState,
    Fetcher,
    OwnershipChecker,
)
from tollway.registry.ownership import DOCUMENT_PATH, WELL_KNOWN_PATH, Challenge, OwnershipClaim


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        status = int(request.match_info["status"])
        headers = {"Location": "/200"} if status == 302 else {}
        return web.Response(status=status, headers=headers, body=b"x" * int(request.query.get("size", "4")))

    app = web.Application()
    app.router.add_get("/{status}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    http_client = HttpClient(limits=DEFAULT_LIMITS, allow_private=True)
    yield Fetcher(http_client)
    await http_client.close()


@pytest.fixture
def nobody() -> str:
    """A port that was free a moment ago."""
    return f"http://127.0.0.1:{find_free_port()}"


def endpoint_of(url: str) -> Endpoint:
    endpoint = parse_endpoint(url, allow_private=True)
    assert isinstance(endpoint, Endpoint)
    return endpoint


async def test_a_document_comes_whole(fetcher: Fetcher, server: str) -> None:
    assert await fetcher.fetch_document(server + "/200") == b"xxxx"


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/404", "responded with status 404"),
        ("/302", "responded with status 302 and the location /200"),
        ("/500", "responded with status 500"),
        (f"/200?size={DOCUMENT_BYTES_MAX + 1}", f"is larger than {DOCUMENT_BYTES_MAX} bytes"),
    ],
)
async def test_no_document_is_a_failure_with_its_cause_and_no_redirect_is_followed(
    fetcher: Fetcher, server: str, path: str, cause: str
) -> None:
    with pytest.raises(UpstreamBadResponse, match=cause):
        await fetcher.fetch_document(server + path)


async def test_a_url_that_may_not_be_dialled_is_refused(fetcher: Fetcher) -> None:
    with pytest.raises(EndpointNotAllowed):
        await fetcher.fetch_document("file:///etc/passwd")


async def test_a_server_that_is_not_there_is_unreachable(fetcher: Fetcher, nobody: str) -> None:
    with pytest.raises(UpstreamUnreachable):
        await fetcher.fetch_document(nobody + "/openapi.json")


@pytest.mark.parametrize(("status", "is_unprotected"), [(200, True), (204, True), (401, False), (404, False)])
async def test_an_endpoint_that_answers_without_the_secret_is_unprotected(
    fetcher: Fetcher, server: str, status: int, is_unprotected: bool
) -> None:
    assert await fetcher.is_unprotected(endpoint_of(f"{server}/{status}")) is is_unprotected


async def test_an_unreachable_endpoint_does_not_count_as_unprotected(fetcher: Fetcher, nobody: str) -> None:
    assert not await fetcher.is_unprotected(endpoint_of(nobody))


# ---- Proofs of ownership at an origin: a server on loopback, a name server with chosen responses, and wallets with keys.


CHAIN = ChainId(84532)
ALICE, PAYEE, STRANGER = (KeyWallet.named(name) for name in ("alice", "payee", "stranger"))
LIMITS = replace(DEFAULT_LIMITS, ownership_deadline_s=60.0, ownership_file_bytes_max=1_000)


@dataclass
class Names:
    """`texts` None: no name server answers."""

    texts: tuple[str, ...] | None = ()
    asked: list[str] = field(default_factory=list)

    async def find_texts(self, name: str) -> tuple[str, ...] | None:
        self.asked.append(name)
        return self.texts


@dataclass
class Harness:
    upstream: LoopbackUpstream
    txt_records: Names
    chain: MemoryChain
    checker: OwnershipChecker
    pages: dict[str, bytes] = field(default_factory=dict)
    status: int = 200

    @property
    def challenge(self) -> Challenge:
        return self.challenge_at(self.upstream.url + "/v1/prices")

    def challenge_at(self, endpoint: str) -> Challenge:
        return self.checker.challenge(
            OwnershipClaim(
                listing_id=ListingId("api_1"),
                provider=ALICE.address,
                pay_to=PAYEE.address,
                networks=(CHAIN,),
                endpoint=endpoint,
            )
        )

    async def see(self, challenge: Challenge | None = None) -> Mapping[str, EvidenceState]:
        return (await self.checker.find_evidence(challenge or self.challenge)).of

    def sign(self, buyer: KeyWallet, text: str | None = None) -> str:
        return buyer.sign_hex(eip191_digest((text or self.challenge.origin).encode()))

    def document(self, *proofs: Any) -> bytes:
        return json.dumps({"openapi": "3.1.0", "x-discovery": {"ownershipProofs": proofs}}).encode()


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    limits: Limits = getattr(request, "param", LIMITS)
    async with run_upstream() as upstream:
        txt_records, chain = Names(), MemoryChain(CHAIN)
        http_client = HttpClient(limits=limits, allow_private=True)
        checker = OwnershipChecker(
            http_client=http_client,
            txt_records=txt_records,
            verifier=SignatureVerifier(chain, limits=limits),
            gateway="https://gw.example.com",
            limits=limits,
        )
        harness = Harness(upstream=upstream, txt_records=txt_records, chain=chain, checker=checker)

        async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
            body = harness.pages.get(arrived.target)
            page = plain(b"", status=404) if body is None else plain(body, status=harness.status)
            await page(arrived, writer)

        upstream.answer = answer
        yield harness
        await http_client.close()


async def test_a_silent_origin_proves_nothing(harness: Harness) -> None:
    assert await harness.see() == dict.fromkeys(("wellKnown", "dns", "signature"), "not_found")
    asked = sorted(arrived.target for arrived in harness.upstream.arrived)
    assert asked == [WELL_KNOWN_PATH, DOCUMENT_PATH]
    for arrived in harness.upstream.arrived:
        assert arrived.method == "GET"
        assert arrived.names <= {"host", "accept", "connection"}, "no secret, no payment"


@pytest.mark.parametrize(
    ("page", "sight"),
    [
        ("{}", "proved"),
        ("# ours\r\n  {}  \r\n", "proved"),
        ("\ufeff{}\n", "proved"),
        ("<html>{}</html>", "not_found"),
        ("", "not_found"),
        ("{}\n" + "x" * 1_000, "not_found"),
    ],
    ids=("whole", "a line", "a mark", "inside", "empty", "too large"),
)
async def test_the_file_has_our_line(harness: Harness, page: str, sight: EvidenceState) -> None:
    harness.pages[WELL_KNOWN_PATH] = page.replace("{}", harness.challenge.content).encode()
    assert (await harness.see())["wellKnown"] == sight


@pytest.mark.parametrize("status", [201, 204, 301, 302, 401, 404, 500])
async def test_only_a_200_is_the_file_and_no_redirect_is_followed(harness: Harness, status: int) -> None:
    harness.status = status
    harness.pages[WELL_KNOWN_PATH] = b"" if status == 204 else harness.challenge.content.encode()
    assert (await harness.see())["wellKnown"] == "not_found"
    assert len(harness.upstream.arrived) == 2


async def test_the_file_of_another_wallet_or_origin_is_no_proof(harness: Harness) -> None:
    other = replace(harness.challenge, content="tollway-verification=" + "A" * 43)
    harness.pages[WELL_KNOWN_PATH] = harness.challenge.content.encode()
    assert (await harness.see(other))["wellKnown"] == "other_line"
    elsewhere = harness.challenge_at(harness.upstream.url.replace("127.0.0.1", "localhost"))
    assert (await harness.see(elsewhere))["wellKnown"] == "other_line"


@pytest.mark.parametrize(
    ("texts", "sight"),
    [
        (("v=spf1 -all", "{}"), "proved"),
        (("x{}",), "not_found"),
        (("v=spf1 -all", "{}x"), "other_line"),
        ((), "not_found"),
        (None, "unreachable"),
    ],
)
async def test_the_name_has_our_text(
    harness: Harness, texts: tuple[str, ...] | None, sight: EvidenceState
) -> None:
    about = harness.challenge_at(harness.upstream.url.replace("127.0.0.1", "localhost"))
    harness.txt_records.texts = texts and tuple(text.replace("{}", about.content) for text in texts)
    assert (await harness.see(about))["dns"] == sight
    assert harness.txt_records.asked == ["_tollway.localhost"]


async def test_an_address_has_no_name_to_ask_about(harness: Harness) -> None:
    harness.txt_records.texts = (harness.challenge.content,)
    assert (await harness.see())["dns"] == "not_found"
    assert harness.txt_records.asked == []


async def test_a_final_dot_of_a_host_is_removed(harness: Harness) -> None:
    assert harness.challenge_at("https://api.example.com./v1").dns_name == "_tollway.api.example.com"


async def test_a_signature_of_the_payee_in_the_origins_document_proves_it(harness: Harness) -> None:
    harness.pages[DOCUMENT_PATH] = harness.document("0x00", "no hex", harness.sign(PAYEE))
    assert (await harness.see())["signature"] == "proved"


async def test_other_signatures_prove_nothing(harness: Harness) -> None:
    harness.pages[DOCUMENT_PATH] = harness.document(
        harness.sign(STRANGER),
        harness.sign(ALICE),
        harness.sign(PAYEE, harness.challenge.origin + "/"),
        harness.sign(PAYEE, "https://api.example.com"),
        7,
    )
    assert (await harness.see())["signature"] == "not_found"


async def test_a_contract_wallet_is_called_on_its_chain(harness: Harness) -> None:
    harness.pages[DOCUMENT_PATH] = harness.document("0x" + "12" * 40)
    assert (await harness.see())["signature"] == "not_found"
    harness.chain.deploy(CHAIN, PAYEE.address, lambda calldata: CONFIRMED)
    assert (await harness.see())["signature"] == "proved"
    harness.chain.disconnect(CHAIN)
    assert (await harness.see())["signature"] == "unreachable"


async def test_no_more_than_a_few_signatures_are_looked_at(harness: Harness) -> None:
    harness.pages[DOCUMENT_PATH] = harness.document(*["0x" + "12" * 40] * 100)
    assert (await harness.see())["signature"] == "not_found"
    assert harness.chain.request_count == 8


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"openapi: 3.1.0",
        b"[" * 100_000,
        b'{"x-discovery": {"ownershipProofs": null}}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b"\xff\xfe",
        b'"' + b"x" * PROBE_BYTES_MAX + b'"',
    ],
    ids=("empty", "yaml", "deep", "null", "long number", "no text", "too large"),
)
async def test_a_document_that_is_none_proves_nothing(harness: Harness, document: bytes) -> None:
    harness.pages[DOCUMENT_PATH] = document
    assert (await harness.see())["signature"] == "not_found"


@pytest.mark.parametrize("harness", [replace(LIMITS, ownership_deadline_s=0.2)], indirect=True)
async def test_an_origin_that_hangs_is_left_at_the_deadline(harness: Harness) -> None:
    harness.upstream.answer = say_nothing
    assert await harness.see() == {
        "wellKnown": "unreachable",
        "dns": "not_found",
        "signature": "unreachable",
    }


async def test_an_origin_that_may_not_be_dialled_is_unreachable(harness: Harness) -> None:
    """It was allowed when it was published, and is judged anew."""
    inside = replace(harness.challenge, origin="http://169.254.169.254:22")
    assert (await harness.see(inside))["wellKnown"] == "unreachable"
    nowhere = harness.challenge_at("http://127.0.0.1:22/")
    assert (nowhere.origin, await harness.see(nowhere)) == ("", {})
