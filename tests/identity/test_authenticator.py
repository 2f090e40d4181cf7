import asyncio
import base64
import json
from dataclasses import replace

import pytest

from tests.kit.payer import sign_in_with_x
from tollway.chain.port import ContractResult
from tollway.errors import ChainUnavailable, Code, Refusal
from tollway.identity.authenticator import Authenticator, Identity, SignedRequest
from tollway.identity.signatures import eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId
from tollway.limits import Limits
from tollway.rate_limits.limiter import RateLimiter

CHAIN = ChainId(84532)
CREATE_URI = "https://gw.example.com/api/v2/apis"
BARE = SignedRequest(method="GET", raw_path=b"/api/v2/history", query=b"", headers=[], body=b"")
YES = ContractResult(reverted=False, payload=bytes.fromhex("1626ba7e") + bytes(28))


def plus(request: SignedRequest, *lines: tuple[str, str]) -> SignedRequest:
    return replace(
        request, headers=[*request.headers, *((name.encode(), value.encode()) for name, value in lines)]
    )


async def session_of(harness, wallet) -> str:
    text = (await harness.sign_in.create_challenge()).format_message(address=wallet.address, chain_id=CHAIN)
    signature = wallet.sign(eip191_digest(text.encode()))
    admission = await harness.sign_in.open_session(text=text, signature=signature, client_address="")
    return f"Bearer {admission.token}"


async def siwx_of(harness, wallet, *, uri: str | None = None, says: str | None = None) -> str:
    challenge = await harness.sign_in.create_challenge(uri)
    return sign_in_with_x(challenge, wallet, uri=says)


async def refusal_of(harness, request: SignedRequest) -> tuple[Code, str | None]:
    with pytest.raises(Refusal) as caught:
        await harness.authenticator.authenticate(request)
    return caught.value.problem.code, caught.value.problem.reason


async def test_no_proof_is_authentication_required(harness) -> None:
    assert await refusal_of(harness, BARE) == (Code.AUTHENTICATION_REQUIRED, None)
    for scheme in ("Basic abc", "Payment id=x", "Bearerx abc"):
        request = plus(BARE, ("authorization", scheme))
        assert await refusal_of(harness, request) == (Code.AUTHENTICATION_REQUIRED, None)


async def test_a_wallet_and_an_address_sign_so_many_requests_and_no_more(
    harness, wallet, other_wallet
) -> None:
    """Each accepted request leaves a row. A request that is refused for any reason leaves none and does not count."""
    harness.authenticator = Authenticator(
        harness.stores.sessions,
        harness.sign_in,
        origin=parse_origin("https://gw.example.com"),
        limits=Limits(signed_requests_per_minute=2),
        now_ms=harness.clock,
        rate_limiter=RateLimiter(),
    )
    forged = harness.signed(other_wallet, address=wallet.address, nonce="forged")
    for _ in range(5):
        assert await refusal_of(harness, forged) == (Code.INVALID_SIGNATURE, "signature_mismatch")
    for number in range(2):
        request = harness.signed(wallet, nonce=f"nonce-{number}")
        await harness.authenticator.authenticate(request)
        if number == 0:
            for _ in range(5):
                assert await refusal_of(harness, request) == (Code.NONCE_REUSED, "nonce_reused")
    one_more = replace(harness.signed(wallet, nonce="one-more"), client_address="192.0.2.7")
    with pytest.raises(Refusal) as caught:
        await harness.authenticator.authenticate(one_more)
    problem = caught.value.problem
    assert (problem.code, problem.members["rateLimit"]["policy"]) == (Code.RATE_LIMITED, "signed-requests")
    assert problem.retry_after_s is not None
    assert await harness.stores.sessions.prune(now_ms=10**15) == 2, "the rows of the two that counted"
    session = plus(BARE, ("authorization", await session_of(harness, wallet)))
    assert (await harness.authenticator.authenticate(session)).method == "session"
    await harness.authenticator.authenticate(harness.signed(other_wallet))


class TestSignedRequest:
    async def test_names_its_wallet(self, harness, wallet) -> None:
        identity = await harness.authenticator.authenticate(harness.signed(wallet))
        assert identity == Identity(address=wallet.address, method="erc8128", chain_id=CHAIN)

    async def test_counts_once(self, harness, wallet) -> None:
        request = harness.signed(wallet)
        await harness.authenticator.authenticate(request)
        assert await refusal_of(harness, request) == (Code.NONCE_REUSED, "nonce_reused")
        await harness.authenticator.authenticate(harness.signed(wallet, nonce="nonce-2"))

    async def test_counts_once_however_its_keyid_is_spelled(self, harness, wallet) -> None:
        await harness.authenticator.authenticate(harness.signed(wallet))

        class LowerCase(Address):
            def __str__(self) -> str:
                return "0x" + self.hex()

        lower = harness.signed(wallet, address=LowerCase(wallet.address))
        assert await refusal_of(harness, lower) == (Code.NONCE_REUSED, "nonce_reused")

    async def test_fifty_racers_have_one_winner(self, harness, wallet) -> None:
        request = harness.signed(wallet)
        outcomes = await asyncio.gather(
            *(harness.authenticator.authenticate(request) for _ in range(50)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Identity) for outcome in outcomes) == 1

    async def test_by_another_key_than_it_names_is_refused_and_spends_nothing(
        self, harness, wallet, other_wallet
    ) -> None:
        forged = harness.signed(other_wallet, address=wallet.address)
        assert await refusal_of(harness, forged) == (Code.INVALID_SIGNATURE, "signature_mismatch")
        await harness.authenticator.authenticate(harness.signed(wallet))

    async def test_for_another_authority_is_refused_with_the_public_url_of_this_gateway(
        self, harness, wallet
    ) -> None:
        request = harness.signed(wallet, origin="http://127.0.0.1:8402")
        with pytest.raises(
            Refusal, match=r"public_url of this gateway is https://gw\.example\.com: sign gw\.example\.com"
        ):
            await harness.authenticator.authenticate(request)

    @pytest.mark.parametrize(
        ("host", "told"),
        [
            (b"127.0.0.1:8402", ", and the request came for 127.0.0.1:8402: sign gw.example.com"),
            (b"gw.example.com", ": sign gw.example.com"),
        ],
    )
    async def test_for_another_authority_is_refused_with_the_host_that_the_request_came_for(
        self, harness, wallet, host, told
    ) -> None:
        signed = harness.signed(wallet, origin="http://127.0.0.1:8402")
        request = replace(signed, headers=[*signed.headers, (b"host", host)])
        with pytest.raises(Refusal) as refused:
            await harness.authenticator.authenticate(request)
        assert f"public_url of this gateway is https://gw.example.com{told}" in refused.value.problem.detail

    async def test_that_was_tampered_with_is_refused(self, harness, wallet) -> None:
        request = replace(harness.signed(wallet), raw_path=b"/api/v2/payments")
        assert await refusal_of(harness, request) == (Code.INVALID_SIGNATURE, "signature_mismatch")

    async def test_too_late_is_expired(self, harness, wallet) -> None:
        request = harness.signed(wallet)
        harness.clock.now_ms += 61_000
        assert await refusal_of(harness, request) == (Code.SIGNATURE_EXPIRED, "expired")

    async def test_is_remembered_longer_than_it_counts(self, harness, wallet) -> None:
        request = harness.signed(wallet)
        await harness.authenticator.authenticate(request)
        harness.clock.now_ms += 60_000
        await harness.stores.sessions.prune(now_ms=harness.clock.now_ms + 1)
        assert await refusal_of(harness, request) == (Code.NONCE_REUSED, "nonce_reused")

    async def test_of_a_contract_wallet_counts_where_its_chain_confirms_it(self, harness, wallet) -> None:
        contract = Address(b"\xc0" * 20)
        request = replace(harness.signed(wallet, address=contract), client_address="192.0.2.7")
        assert await refusal_of(harness, request) == (Code.INVALID_SIGNATURE, "signature_mismatch")
        harness.chain.answer = None
        with pytest.raises(ChainUnavailable):
            await harness.authenticator.authenticate(request)
        harness.chain.answer = YES
        assert (await harness.authenticator.authenticate(request)).address == contract
        assert harness.lookup_quota.charged == [("192.0.2.7", str(contract))] * 3


class TestSession:
    async def test_names_its_wallet(self, harness, wallet) -> None:
        bearer = await session_of(harness, wallet)
        for spelling in (bearer, bearer.replace("Bearer", "bearer"), bearer + " "):
            identity = await harness.authenticator.authenticate(plus(BARE, ("authorization", spelling)))
            assert identity == Identity(address=wallet.address, method="session", chain_id=CHAIN)

    async def test_unknown_is_expired(self, harness) -> None:
        for token in ("", "x", "a" * 43):
            request = plus(BARE, ("authorization", f"Bearer {token}"))
            assert await refusal_of(harness, request) == (Code.SESSION_EXPIRED, None)

    async def test_twice_in_one_request_is_invalid(self, harness, wallet) -> None:
        line = ("authorization", await session_of(harness, wallet))
        assert (await refusal_of(harness, plus(BARE, line, line)))[0] is Code.INVALID_REQUEST


class TestSiwx:
    async def test_reads_once(self, harness, wallet) -> None:
        request = plus(BARE, ("sign-in-with-x", await siwx_of(harness, wallet)))
        identity = await harness.authenticator.authenticate(request)
        assert identity == Identity(address=wallet.address, method="siwx", chain_id=CHAIN)
        assert await refusal_of(harness, request) == (Code.NONCE_REUSED, "invalid_siwx_nonce")

    async def test_publishes_with_a_nonce_for_publishing_only(self, harness, wallet) -> None:
        create = replace(BARE, method="POST", raw_path=b"/api/v2/apis", query=b"dryRun=true")
        good = await siwx_of(harness, wallet, uri=CREATE_URI)
        assert (
            await harness.authenticator.authenticate(plus(create, ("sign-in-with-x", good)))
        ).method == "siwx"
        wrong = {
            "a nonce for anything": await siwx_of(harness, wallet),
            "a nonce for anything that says create": await siwx_of(harness, wallet, says=CREATE_URI),
            "a nonce for something else": await siwx_of(harness, wallet, uri=CREATE_URI + "/api_1"),
            "another URI than the nonce's": await siwx_of(
                harness, wallet, uri=CREATE_URI, says=CREATE_URI + "/api_1"
            ),
        }
        for name, header in wrong.items():
            refusal = await refusal_of(harness, plus(create, ("sign-in-with-x", header)))
            assert refusal == (Code.INVALID_SIGNATURE, "invalid_siwx_uri_mismatch"), name

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PUT", b"/api/v2/apis/api_1"),
            ("DELETE", b"/api/v2/apis/api_1"),
            ("POST", b"/api/v2/history/call_1/resolution"),
            ("POST", b"/api/v2/apis/"),
            ("PUT", b"/api/v2/apis"),
        ],
    )
    async def test_changes_nothing_else(self, harness, wallet, method: str, path: bytes) -> None:
        header = await siwx_of(harness, wallet, uri=CREATE_URI)
        request = plus(replace(BARE, method=method, raw_path=path), ("sign-in-with-x", header))
        assert await refusal_of(harness, request) == (Code.INVALID_SIGNATURE, "siwx_not_accepted_here")

    async def test_signed_by_another_wallet_is_refused(self, harness, wallet, other_wallet) -> None:
        header = await siwx_of(harness, wallet)
        payload = json.loads(base64.b64decode(header)) | {"address": str(other_wallet.address)}
        forged = base64.b64encode(json.dumps(payload).encode()).decode()
        refusal = await refusal_of(harness, plus(BARE, ("sign-in-with-x", forged)))
        assert refusal == (Code.INVALID_SIGNATURE, "invalid_siwx_signature")


class TestCalls:
    async def test_a_signed_call_names_its_wallet(self, harness, wallet) -> None:
        call = harness.signed(wallet, path=b"/api/v2/gateway/api_1/quote")
        identity = await harness.authenticator.authenticate_call(call)
        assert (identity.address, identity.method) == (wallet.address, "erc8128")

    async def test_a_session_never_counts(self, harness, wallet) -> None:
        session = plus(BARE, ("authorization", await session_of(harness, wallet)))
        with pytest.raises(Refusal) as caught:
            await harness.authenticator.authenticate_call(session)
        assert caught.value.problem.code is Code.AUTHENTICATION_REQUIRED


class TestSeveralProofs:
    async def test_of_one_wallet_count_and_the_strongest_names_it(self, harness, wallet) -> None:
        request = plus(
            harness.signed(wallet),
            ("authorization", await session_of(harness, wallet)),
            ("sign-in-with-x", await siwx_of(harness, wallet)),
        )
        assert (await harness.authenticator.authenticate(request)).method == "erc8128"

    async def test_of_different_wallets_conflict_and_spend_nothing(
        self, harness, wallet, other_wallet
    ) -> None:
        signed, bearer = harness.signed(wallet), await session_of(harness, other_wallet)
        siwx = await siwx_of(harness, other_wallet)
        mixed = [
            plus(signed, ("authorization", bearer)),
            plus(signed, ("sign-in-with-x", siwx)),
            plus(BARE, ("sign-in-with-x", siwx), ("authorization", await session_of(harness, wallet))),
        ]
        for request in mixed:
            assert (await refusal_of(harness, request))[0] is Code.CONFLICTING_IDENTITIES
        await harness.authenticator.authenticate(signed)
        await harness.authenticator.authenticate(plus(BARE, ("sign-in-with-x", siwx)))

    async def test_one_that_fails_is_not_saved_by_another(self, harness, wallet, other_wallet) -> None:
        bearer = await session_of(harness, wallet)
        forged = harness.signed(other_wallet, address=wallet.address)
        assert (await refusal_of(harness, plus(forged, ("authorization", bearer))))[
            0
        ] is Code.INVALID_SIGNATURE
        dead = plus(harness.signed(wallet), ("authorization", "Bearer " + "a" * 43))
        assert (await refusal_of(harness, dead))[0] is Code.SESSION_EXPIRED
        broken = plus(BARE, ("authorization", bearer), ("sign-in-with-x", "!!"))
        assert (await refusal_of(harness, broken))[0] is Code.INVALID_SIGNATURE
