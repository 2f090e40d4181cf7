"""The two routes of ownership: the public state, and the check by the provider. Origins are real servers on loopback;
wallets and DNS are fakes."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.kit.chain import MemoryChain
from tests.kit.listings import sample_listing
from tests.kit.payer import CHAIN, KeyWallet
from tests.kit.routes import ALICE, BOB, PUBLIC_URL, RouteHarness
from tests.kit.upstream import Arrived, LoopbackUpstream, plain, run_upstream
from tollway.identity.signatures import SignatureVerifier, eip191_digest
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.outbound.client import HttpClient
from tollway.outbound.probes import OwnershipChecker
from tollway.rate_limits.limiter import WALLETS_PER_ADDRESS
from tollway.registry.listing import Listing
from tollway.web.api.ownership_routes import ownership_router
from tollway.web.http.contract import CONTRACT_PATH, Site, load_contract

PAYEE = KeyWallet.named("payee")
NOW_MS = 1_700_000_000_123
LIMITS = Limits(ownership_checks_per_hour=5, ownership_deadline_s=60.0)
PATH = "/api/v2/apis/api_1/ownership"


@dataclass
class Names:
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def find_texts(self, name: str) -> tuple[str, ...] | None:
        return self.texts.get(name, ())


class Harness(RouteHarness):
    """The routes over a catalog in memory. `pages`: of the origin, by path."""

    def __init__(self, upstream: LoopbackUpstream, http_client: HttpClient) -> None:
        self.upstream = upstream
        upstream.answer = self._answer
        self.txt_records = Names()
        self.pages: dict[str, bytes] = {}
        self.on_request: Any = None
        super().__init__(
            limits=LIMITS,
            ownership_checker=OwnershipChecker(
                http_client=http_client,
                txt_records=self.txt_records,
                verifier=SignatureVerifier(MemoryChain(CHAIN), limits=LIMITS),
                gateway=PUBLIC_URL,
                limits=LIMITS,
            ),
        )
        self.now_ms = NOW_MS

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        if self.on_request is not None:
            await self.on_request()
        page = self.pages.get(arrived.target)
        await plain(page or b"", status=404 if page is None else 200)(arrived, writer)

    async def get(self, path: str = PATH) -> httpx.Response:
        return await self.client.get(path)

    async def check(
        self, *, wallet: Address | None = ALICE, content: bytes = b"", path: str = PATH
    ) -> httpx.Response:
        proof = {} if wallet is None else {"x-test-wallet": str(wallet)}
        return await self.client.post(path, headers=proof, content=content)

    async def publish(self, **changes: Any) -> Listing:
        plain_listing = sample_listing(
            id=ListingId("api_1"),
            provider=ALICE,
            name="Quotes",
            endpoint=self.upstream.url + "/v1",
            pay_to=PAYEE.address,
        )
        listing = replace(plain_listing, **changes)
        await self.catalog.publish(listing)
        return listing

    async def edit(self, **changes: Any) -> None:
        entry = await self.catalog.find(ListingId("api_1"))
        assert entry is not None
        changed = replace(entry.listing, **changes)
        await self.catalog.revise(changed, expected_revision=entry.listing.revision)

    async def put_up_file(self) -> None:
        shown = (await self.get()).json()["challenge"]["wellKnown"]
        self.pages[shown["url"].removeprefix(self.upstream.url)] = shown["content"].encode()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    http_client = HttpClient(limits=LIMITS, allow_private=True)
    async with run_upstream() as upstream:
        harness = Harness(upstream, http_client)
        async with harness.open(ownership_router):
            yield harness
        await http_client.close()


async def test_every_client_may_read_the_ownership_and_its_challenge(harness: Harness) -> None:
    await harness.publish(endpoint="https://api.example.com:8443/v1")
    answer = await harness.get()
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    told = answer.json()
    content = told["challenge"]["wellKnown"]["content"]
    assert content.startswith("tollway-verification=")
    origin = "https://api.example.com:8443"
    assert told == {
        "apiId": "api_1",
        "origin": origin,
        "state": "unverified",
        "method": None,
        "verifiedAt": None,
        "checkedAt": None,
        "failures": 0,
        "challenge": {
            "wellKnown": {"url": origin + "/.well-known/tollway-verification", "content": content},
            "dns": {"name": "_tollway.api.example.com", "value": content},
            "signature": {
                "url": origin + "/openapi.json",
                "pointer": "/x-discovery/ownershipProofs",
                "message": origin,
                "signer": str(PAYEE.address),
            },
        },
    }
    head = await harness.client.head(PATH)
    assert (head.status_code, head.content) == (200, b"")


async def test_an_ip_address_has_no_dns_challenge(harness: Harness) -> None:
    await harness.publish()
    assert (await harness.get()).json()["challenge"]["dns"] is None


async def test_a_check_that_finds_the_file_verifies_the_listing_for_every_client(harness: Harness) -> None:
    await harness.publish()
    await harness.put_up_file()
    answer = await harness.check()
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told.pop("checks") == {"wellKnown": "proved", "dns": "not_found", "signature": "not_found"}
    assert (told["state"], told["method"], told["failures"]) == ("verified", "wellKnown", 0)
    assert told["verifiedAt"] == told["checkedAt"] == "2023-11-14T22:13:20.123Z"
    assert (await harness.get()).json() == told


async def test_a_name_and_a_signed_document_verify_too(harness: Harness) -> None:
    origin = harness.upstream.url.replace("127.0.0.1", "localhost")
    await harness.publish(endpoint=origin + "/v1")
    shown = (await harness.get()).json()["challenge"]
    harness.txt_records.texts[shown["dns"]["name"]] = (shown["dns"]["value"],)
    assert (await harness.check()).json()["method"] == "dns"
    harness.txt_records.texts.clear()
    signature = PAYEE.sign_hex(eip191_digest(shown["signature"]["message"].encode()))
    document = {"x-discovery": {"ownershipProofs": [signature]}}
    harness.pages["/openapi.json"] = json.dumps(document).encode()
    told = (await harness.check()).json()
    assert (told["method"], told["state"]) == ("signature", "verified")


async def test_a_check_without_a_proof_counts_and_keeps_the_last_proof(harness: Harness) -> None:
    await harness.publish()
    told = (await harness.check()).json()
    assert (told["state"], told["failures"], told["verifiedAt"]) == ("unverified", 1, None)
    await harness.put_up_file()
    await harness.check()
    harness.pages.clear()
    harness.now_ms += 1_000
    told = (await harness.check()).json()
    assert (told["state"], told["failures"]) == ("verified", 1)
    assert told["verifiedAt"] < told["checkedAt"]


async def test_an_edit_of_the_origin_ends_the_proof(harness: Harness) -> None:
    await harness.publish()
    await harness.put_up_file()
    await harness.check()
    await harness.edit(endpoint=harness.upstream.url.replace("127.0.0.1", "localhost") + "/v1")
    told = (await harness.get()).json()
    assert (told["state"], told["checkedAt"]) == ("unverified", None)


async def test_a_check_is_repeated_when_the_listing_is_edited(
    harness: Harness,
) -> None:
    await harness.publish()
    await harness.put_up_file()

    async def move() -> None:
        harness.on_request = None
        await harness.edit(endpoint=harness.upstream.url.replace("127.0.0.1", "localhost") + "/v1")

    harness.on_request = move
    told = (await harness.check()).json()
    assert told["origin"].startswith("http://localhost:")
    assert (told["state"], told["checks"]["wellKnown"]) == ("unverified", "not_found")


async def test_only_the_provider_may_request_a_check_and_others_cause_no_request(
    harness: Harness,
) -> None:
    await harness.publish()
    for wallet, code in ((None, "authentication_required"), (BOB, "not_provider")):
        assert (await harness.check(wallet=wallet)).json()["code"] == code
    harness.blocked.add(ALICE)
    assert (await harness.check()).json()["code"] == "wallet_blocked"
    assert harness.upstream.arrived == []
    assert (await harness.get()).json()["checkedAt"] is None


@pytest.mark.parametrize(
    ("changes", "shown", "checked"),
    [
        ({"retired_ms": 5}, (410, "api_retired"), (410, "api_retired")),
        ({"suspended_ms": 5}, (503, "api_paused"), (200, None)),
        ({"status": "paused"}, (200, None), (200, None)),
    ],
)
async def test_closed_listings_have_the_same_codes_as_elsewhere(
    harness: Harness, changes: Mapping[str, Any], shown: Any, checked: Any
) -> None:
    await harness.publish()
    await harness.edit(**changes)
    for answer, wanted in ((await harness.get(), shown), (await harness.check(), checked)):
        assert (answer.status_code, answer.json().get("code")) == wanted
    unknown = "/api/v2/apis/api_2/ownership"
    assert (await harness.get(unknown)).json()["code"] == "api_not_found"
    assert (await harness.check(path=unknown)).json()["code"] == "api_not_found"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 200, None),
        (b" ", 200, None),
        (b"{}", 200, None),
        (b'{"method": "dns"}', 422, "validation_failed"),
        (b"[]", 422, "validation_failed"),
        (b"{", 400, "invalid_request"),
    ],
)
async def test_a_check_takes_no_members(
    harness: Harness, content: bytes, status: int, code: str | None
) -> None:
    await harness.publish()
    answer = await harness.check(content=content)
    assert (answer.status_code, answer.json().get("code")) == (status, code)
    assert bool(harness.upstream.arrived) is (status == 200)


async def test_a_query_is_refused_by_name(harness: Harness) -> None:
    await harness.publish()
    for answer in (await harness.get(PATH + "?method=dns"), await harness.check(path=PATH + "?method=dns")):
        assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (422, "method")


async def test_checks_per_wallet_and_hour_are_limited(harness: Harness) -> None:
    await harness.publish()
    for _ in range(LIMITS.ownership_checks_per_hour):
        assert (await harness.check()).status_code == 200
    asked = len(harness.upstream.arrived)
    answer = await harness.check()
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert answer.headers["ratelimit-policy"].startswith('"ownership-checks";q=5;w=3600')
    assert len(harness.upstream.arrived) == asked
    assert (await harness.get()).status_code == 200


async def test_checks_are_limited_by_client_address_across_wallets(harness: Harness) -> None:
    """Listings and wallets are free, and each check calls a server that a provider names."""
    codes = []
    for number in range(WALLETS_PER_ADDRESS + 1):
        wallet, api_id = Address(bytes([number + 1]) * 20), f"api_{number + 2}"
        await harness.publish(id=ListingId(api_id), provider=wallet, endpoint="http://[::1]:1/")
        path = f"/api/v2/apis/{api_id}/ownership"
        for _ in range(LIMITS.ownership_checks_per_hour):
            answer = await harness.check(wallet=wallet, path=path)
            codes.append(answer.status_code)
    most = LIMITS.ownership_checks_per_hour * WALLETS_PER_ADDRESS
    assert codes == [200] * most + [429] * LIMITS.ownership_checks_per_hour
    assert answer.headers["ratelimit-policy"] == f'"ownership-checks-address";q={most};w=3600'


async def test_the_responses_match_the_contract_of_the_site(harness: Harness) -> None:
    contract = load_contract(CONTRACT_PATH.read_bytes(), Site(public_url="", version=""))

    def validate(name: str, told: object) -> None:
        schema = {"components": contract["components"], "$ref": f"#/components/schemas/{name}"}
        Draft202012Validator(schema).validate(told)

    await harness.publish()
    validate("Ownership", (await harness.get()).json())
    await harness.put_up_file()
    validate("CheckedOwnership", (await harness.check()).json())
    validate("Ownership", (await harness.get()).json())
    await harness.edit(endpoint="https://api.example.com/v1")
    validate("Ownership", (await harness.get()).json())
