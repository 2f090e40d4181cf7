import asyncio
import base64
import json
from dataclasses import replace

import pytest

from tollway.chain.reader import ContractAnswer
from tollway.errors import ChainUnavailable, Code, Refusal
from tollway.identifiers import Address, ChainId
from tollway.identity.authenticator import Authenticator, Identity, SignedRequest
from tollway.identity.public_origin import parse_origin
from tollway.identity.signatures import eip191_digest
from tollway.identity.signin import SignInMessage, format_moment, format_sign_in
from tollway.limits import Limits
from tollway.rates import Rates

CHAIN = ChainId(84532)
CREATE_URI = "https://gw.example.com/api/v2/apis"
BARE = SignedRequest(method="GET", raw_path=b"/api/v2/history", query=b"", headers=[], body=b"")
YES = ContractAnswer(reverted=False, payload=bytes.fromhex("1626ba7e") + bytes(28))


def plus(request: SignedRequest, *lines: tuple[str, str]) -> SignedRequest:
    return replace(
        request, headers=[*request.headers, *((name.encode(), value.encode()) for name, value in lines)]
    )


async def session_of(door, wallet) -> str:
    text = (await door.desk.invite()).write(address=wallet.address, chain_id=CHAIN)
    signature = wallet.sign(eip191_digest(text.encode()))
    admission = await door.desk.open_session(text=text, signature=signature, client_address="")
    return f"Bearer {admission.token}"


async def siwx_of(door, wallet, *, uri: str | None = None, says: str | None = None) -> str:
    invitation = await door.desk.invite(uri)
    message = SignInMessage(
        domain=invitation.domain,
        address=str(wallet.address),
        uri=says or invitation.uri,
        chain_id=CHAIN,
        nonce=invitation.nonce,
        issued_at=format_moment(invitation.issued_ms),
    )
    payload = {
        "domain": message.domain,
        "address": message.address,
        "uri": message.uri,
        "version": "1",
        "chainId": f"eip155:{CHAIN}",
        "type": "eip191",
        "nonce": message.nonce,
        "issuedAt": message.issued_at,
        "signature": "0x" + wallet.sign(eip191_digest(format_sign_in(message).encode())).hex(),
    }
    return base64.b64encode(json.dumps(payload).encode()).decode()


async def refusal_of(door, request: SignedRequest) -> tuple[Code, str | None]:
    with pytest.raises(Refusal) as caught:
        await door.authenticator.authenticate(request)
    return caught.value.problem.code, caught.value.problem.reason


async def test_nothing_shown_is_authentication_required(door) -> None:
    assert await refusal_of(door, BARE) == (Code.AUTHENTICATION_REQUIRED, None)
    for scheme in ("Basic abc", "Payment id=x", "Bearerx abc"):
        request = plus(BARE, ("authorization", scheme))
        assert await refusal_of(door, request) == (Code.AUTHENTICATION_REQUIRED, None)


async def test_a_wallet_and_an_address_sign_so_many_requests_and_no_more(door, wallet, other_wallet) -> None:
    """Each leaves a row behind. What is refused, for whatever reason, leaves none and is not counted."""
    door.authenticator = Authenticator(
        door.store,
        door.desk,
        origin=parse_origin("https://gw.example.com"),
        limits=Limits(signed_requests_per_minute=2),
        now_ms=door.clock,
        rates=Rates(),
    )
    forged = door.signed(other_wallet, address=wallet.address, nonce="forged")
    for _ in range(5):
        assert await refusal_of(door, forged) == (Code.INVALID_SIGNATURE, "signature_mismatch")
    for number in range(2):
        request = door.signed(wallet, nonce=f"nonce-{number}")
        await door.authenticator.authenticate(request)
        if number == 0:
            for _ in range(5):
                assert await refusal_of(door, request) == (Code.NONCE_REUSED, "nonce_reused")
    one_more = replace(door.signed(wallet, nonce="one-more"), client_address="192.0.2.7")
    with pytest.raises(Refusal) as caught:
        await door.authenticator.authenticate(one_more)
    problem = caught.value.problem
    assert (problem.code, problem.members["rateLimit"]["policy"]) == (Code.RATE_LIMITED, "signed-requests")
    assert problem.retry_after_s is not None
    assert await door.store.prune(now_ms=10**15) == 2, "the rows of the two that counted"
    session = plus(BARE, ("authorization", await session_of(door, wallet)))
    assert (await door.authenticator.authenticate(session)).method == "session"
    await door.authenticator.authenticate(door.signed(other_wallet))


class TestSignedRequest:
    async def test_names_its_wallet(self, door, wallet) -> None:
        identity = await door.authenticator.authenticate(door.signed(wallet))
        assert identity == Identity(address=wallet.address, method="erc8128", chain_id=CHAIN)

    async def test_counts_once(self, door, wallet) -> None:
        request = door.signed(wallet)
        await door.authenticator.authenticate(request)
        assert await refusal_of(door, request) == (Code.NONCE_REUSED, "nonce_reused")
        await door.authenticator.authenticate(door.signed(wallet, nonce="nonce-2"))

    async def test_counts_once_however_its_keyid_is_spelled(self, door, wallet) -> None:
        await door.authenticator.authenticate(door.signed(wallet))

        class LowerCase(Address):
            def __str__(self) -> str:
                return "0x" + self.hex()

        lower = door.signed(wallet, address=LowerCase(wallet.address))
        assert await refusal_of(door, lower) == (Code.NONCE_REUSED, "nonce_reused")

    async def test_fifty_racers_have_one_winner(self, door, wallet) -> None:
        request = door.signed(wallet)
        outcomes = await asyncio.gather(
            *(door.authenticator.authenticate(request) for _ in range(50)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Identity) for outcome in outcomes) == 1

    async def test_by_another_key_than_it_names_is_refused_and_spends_nothing(
        self, door, wallet, other_wallet
    ) -> None:
        forged = door.signed(other_wallet, address=wallet.address)
        assert await refusal_of(door, forged) == (Code.INVALID_SIGNATURE, "signature_mismatch")
        await door.authenticator.authenticate(door.signed(wallet))

    async def test_for_another_authority_is_refused_with_the_public_url_of_this_gateway(
        self, door, wallet
    ) -> None:
        request = door.signed(wallet, origin="http://127.0.0.1:8402")
        with pytest.raises(
            Refusal, match=r"public_url of this gateway is https://gw\.example\.com: sign gw\.example\.com"
        ):
            await door.authenticator.authenticate(request)

    async def test_that_was_tampered_with_is_refused(self, door, wallet) -> None:
        request = replace(door.signed(wallet), raw_path=b"/api/v2/payments")
        assert await refusal_of(door, request) == (Code.INVALID_SIGNATURE, "signature_mismatch")

    async def test_too_late_is_expired(self, door, wallet) -> None:
        request = door.signed(wallet)
        door.clock.now_ms += 61_000
        assert await refusal_of(door, request) == (Code.SIGNATURE_EXPIRED, "expired")

    async def test_is_remembered_longer_than_it_counts(self, door, wallet) -> None:
        request = door.signed(wallet)
        await door.authenticator.authenticate(request)
        door.clock.now_ms += 60_000
        await door.store.prune(now_ms=door.clock.now_ms + 1)
        assert await refusal_of(door, request) == (Code.NONCE_REUSED, "nonce_reused")

    async def test_of_a_contract_wallet_counts_where_its_chain_says_so(self, door, wallet) -> None:
        contract = Address(b"\xc0" * 20)
        request = replace(door.signed(wallet, address=contract), client_address="192.0.2.7")
        assert await refusal_of(door, request) == (Code.INVALID_SIGNATURE, "signature_mismatch")
        door.chain.answer = None
        with pytest.raises(ChainUnavailable):
            await door.authenticator.authenticate(request)
        door.chain.answer = YES
        assert (await door.authenticator.authenticate(request)).address == contract
        assert door.meter.charged == [("192.0.2.7", str(contract))] * 3


class TestSession:
    async def test_names_its_wallet(self, door, wallet) -> None:
        bearer = await session_of(door, wallet)
        for spelling in (bearer, bearer.replace("Bearer", "bearer"), bearer + " "):
            identity = await door.authenticator.authenticate(plus(BARE, ("authorization", spelling)))
            assert identity == Identity(address=wallet.address, method="session", chain_id=CHAIN)

    async def test_unknown_is_expired(self, door) -> None:
        for token in ("", "x", "a" * 43):
            request = plus(BARE, ("authorization", f"Bearer {token}"))
            assert await refusal_of(door, request) == (Code.SESSION_EXPIRED, None)

    async def test_twice_in_one_request_is_invalid(self, door, wallet) -> None:
        line = ("authorization", await session_of(door, wallet))
        assert (await refusal_of(door, plus(BARE, line, line)))[0] is Code.INVALID_REQUEST


class TestSiwx:
    async def test_reads_once(self, door, wallet) -> None:
        request = plus(BARE, ("sign-in-with-x", await siwx_of(door, wallet)))
        identity = await door.authenticator.authenticate(request)
        assert identity == Identity(address=wallet.address, method="siwx", chain_id=CHAIN)
        assert await refusal_of(door, request) == (Code.NONCE_REUSED, "invalid_siwx_nonce")

    async def test_publishes_with_a_nonce_for_publishing_only(self, door, wallet) -> None:
        create = replace(BARE, method="POST", raw_path=b"/api/v2/apis", query=b"dryRun=true")
        good = await siwx_of(door, wallet, uri=CREATE_URI)
        assert (
            await door.authenticator.authenticate(plus(create, ("sign-in-with-x", good)))
        ).method == "siwx"
        wrong = {
            "a nonce for anything": await siwx_of(door, wallet),
            "a nonce for anything that says create": await siwx_of(door, wallet, says=CREATE_URI),
            "a nonce for something else": await siwx_of(door, wallet, uri=CREATE_URI + "/api_1"),
            "another URI than the nonce's": await siwx_of(
                door, wallet, uri=CREATE_URI, says=CREATE_URI + "/api_1"
            ),
        }
        for name, header in wrong.items():
            refusal = await refusal_of(door, plus(create, ("sign-in-with-x", header)))
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
    async def test_changes_nothing_else(self, door, wallet, method: str, path: bytes) -> None:
        header = await siwx_of(door, wallet, uri=CREATE_URI)
        request = plus(replace(BARE, method=method, raw_path=path), ("sign-in-with-x", header))
        assert await refusal_of(door, request) == (Code.INVALID_SIGNATURE, "siwx_not_accepted_here")

    async def test_signed_by_another_wallet_is_refused(self, door, wallet, other_wallet) -> None:
        header = await siwx_of(door, wallet)
        payload = json.loads(base64.b64decode(header)) | {"address": str(other_wallet.address)}
        forged = base64.b64encode(json.dumps(payload).encode()).decode()
        refusal = await refusal_of(door, plus(BARE, ("sign-in-with-x", forged)))
        assert refusal == (Code.INVALID_SIGNATURE, "invalid_siwx_signature")


class TestCalls:
    async def test_a_signed_call_names_its_wallet(self, door, wallet) -> None:
        call = door.signed(wallet, path=b"/api/v2/gateway/api_1/quote")
        identity = await door.authenticator.authenticate_call(call)
        assert (identity.address, identity.method) == (wallet.address, "erc8128")

    async def test_a_session_never_counts(self, door, wallet) -> None:
        session = plus(BARE, ("authorization", await session_of(door, wallet)))
        with pytest.raises(Refusal) as caught:
            await door.authenticator.authenticate_call(session)
        assert caught.value.problem.code is Code.AUTHENTICATION_REQUIRED


class TestSeveralProofs:
    async def test_of_one_wallet_count_and_the_strongest_names_it(self, door, wallet) -> None:
        request = plus(
            door.signed(wallet),
            ("authorization", await session_of(door, wallet)),
            ("sign-in-with-x", await siwx_of(door, wallet)),
        )
        assert (await door.authenticator.authenticate(request)).method == "erc8128"

    async def test_of_different_wallets_conflict_and_spend_nothing(self, door, wallet, other_wallet) -> None:
        signed, bearer = door.signed(wallet), await session_of(door, other_wallet)
        siwx = await siwx_of(door, other_wallet)
        mixed = [
            plus(signed, ("authorization", bearer)),
            plus(signed, ("sign-in-with-x", siwx)),
            plus(BARE, ("sign-in-with-x", siwx), ("authorization", await session_of(door, wallet))),
        ]
        for request in mixed:
            assert (await refusal_of(door, request))[0] is Code.CONFLICTING_IDENTITIES
        await door.authenticator.authenticate(signed)
        await door.authenticator.authenticate(plus(BARE, ("sign-in-with-x", siwx)))

    async def test_one_that_fails_is_not_saved_by_another(self, door, wallet, other_wallet) -> None:
        bearer = await session_of(door, wallet)
        forged = door.signed(other_wallet, address=wallet.address)
        assert (await refusal_of(door, plus(forged, ("authorization", bearer))))[0] is Code.INVALID_SIGNATURE
        dead = plus(door.signed(wallet), ("authorization", "Bearer " + "a" * 43))
        assert (await refusal_of(door, dead))[0] is Code.SESSION_EXPIRED
        broken = plus(BARE, ("authorization", bearer), ("sign-in-with-x", "!!"))
        assert (await refusal_of(door, broken))[0] is Code.INVALID_SIGNATURE
