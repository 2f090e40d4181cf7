"""What counts as a proof at an origin: a server on loopback, a name that says what it is told, and wallets with keys."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.kit.payer import KeyWallet
from tests.kit.upstream import Arrived, LoopbackUpstream, plain, run_upstream, say_nothing
from tollway.chain.port import ContractResult
from tollway.errors import ChainUnavailable
from tollway.identity.signatures import SignatureVerifier, eip191_digest
from tollway.ids import ChainId, ListingId
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.client import HttpClient
from tollway.outbound.probes import DOCUMENT_BYTES_MAX, EvidenceState, OwnershipChecker
from tollway.registry.ownership import DOCUMENT_PATH, WELL_KNOWN_PATH, Challenge, OwnershipClaim

CHAIN = ChainId(84532)
ALICE, PAYEE, STRANGER = (KeyWallet.named(name) for name in ("alice", "payee", "stranger"))
LIMITS = replace(DEFAULT_LIMITS, ownership_deadline_s=5.0, ownership_file_bytes_max=1_000)


@dataclass
class Names:
    """`texts` None: no name server answers."""

    texts: tuple[str, ...] | None = ()
    asked: list[str] = field(default_factory=list)

    async def find_texts(self, name: str) -> tuple[str, ...] | None:
        self.asked.append(name)
        return self.texts


@dataclass
class Chain:
    """`payload` None: the chain is away."""

    chain_ids: tuple[ChainId, ...] = (CHAIN,)
    payload: bytes | None = b""
    asked: int = 0

    async def call_contract(self, *args: object, **more: object) -> ContractResult:
        self.asked += 1
        if self.payload is None:
            raise ChainUnavailable
        return ContractResult(reverted=False, payload=self.payload)


@dataclass
class Scene:
    upstream: LoopbackUpstream
    txt_records: Names
    chain: Chain
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
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    limits: Limits = getattr(request, "param", LIMITS)
    async with run_upstream() as upstream:
        txt_records, chain = Names(), Chain()
        http_client = HttpClient(limits=limits, allow_private=True)
        checker = OwnershipChecker(
            http_client=http_client,
            txt_records=txt_records,
            verifier=SignatureVerifier(chain, limits=limits),  # type: ignore[arg-type] # only wallets are asked
            gateway="https://gw.example.com",
            limits=limits,
        )
        scene = Scene(upstream=upstream, txt_records=txt_records, chain=chain, checker=checker)

        async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
            body = scene.pages.get(arrived.target)
            page = plain(b"", status=404) if body is None else plain(body, status=scene.status)
            await page(arrived, writer)

        upstream.answer = answer
        yield scene
        await http_client.close()


async def test_an_origin_that_says_nothing_proves_nothing(scene: Scene) -> None:
    assert await scene.see() == dict.fromkeys(("wellKnown", "dns", "signature"), "not_found")
    asked = sorted(arrived.target for arrived in scene.upstream.arrived)
    assert asked == [WELL_KNOWN_PATH, DOCUMENT_PATH]
    for arrived in scene.upstream.arrived:
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
async def test_the_file_has_our_line(scene: Scene, page: str, sight: EvidenceState) -> None:
    scene.pages[WELL_KNOWN_PATH] = page.replace("{}", scene.challenge.content).encode()
    assert (await scene.see())["wellKnown"] == sight


@pytest.mark.parametrize("status", [201, 204, 301, 302, 401, 404, 500])
async def test_only_a_200_is_the_file_and_no_redirect_is_followed(scene: Scene, status: int) -> None:
    scene.status = status
    scene.pages[WELL_KNOWN_PATH] = b"" if status == 204 else scene.challenge.content.encode()
    assert (await scene.see())["wellKnown"] == "not_found"
    assert len(scene.upstream.arrived) == 2


async def test_the_file_of_another_wallet_or_origin_is_no_proof(scene: Scene) -> None:
    other = replace(scene.challenge, content="tollway-verification=" + "A" * 43)
    scene.pages[WELL_KNOWN_PATH] = scene.challenge.content.encode()
    assert (await scene.see(other))["wellKnown"] == "not_found"
    elsewhere = scene.challenge_at(scene.upstream.url.replace("127.0.0.1", "localhost"))
    assert (await scene.see(elsewhere))["wellKnown"] == "not_found"


@pytest.mark.parametrize(
    ("texts", "sight"),
    [
        (("v=spf1 -all", "{}"), "proved"),
        (("x{}",), "not_found"),
        ((), "not_found"),
        (None, "unreachable"),
    ],
)
async def test_the_name_has_our_text(
    scene: Scene, texts: tuple[str, ...] | None, sight: EvidenceState
) -> None:
    about = scene.challenge_at(scene.upstream.url.replace("127.0.0.1", "localhost"))
    scene.txt_records.texts = texts and tuple(text.replace("{}", about.content) for text in texts)
    assert (await scene.see(about))["dns"] == sight
    assert scene.txt_records.asked == ["_tollway.localhost"]


async def test_an_address_has_no_name_to_ask_about(scene: Scene) -> None:
    scene.txt_records.texts = (scene.challenge.content,)
    assert (await scene.see())["dns"] == "not_found"
    assert scene.txt_records.asked == []


async def test_a_final_dot_of_a_host_is_not_asked_about(scene: Scene) -> None:
    assert scene.challenge_at("https://api.example.com./v1").dns_name == "_tollway.api.example.com"


async def test_a_signature_of_the_payee_in_the_origins_document_proves_it(scene: Scene) -> None:
    scene.pages[DOCUMENT_PATH] = scene.document("0x00", "no hex", scene.sign(PAYEE))
    assert (await scene.see())["signature"] == "proved"


async def test_other_signatures_prove_nothing(scene: Scene) -> None:
    scene.pages[DOCUMENT_PATH] = scene.document(
        scene.sign(STRANGER),
        scene.sign(ALICE),
        scene.sign(PAYEE, scene.challenge.origin + "/"),
        scene.sign(PAYEE, "https://api.example.com"),
        7,
    )
    assert (await scene.see())["signature"] == "not_found"


async def test_a_contract_wallet_is_asked_on_its_chain(scene: Scene) -> None:
    scene.pages[DOCUMENT_PATH] = scene.document("0x" + "12" * 40)
    assert (await scene.see())["signature"] == "not_found"
    scene.chain.payload = bytes.fromhex("1626ba7e").ljust(32, b"\0")
    assert (await scene.see())["signature"] == "proved"
    scene.chain.payload = None
    assert (await scene.see())["signature"] == "unreachable"


async def test_no_more_than_a_few_signatures_are_looked_at(scene: Scene) -> None:
    scene.pages[DOCUMENT_PATH] = scene.document(*["0x" + "12" * 40] * 100)
    assert (await scene.see())["signature"] == "not_found"
    assert scene.chain.asked == 8


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"openapi: 3.1.0",
        b"[" * 100_000,
        b'{"x-discovery": {"ownershipProofs": null}}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b"\xff\xfe",
        b'"' + b"x" * DOCUMENT_BYTES_MAX + b'"',
    ],
    ids=("empty", "yaml", "deep", "null", "long number", "no text", "too large"),
)
async def test_a_document_that_is_none_proves_nothing(scene: Scene, document: bytes) -> None:
    scene.pages[DOCUMENT_PATH] = document
    assert (await scene.see())["signature"] == "not_found"


@pytest.mark.parametrize("scene", [replace(LIMITS, ownership_deadline_s=0.2)], indirect=True)
async def test_an_origin_that_hangs_is_left_at_the_deadline(scene: Scene) -> None:
    scene.upstream.answer = say_nothing
    async with asyncio.timeout(20):
        assert await scene.see() == {
            "wellKnown": "unreachable",
            "dns": "not_found",
            "signature": "unreachable",
        }


async def test_an_origin_that_may_not_be_dialled_is_unreachable(scene: Scene) -> None:
    """It was allowed when it was published, and is judged anew."""
    inside = replace(scene.challenge, origin="http://169.254.169.254:22")
    assert (await scene.see(inside))["wellKnown"] == "unreachable"
    nowhere = scene.challenge_at("http://127.0.0.1:22/")
    assert (nowhere.origin, await scene.see(nowhere)) == ("", {})
