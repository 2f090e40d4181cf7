import hashlib

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct

from tests.kit.narrowing import problem_of
from tollway.chain.port import ContractResult
from tollway.errors import ChainUnavailable, Code, Refusal, describe_rate
from tollway.identity.signatures import eip191_digest
from tollway.ids import Address, ChainId
from tollway.storage.accounts.identity_store import session_table, signin_nonce_table

CHAIN = ChainId(84532)
CONTRACT = Address(b"\xc0" * 20)
YES = ContractResult(reverted=False, payload=bytes.fromhex("1626ba7e") + bytes(28))


async def invited(harness, wallet, *, uri: str | None = None, address: Address | None = None) -> str:
    challenge = await harness.sign_in.create_challenge(uri)
    return challenge.format_message(address=address or wallet.address, chain_id=CHAIN)


@pytest.fixture
async def text(harness, wallet) -> str:
    """A sign-in message of the wallet."""
    return await invited(harness, wallet)


def signed(wallet, text: str) -> bytes:
    return wallet.sign(eip191_digest(text.encode()))


async def refusal_of(harness, text: str, signature: bytes) -> tuple[Code, str | None]:
    with pytest.raises(Refusal) as caught:
        await harness.sign_in.open_session(text=text, signature=signature, client_address="192.0.2.1")
    return caught.value.problem.code, caught.value.problem.reason


async def opened(harness, text: str, signature: bytes):
    return await harness.sign_in.open_session(text=text, signature=signature, client_address="192.0.2.1")


async def test_a_signed_message_opens_a_session_that_can_be_closed(harness, wallet, text) -> None:
    admission = await opened(harness, text, signed(wallet, text))
    assert (admission.address, admission.expires_in_s) == (wallet.address, 86_400)
    assert (await harness.sign_in.find_session(admission.token)).address == wallet.address
    await harness.sign_in.close_session(admission.token)
    assert (await problem_of(harness.sign_in.find_session(admission.token))).code is Code.SESSION_EXPIRED
    with pytest.raises(Refusal):
        await harness.sign_in.close_session(admission.token)


async def test_a_wallet_of_eth_account_signs_the_text_as_it_is(harness) -> None:
    account = Account.from_key(b"\x66" * 32)
    text = await invited(harness, None, address=Address.parse(account.address))
    signature = bytes(account.sign_message(encode_defunct(text=text)).signature)
    assert str((await opened(harness, text, signature)).address) == account.address


async def test_the_token_is_kept_only_as_its_hash(harness, wallet, text) -> None:
    admission = await opened(harness, text, signed(wallet, text))
    (kept,) = await harness.stores.read_rows(session_table)
    assert kept.token_hash == hashlib.sha256(admission.token.encode()).digest()
    assert len(admission.token) == 43
    assert admission.token not in repr(admission)


async def test_a_message_counts_once(harness, wallet, text) -> None:
    await opened(harness, text, signed(wallet, text))
    assert await refusal_of(harness, text, signed(wallet, text)) == (Code.NONCE_REUSED, "invalid_siwx_nonce")


async def test_a_refused_signature_spends_nothing(harness, wallet, text, other_wallet) -> None:
    wrong = {
        "another wallet": signed(other_wallet, text),
        "another text": signed(wallet, text + " "),
        "rubbish": b"x" * 65,
        "nothing": b"",
        "high s": b"\x01" * 32 + b"\xfe" * 32 + b"\x1b",
    }
    expected = dict.fromkeys(wrong, (Code.INVALID_SIGNATURE, "invalid_siwx_signature"))
    assert {name: await refusal_of(harness, text, signature) for name, signature in wrong.items()} == expected
    assert await harness.stores.read_rows(session_table) == []
    await opened(harness, text, signed(wallet, text))


@pytest.mark.parametrize(
    ("found", "instead", "code", "reason"),
    [
        ("gw.example.com wants", "evil.example wants", Code.INVALID_SIGNATURE, "domain_mismatch"),
        (
            "URI: https://gw.example.com/",
            "URI: https://evil.example/",
            Code.INVALID_SIGNATURE,
            "uri_mismatch",
        ),
        ("/auth/session", "/history", Code.INVALID_SIGNATURE, None),
        ("Version: 1", "Version: 2", Code.INVALID_SIGNATURE, "payload"),
        ("Nonce: ", "Nonce: 0", Code.NONCE_REUSED, "nonce"),
    ],
)
async def test_a_message_for_something_else_opens_nothing(
    harness, wallet, found, instead, code, reason
) -> None:
    text = (await invited(harness, wallet)).replace(found, instead)
    if reason is None:  # a nonce without a URI binds none
        await opened(harness, text, signed(wallet, text))
        return
    assert await refusal_of(harness, text, signed(wallet, text)) == (code, f"invalid_siwx_{reason}")
    assert await harness.stores.read_rows(session_table) == []


@pytest.mark.parametrize(
    ("late_ms", "code"),
    [(299_999, None), (300_000, Code.SIGNATURE_EXPIRED), (-5_001, Code.SIGNATURE_EXPIRED)],
)
async def test_a_message_is_good_for_five_minutes(harness, wallet, text, late_ms: int, code) -> None:
    harness.clock.now_ms += late_ms
    if code is None:
        await opened(harness, text, signed(wallet, text))
    else:
        assert (await refusal_of(harness, text, signed(wallet, text)))[0] is code


async def test_a_nonce_for_another_uri_opens_no_session(harness, wallet) -> None:
    text = await invited(harness, wallet, uri="https://gw.example.com/api/v2/apis")
    expected = (Code.INVALID_SIGNATURE, "invalid_siwx_uri_mismatch")
    assert await refusal_of(harness, text, signed(wallet, text)) == expected


@pytest.mark.parametrize(
    "uri", ["https://evil.example/", "", "https://gw.example.com/" + "x" * 1024, "/api/v2/apis"]
)
async def test_no_nonce_is_given_for_a_foreign_uri(harness, uri: str) -> None:
    assert (await problem_of(harness.sign_in.create_challenge(uri))).code is Code.VALIDATION_FAILED
    assert await harness.stores.read_rows(signin_nonce_table) == []


async def test_a_session_ends_after_a_day(harness, wallet, text) -> None:
    token = (await opened(harness, text, signed(wallet, text))).token
    harness.clock.now_ms += 86_399_999
    await harness.sign_in.find_session(token)
    harness.clock.now_ms += 1
    with pytest.raises(Refusal):
        await harness.sign_in.find_session(token)


@pytest.mark.parametrize("token", ["", "x", "é" * 43, "a" * 43, "a" * 44, "a" * 42 + "\n"])
async def test_a_token_that_is_not_ours_finds_nothing(harness, token: str) -> None:
    assert (await problem_of(harness.sign_in.find_session(token))).code is Code.SESSION_EXPIRED


class TestContracts:
    async def test_a_contract_wallet_signs_in_where_its_chain_is_configured(self, harness, wallet) -> None:
        harness.chain.answer = YES
        text = await invited(harness, wallet, address=CONTRACT)
        assert (await opened(harness, text, b"for the contract")).address == CONTRACT
        assert harness.lookup_quota.charged == [("192.0.2.1", str(CONTRACT))]

    async def test_a_contract_on_another_chain_does_not(self, harness, wallet) -> None:
        harness.chain.answer = YES
        challenge = await harness.sign_in.create_challenge()
        text = challenge.format_message(address=CONTRACT, chain_id=ChainId(1))
        expected = (Code.INVALID_SIGNATURE, "invalid_siwx_signature")
        assert await refusal_of(harness, text, b"for the contract") == expected
        assert harness.chain.asked == []

    @pytest.mark.parametrize(
        "answer",
        [
            ContractResult(reverted=True, payload=b""),
            ContractResult(reverted=False, payload=b""),
            ContractResult(reverted=False, payload=b"\xff" * 32),
            ContractResult(reverted=False, payload=YES.payload * (1 << 15)),
        ],
    )
    async def test_an_unwilling_contract_does_not(self, harness, wallet, answer) -> None:
        harness.chain.answer = answer
        text = await invited(harness, wallet, address=CONTRACT)
        assert (await refusal_of(harness, text, b"for the contract"))[0] is Code.INVALID_SIGNATURE

    async def test_a_chain_that_is_away_decides_nothing_and_spends_nothing(self, harness, wallet) -> None:
        harness.chain.answer = None
        text = await invited(harness, wallet, address=CONTRACT)
        with pytest.raises(ChainUnavailable):
            await opened(harness, text, b"for the contract")
        harness.chain.answer = YES
        await opened(harness, text, b"for the contract")

    async def test_plain_wallets_never_need_the_chain(self, harness, wallet) -> None:
        harness.chain.answer, harness.lookup_quota.left = None, 0
        text = await invited(harness, wallet)
        await opened(harness, text, signed(wallet, text))
        assert (harness.chain.asked, harness.lookup_quota.charged) == ([], [])

    async def test_too_many_questions_to_the_chain_are_refused_unasked(self, harness, wallet) -> None:
        harness.chain.answer, harness.lookup_quota.left = YES, 0
        text = await invited(harness, wallet, address=CONTRACT)
        with pytest.raises(Refusal) as caught:
            await opened(harness, text, b"for the contract")
        problem = caught.value.problem
        assert (problem.code, problem.retry_after_s) == (Code.RATE_LIMITED, harness.lookup_quota.wait_s)
        assert problem.members == describe_rate("lookups", limit=30, window_s=60)
        assert harness.chain.asked == []
