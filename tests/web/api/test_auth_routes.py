"""Sign-in over HTTP and the headers of a 401: the routes, the wallet dependency and the challenge together."""

import base64
import json
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from typing import Any

import httpx
import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.kit.chain import MemoryChain
from tests.kit.lookup_counter import LookupCounter
from tests.kit.routes import make_context
from tests.kit.stores import ControlStores
from tollway.identity.authenticator import Authenticator
from tollway.identity.http_signatures import SignedRequest, signature_headers
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import SignatureVerifier
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId
from tollway.limits import Limits
from tollway.rate_limits.limiter import RateLimiter
from tollway.storage.accounts.identity_store import signin_nonce_table
from tollway.web.api.auth_routes import (
    challenge_headers,
    make_wallet_dependency,
    make_wallet_quota,
    make_x402_wallet_dependency,
    signin_router,
)
from tollway.web.http.admission import BodyBudget, SignInRateLimit
from tollway.web.http.middleware import BodyLimits
from tollway.web.http.problems import install_handlers

PUBLIC_URL = "https://gw.example.com"
ORIGIN = parse_origin(PUBLIC_URL)
NOW_MS = 1_795_239_000_000
CHAIN = ChainId(84532)
LIMITS = Limits(nonces_per_minute=3, control_body_bytes_max=1_000)
ACCOUNT = Account.from_key(b"\x77" * 32)
ADDRESS = Address.parse(ACCOUNT.address)


def personal_sign(text: str) -> str:
    return "0x" + bytes(ACCOUNT.sign_message(encode_defunct(text=text)).signature).hex()


def sign_digest(digest: bytes) -> bytes:
    return bytes(Account.unsafe_sign_hash(digest, ACCOUNT.key).signature)


@pytest.fixture
def stores() -> ControlStores:
    return ControlStores()


@pytest.fixture
def app(stores: ControlStores) -> Starlette:
    numbers = count(1)
    sign_in_flow = SignIn(
        stores.sessions,
        SignatureVerifier(MemoryChain(CHAIN), limits=LIMITS),
        LookupCounter(),
        origin=ORIGIN,
        limits=LIMITS,
        now_ms=lambda: NOW_MS,
        entropy=lambda size: next(numbers).to_bytes(size, "big"),
    )
    authenticator = Authenticator(
        stores.sessions,
        sign_in_flow,
        origin=ORIGIN,
        limits=LIMITS,
        now_ms=lambda: NOW_MS,
        rate_limiter=RateLimiter(),
    )
    rate_limit = SignInRateLimit(limits=LIMITS, rate_limiter=RateLimiter())
    wallet = make_wallet_dependency(
        authenticator,
        body_bytes_max=LIMITS.control_body_bytes_max,
        quota=make_wallet_quota(limits=LIMITS, rate_limiter=RateLimiter()),
    )

    x402_wallet = make_x402_wallet_dependency(wallet)

    async def show_identity(request: Request) -> JSONResponse:
        identity = await wallet(request)
        body = await request.body()
        return JSONResponse(
            {"address": str(identity.address), "method": identity.method, "body": body.decode()}
        )

    async def show_x402_identity(request: Request) -> JSONResponse:
        identity = await x402_wallet(request)
        return JSONResponse({"address": str(identity.address), "method": identity.method})

    app = Starlette(
        routes=[
            Route("/api/v2/apis", show_identity, methods=["GET", "POST"]),
            Route("/api/v2/apis/{api_id:path}", show_identity, methods=["GET", "PUT"]),
            Route("/api/v2/x402/mine", show_x402_identity, methods=["GET"]),
            *signin_router(
                make_context(sign_in=sign_in_flow, sign_in_limit=rate_limit, limits=LIMITS)
            ).routes,
        ]
    )
    challenge = partial(
        challenge_headers, sign_in=sign_in_flow, rate_limit=rate_limit, origin=ORIGIN, chain_ids=[CHAIN]
    )
    install_handlers(app, PUBLIC_URL, challenge=challenge)
    return app


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://inner.example:8402/api/v2"
    ) as client:
        yield client


class TestNonce:
    async def test_without_a_body_names_what_to_sign(self, client) -> None:
        answer = await client.post("/auth/nonce")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json() == {
            "nonce": answer.json()["nonce"],
            "domain": "gw.example.com",
            "uri": "https://gw.example.com/api/v2/auth/session",
            "issuedAt": "2026-11-21T05:30:00.000Z",
            "expirationTime": "2026-11-21T05:35:00.000Z",
            "message": None,
        }

    async def test_for_a_wallet_gives_the_whole_text(self, client) -> None:
        answer = (
            await client.post("/auth/nonce", json={"address": str(ADDRESS).lower(), "chainId": 8453})
        ).json()
        assert answer["message"] == (
            f"gw.example.com wants you to sign in with your Ethereum account:\n{ADDRESS}\n\n"
            "Sign in to the API gateway\n\nURI: https://gw.example.com/api/v2/auth/session\nVersion: 1\n"
            f"Chain ID: 8453\nNonce: {answer['nonce']}\nIssued At: {answer['issuedAt']}\n"
            f"Expiration Time: {answer['expirationTime']}"
        )

    @pytest.mark.parametrize(
        ("body", "pointers"),
        [
            ({"address": "0x12", "chainId": "8453", "uri": 1}, {"/address", "/chainId", "/uri"}),
            ({"address": str(ADDRESS).swapcase().replace("X", "x", 1)}, {"/address"}),
            ({"chainId": True}, {"/chainId"}),
            ({"chainId": -1}, {"/chainId"}),
            ({"chainId": 10**15}, {"/chainId"}),
            ({"uri": "https://evil.example/"}, {"/uri"}),
            ({"more": 1, "a/b": 2}, {"/more", "/a~1b"}),
        ],
    )
    async def test_a_wrong_body_names_every_wrong_member(self, client, stores, body, pointers) -> None:
        answer = await client.post("/auth/nonce", json=body)
        assert answer.status_code == 422
        assert {error["pointer"] for error in answer.json()["errors"]} == pointers
        assert await stores.read_rows(signin_nonce_table) == []

    async def test_is_metered_per_client(self, app, client) -> None:
        statuses = [(await client.post("/auth/nonce")).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refused = await client.post("/auth/nonce")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["ratelimit-policy"] == '"signin-nonce";q=3;w=60'
        other = httpx.ASGITransport(app=app, client=("192.0.2.9", 1))
        async with httpx.AsyncClient(transport=other, base_url="http://x/api/v2") as elsewhere:
            assert (await elsewhere.post("/auth/nonce")).status_code == 200

    async def test_one_ipv6_network_is_one_client(self, app) -> None:
        statuses = []
        for number in range(4):
            transport = httpx.ASGITransport(app=app, client=(f"2001:db8::{number}:1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://x/api/v2") as client:
                statuses.append((await client.post("/auth/nonce")).status_code)
        assert statuses == [200, 200, 200, 429]


class TestSession:
    async def test_opens_works_and_ends(self, client) -> None:
        body = {"address": str(ADDRESS), "chainId": CHAIN}
        text = (await client.post("/auth/nonce", json=body)).json()["message"]
        answer = await client.post("/auth/session", json={"message": text, "signature": personal_sign(text)})
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        token = answer.json()["accessToken"]
        assert answer.json() == {
            "accessToken": token,
            "tokenType": "Bearer",
            "expiresIn": 86_400,
            "address": str(ADDRESS),
        }
        bearer = {"Authorization": f"Bearer {token}"}
        assert (await client.get("/apis", headers=bearer)).json()["address"] == str(ADDRESS)
        ended = await client.delete("/auth/session", headers=bearer)
        assert (ended.status_code, ended.content) == (204, b"")
        for answer in (
            await client.get("/apis", headers=bearer),
            await client.delete("/auth/session", headers=bearer),
        ):
            assert (answer.status_code, answer.json()["code"]) == (401, "session_expired")

    async def test_a_used_message_is_refused_with_a_challenge(self, client) -> None:
        body = {"address": str(ADDRESS), "chainId": CHAIN}
        text = (await client.post("/auth/nonce", json=body)).json()["message"]
        body = {"message": text, "signature": personal_sign(text)}
        assert (await client.post("/auth/session", json=body)).status_code == 201
        answer = await client.post("/auth/session", json=body)
        assert (answer.status_code, answer.json()["code"]) == (401, "nonce_reused")
        assert answer.json()["reason"] == "invalid_siwx_nonce"
        assert "www-authenticate" in answer.headers

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({}, 422, "validation_failed"),
            ({"message": "x"}, 422, "validation_failed"),
            ({"message": "x", "signature": "0xzz"}, 422, "validation_failed"),
            ({"message": "x", "signature": "abcd"}, 422, "validation_failed"),
            ({"message": 1, "signature": "0x00"}, 422, "validation_failed"),
            ({"message": "x", "signature": "0x00"}, 401, "invalid_signature"),
            ({"message": "x" * 2_000, "signature": "0x00"}, 413, "payload_too_large"),
        ],
    )
    async def test_refuses(self, client, body, status: int, code: str) -> None:
        answer = await client.post("/auth/session", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    async def test_ending_without_a_token_needs_one(self, client) -> None:
        answer = await client.delete("/auth/session")
        assert (answer.status_code, answer.json()["code"]) == (401, "authentication_required")


def challenge_of(answer: httpx.Response) -> dict:
    return json.loads(base64.b64decode(answer.headers["payment-required"]))


def sign_in(challenge: httpx.Response) -> str:
    """The header of an x402 client that answers a challenge."""
    info = challenge_of(challenge)["extensions"]["sign-in-with-x"]["info"]
    text = (
        f"{info['domain']} wants you to sign in with your Ethereum account:\n{ADDRESS}\n\n"
        f"{info['statement']}\n\nURI: {info['uri']}\nVersion: {info['version']}\nChain ID: {CHAIN}\n"
        f"Nonce: {info['nonce']}\nIssued At: {info['issuedAt']}\n"
        f"Expiration Time: {info['expirationTime']}\nResources:\n- {info['resources'][0]}"
    )
    payload = info | {
        "address": str(ADDRESS),
        "chainId": f"eip155:{CHAIN}",
        "type": "eip191",
        "signature": personal_sign(text),
    }
    return base64.b64encode(json.dumps(payload).encode()).decode()


class TestChallenge:
    async def test_a_401_lists_all_three_ways_to_sign_in(self, client) -> None:
        answer = await client.get("/apis?page=1")
        assert (answer.status_code, answer.json()["code"]) == (401, "authentication_required")
        assert answer.headers["www-authenticate"] == (
            'Bearer realm="gw.example.com", Signature realm="gw.example.com", profile="erc8128", '
            'SIWX realm="gw.example.com"'
        )
        assert answer.headers["accept-signature"] == (
            'sig1=("@authority" "@method" "@path" "@query");keyid;created;expires;nonce'
        )
        challenge = challenge_of(answer)
        assert (challenge["x402Version"], challenge["accepts"]) == (2, [])
        assert challenge["resource"]["url"] == "https://gw.example.com/api/v2/apis"
        offer = challenge["extensions"]["sign-in-with-x"]
        assert offer["supportedChains"] == [{"chainId": "eip155:84532", "type": "eip191"}]
        assert set(offer) == {"info", "supportedChains", "schema"}
        assert "null" not in json.dumps(challenge)
        assert len(answer.headers["payment-required"]) < 4_096

    async def test_a_client_that_signs_the_challenge_may_read_and_publish(self, client) -> None:
        for method in ("GET", "POST"):
            header = sign_in(await client.request(method, "/apis"))
            answer = await client.request(method, "/apis", headers={"SIGN-IN-WITH-X": header})
            assert answer.json()["method"] == "siwx", answer.text

    async def test_a_route_that_needs_a_signed_request_offers_only_that(self, client) -> None:
        answer = await client.put("/apis/api_1", json={})
        assert answer.status_code == 401
        assert "payment-required" not in answer.headers
        assert '"content-digest"' in answer.headers["accept-signature"]

    async def test_challenges_run_out_but_refusals_do_not(self, client, stores) -> None:
        answers = [await client.get("/apis") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [401] * 5
        assert ["payment-required" in answer.headers for answer in answers] == [True] * 3 + [False] * 2
        assert len(await stores.read_rows(signin_nonce_table)) == 3

    async def test_a_store_that_is_away_costs_only_the_challenge(self, client, stores) -> None:
        stores.database.is_away = True
        answer = await client.get("/apis")
        assert answer.status_code == 401
        assert "www-authenticate" in answer.headers
        assert "payment-required" not in answer.headers

    @pytest.mark.parametrize("path", ["%22%3C%3E", "x" * 2_000])
    async def test_a_strange_path_still_gets_a_challenge_that_can_be_signed(self, client, path: str) -> None:
        uri = challenge_of(await client.get(f"/apis/{path}"))["resource"]["url"]
        assert uri.startswith("https://gw.example.com/")
        assert len(uri) <= 1_024


class TestX402Clients:
    """x402 clients read a challenge only from a 402."""

    async def test_get_a_402_with_a_sign_in_challenge_and_without_payment(self, client) -> None:
        answer = await client.get("/x402/mine?limit=3")
        assert (answer.status_code, answer.json()["code"]) == (402, "authentication_required")
        assert answer.json()["status"] == 402
        assert answer.headers["cache-control"] == "no-store"
        assert "www-authenticate" not in answer.headers  # MPP clients would read it as a payment challenge
        challenge = challenge_of(answer)
        assert set(challenge) == {"x402Version", "error", "resource", "accepts", "extensions"}
        assert (challenge["x402Version"], challenge["accepts"]) == (2, [])
        assert challenge["resource"]["url"] == "https://gw.example.com/api/v2/x402/mine"
        assert set(challenge["extensions"]) == {"sign-in-with-x"}

    async def test_read_once_they_have_signed(self, client) -> None:
        header = sign_in(await client.get("/x402/mine"))
        answer = await client.get("/x402/mine?limit=3", headers={"SIGN-IN-WITH-X": header})
        assert answer.json() == {"address": str(ADDRESS), "method": "siwx"}
        again = await client.get("/x402/mine", headers={"SIGN-IN-WITH-X": header})
        assert (again.status_code, again.json()["code"]) == (402, "nonce_reused")

    async def test_every_401_is_a_402_and_no_other_code_changes(self, client) -> None:
        for headers, status, code in (
            ({"SIGN-IN-WITH-X": "?"}, 402, "invalid_signature"),
            ({"Authorization": "Bearer x"}, 402, "session_expired"),
        ):
            answer = await client.get("/x402/mine", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (status, code)
        twice = [("Authorization", "Bearer x"), ("Authorization", "Bearer y")]
        assert (await client.get("/x402/mine", headers=twice)).status_code == 400
        assert (await client.post("/x402/mine")).status_code == 405
        assert (await client.get("/x402/none")).status_code == 404

    async def test_get_a_401_where_there_is_nothing_to_sign(self, client) -> None:
        answers = [await client.get("/x402/mine") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [402, 402, 402, 401]
        assert answers[-1].json()["status"] == 401
        assert "www-authenticate" in answers[-1].headers


def signed_headers(method: str, path: bytes, body: bytes = b"") -> dict[str, str]:
    return dict(
        signature_headers(
            SignedRequest(method=method, raw_path=path, query=b"", headers=[], body=body),
            origin=ORIGIN,
            address=ADDRESS,
            chain_id=CHAIN,
            created=NOW_MS // 1000,
            expires=NOW_MS // 1000 + 60,
            nonce="n-1",
            sign=sign_digest,
        )
    )


class TestLongBody:
    """More than the bytes that every connection may buffer."""

    SIZE, UNCOUNTED = 900, 100

    @pytest.fixture
    def budget(self) -> BodyBudget:
        return BodyBudget(Limits(buffer_bytes=self.UNCOUNTED))

    @pytest.fixture
    async def limited(self, app: Starlette, budget: BodyBudget) -> AsyncIterator[httpx.AsyncClient]:
        inner = BodyLimits(app, limits=LIMITS, clock=lambda: 0.0, budget=budget)

        async def with_address(scope: Any, receive: Any, send: Any) -> None:
            scope["state"] = {"client_address": "192.0.2.1"}
            await inner(scope, receive, send)

        transport = httpx.ASGITransport(app=with_address)
        async with httpx.AsyncClient(transport=transport, base_url=f"{PUBLIC_URL}/api/v2") as client:
            yield client

    async def test_counts_with_the_proven_ones_once_its_proof_is_verified(self, limited, budget) -> None:
        counted: list[tuple[int, int]] = []

        async def content() -> AsyncIterator[bytes]:
            for _ in range(2):
                yield b"x" * (self.SIZE // 2)
                counted.append((budget.proven.reserved_bytes, budget.unproven.reserved_bytes))

        headers = signed_headers("POST", b"/api/v2/apis", b"x" * self.SIZE)
        answer = await limited.post("/apis", content=content(), headers=headers)
        assert answer.status_code == 200, answer.text
        first, second = counted
        assert first[0] > 0
        assert second == (self.SIZE - self.UNCOUNTED, 0)
        assert budget.reserved_bytes == 0

    @pytest.mark.parametrize("proof", ["none", "session", "signature"])
    async def test_without_a_valid_proof_is_refused_unread(self, limited, budget, proof: str) -> None:
        headers = {
            "none": {},
            "session": {"Authorization": "Bearer x"},
            "signature": signed_headers("PUT", b"/api/v2/apis", b"x" * self.SIZE),
        }[proof]
        counted: list[int] = []

        async def content() -> AsyncIterator[bytes]:
            for _ in range(2):
                yield b"x" * (self.SIZE // 2)
                counted.append(budget.reserved_bytes)

        answer = await limited.post("/apis", content=content(), headers=headers)
        assert answer.status_code == 401
        assert set(counted) <= {0}  # read and dropped


class TestSignedRequest:
    async def test_counts_for_the_public_origin_with_any_host(self, client) -> None:
        body = b'{"name": "x"}'
        headers = signed_headers("PUT", b"/api/v2/apis/a%2Fb", body)
        answer = await client.put("/apis/a%2Fb", content=body, headers=headers)
        assert answer.json() == {"address": str(ADDRESS), "method": "erc8128", "body": body.decode()}
        again = await client.put("/apis/a%2Fb", content=body, headers=headers)
        assert (again.status_code, again.json()["code"]) == (401, "nonce_reused")

    async def test_with_another_body_is_refused(self, client) -> None:
        headers = signed_headers("PUT", b"/api/v2/apis/api_1", b"{}")
        answer = await client.put("/apis/api_1", content=b"[]", headers=headers)
        assert (answer.status_code, answer.json()["reason"]) == (401, "digest_mismatch")

    @pytest.mark.parametrize("is_announced", [True, False])
    async def test_a_body_over_the_limit_is_refused_before_it_is_judged(
        self, client, is_announced: bool
    ) -> None:
        sent = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(1_000):
                sent += 1
                yield b"x" * 100

        content = b"x" * 1_100 if is_announced else chunks()
        answer = await client.put("/apis/api_1", content=content)
        assert sent < 20
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
