"""The test token on a real EVM has the behaviour of USDC that unmodified EIP-3009 clients expect."""

from pathlib import Path

import pytest
from eth_account import Account

from tollway.ids import Address, keccak256
from tollway.sandbox.chain import USDC_ADDRESS, RpcRefused, load_artifact, make_account

pytestmark = pytest.mark.live

WORDS = "address,address,uint256,uint256,uint256,bytes32"
BY_BYTES = f"transferWithAuthorization({WORDS},bytes)"
BY_VRS = f"transferWithAuthorization({WORDS},uint8,bytes32,bytes32)"
RECEIVE_BY_BYTES = f"receiveWithAuthorization({WORDS},bytes)"
RECEIVE_BY_VRS = f"receiveWithAuthorization({WORDS},uint8,bytes32,bytes32)"
CANCEL_BY_BYTES = "cancelAuthorization(address,bytes32,bytes)"
CANCEL_BY_VRS = "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)"
NONCE = b"\x05" * 32
FAR = 2**48
SECP256K1_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

FIELDS = [
    (name, kind)
    for name, kind in zip(
        ("from", "to", "value", "validAfter", "validBefore", "nonce"), WORDS.split(","), strict=True
    )
]
TYPES = {
    "TransferWithAuthorization": FIELDS,
    "ReceiveWithAuthorization": FIELDS,
    "CancelAuthorization": [("authorizer", "address"), ("nonce", "bytes32")],
}


def sign(key, primary, *values, chain_id=84532, contract=USDC_ADDRESS) -> bytes:
    """By eth-account's own EIP-712, with the domain written out as clients have it."""
    domain = {"name": "USDC", "version": "2", "chainId": chain_id, "verifyingContract": str(contract)}
    types = {primary: [{"name": name, "type": kind} for name, kind in TYPES[primary]]}
    message = {name: value for (name, _), value in zip(TYPES[primary], values, strict=True)}
    return bytes(Account.sign_typed_data(key, domain, types, message).signature)


def vrs(signature: bytes):
    return signature[64], signature[:32], signature[32:64]


def topics(receipt):
    return [log.topics[0] for log in receipt.logs]


USED = keccak256(b"AuthorizationUsed(address,bytes32)")
CANCELED = keccak256(b"AuthorizationCanceled(address,bytes32)")
TRANSFER = keccak256(b"Transfer(address,address,uint256)")
APPROVAL = keccak256(b"Approval(address,address,uint256)")


@pytest.fixture
def people(playground):
    return tuple(playground.account(role) for role in ("caller", "provider", "stranger"))


async def test_every_role_has_funds_and_a_key_of_its_own(chain, playground):
    assert len({account.key for account in playground.accounts}) == 4
    for account in playground.accounts:
        assert await chain.fetch_native_balance(account.address) == 10 * 10**18
        assert await chain.call(playground.token, "balanceOf", str(account.address)) == 1_000 * 10**6
        assert account.private_key not in repr(account)
        assert Account.from_key(account.private_key).address == str(account.address)


async def test_token_describes_itself_as_usdc(chain, playground):
    token = playground.token
    assert token.address == USDC_ADDRESS
    values = [
        await chain.call(token, name) for name in ("name", "version", "symbol", "decimals", "totalSupply")
    ]
    assert values == ["USDC", "2", "USDC", 6, 4_000 * 10**6]


async def test_transfer_and_allowance_move_money_and_say_so(chain, playground, people):
    caller, provider, stranger = people
    token = playground.token
    paid = await chain.wait_receipt(
        await chain.send_token(key=caller.key, token=token, to=provider.address, amount=7)
    )
    assert topics(paid) == [TRANSFER]
    approved = await chain.transact(token, "approve", str(stranger.address), 5, key=caller.key)
    assert topics(await chain.wait_receipt(approved)) == [APPROVAL]
    arguments = (str(caller.address), str(provider.address), 5)
    taken = await chain.wait_receipt(
        await chain.transact(token, "transferFrom", *arguments, key=stranger.key)
    )
    again = await chain.wait_receipt(
        await chain.transact(token, "transferFrom", *arguments, key=stranger.key)
    )
    assert (taken.succeeded, again.succeeded) == (True, False)
    assert await chain.call(token, "balanceOf", str(provider.address)) == 1_000 * 10**6 + 12


@pytest.mark.parametrize("form", [BY_BYTES, BY_VRS])
async def test_an_authorization_pays_once_from_any_sender(chain, playground, people, form):
    caller, provider, stranger = people
    values = (str(caller.address), str(provider.address), 10_000, 0, FAR, NONCE)
    signature = sign(caller.key, "TransferWithAuthorization", *values)
    tail = (signature,) if form == BY_BYTES else vrs(signature)
    paid = await chain.wait_receipt(
        await chain.transact(playground.token, form, *values, *tail, key=stranger.key)
    )
    assert topics(paid) == [USED, TRANSFER]
    assert paid.logs[0].topics[1:] == (bytes(12) + caller.address, NONCE)
    assert await chain.call(playground.token, "authorizationState", str(caller.address), NONCE) is True
    replay = await chain.wait_receipt(
        await chain.transact(playground.token, form, *values, *tail, key=stranger.key)
    )
    assert not replay.succeeded
    assert await chain.call(playground.token, "balanceOf", str(provider.address)) == 1_000 * 10**6 + 10_000


async def test_authorization_of_a_contract_wallet_is_judged_by_the_wallet(chain, playground, people):
    caller, provider, stranger = people
    artifact = load_artifact(Path(__file__).parents[1] / "system" / "live" / "contracts" / "OwnedWallet.json")
    wallet = await chain.deploy(artifact, str(caller.address), key=stranger.key)
    minted = await chain.transact(playground.token, "mint", str(wallet.address), 10_000, key=stranger.key)
    await chain.wait_receipt(minted)
    values = (str(wallet.address), str(provider.address), 10_000, 0, FAR, NONCE)
    outcomes = []
    for key in (stranger.key, caller.key):
        signature = sign(key, "TransferWithAuthorization", *values)
        sent = await chain.transact(playground.token, BY_BYTES, *values, signature, key=stranger.key)
        outcomes.append((await chain.wait_receipt(sent)).succeeded)
    assert outcomes == [False, True]


def high_s(signature: bytes) -> bytes:
    s = SECP256K1_N - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


REFUSALS = {
    "signed by another": lambda caller, other, values: sign(other.key, "TransferWithAuthorization", *values),
    "for another chain": lambda caller, other, values: sign(
        caller.key, "TransferWithAuthorization", *values, chain_id=8453
    ),
    "for another token": lambda caller, other, values: sign(
        caller.key, "TransferWithAuthorization", *values, contract=Address(b"\x01" * 20)
    ),
    "of the other kind": lambda caller, other, values: sign(caller.key, "ReceiveWithAuthorization", *values),
    "high s": lambda caller, other, values: high_s(sign(caller.key, "TransferWithAuthorization", *values)),
    "too short": lambda caller, other, values: sign(caller.key, "TransferWithAuthorization", *values)[:64],
    "zeroes": lambda caller, other, values: bytes(64) + b"\x1b",
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_refuses_a_signature_that_is(chain, playground, people, why):
    caller, provider, stranger = people
    values = (str(caller.address), str(provider.address), 10_000, 0, FAR, NONCE)
    signature = REFUSALS[why](caller, stranger, values)
    with pytest.raises(RpcRefused, match="invalid signature"):
        await chain.call(playground.token, BY_BYTES, *values, signature)


@pytest.mark.parametrize(("after", "before", "why"), [(0, 1, "expired"), (FAR, FAR + 1, "not yet valid")])
async def test_refuses_an_authorization_out_of_its_time(chain, playground, people, after, before, why):
    caller, provider, _ = people
    values = (str(caller.address), str(provider.address), 1, after, before, NONCE)
    with pytest.raises(RpcRefused, match=why):
        await chain.call(
            playground.token, BY_BYTES, *values, sign(caller.key, "TransferWithAuthorization", *values)
        )


@pytest.mark.parametrize("form", [RECEIVE_BY_BYTES, RECEIVE_BY_VRS])
async def test_only_the_payee_receives(chain, playground, people, form):
    caller, provider, stranger = people
    values = (str(caller.address), str(provider.address), 10_000, 0, FAR, NONCE)
    signature = sign(caller.key, "ReceiveWithAuthorization", *values)
    tail = (signature,) if form == RECEIVE_BY_BYTES else vrs(signature)
    outcomes = []
    for key in (stranger.key, provider.key):
        sent = await chain.transact(playground.token, form, *values, *tail, key=key)
        outcomes.append((await chain.wait_receipt(sent)).succeeded)
    assert outcomes == [False, True]


@pytest.mark.parametrize("form", [CANCEL_BY_BYTES, CANCEL_BY_VRS])
async def test_cancelled_authorization_never_pays(chain, playground, people, form):
    caller, provider, stranger = people
    cancel = sign(caller.key, "CancelAuthorization", str(caller.address), NONCE)
    tail = (cancel,) if form == CANCEL_BY_BYTES else vrs(cancel)
    arguments = (str(caller.address), NONCE, *tail)
    sent = await chain.transact(playground.token, form, *arguments, key=stranger.key)
    assert topics(await chain.wait_receipt(sent)) == [CANCELED]
    values = (str(caller.address), str(provider.address), 10_000, 0, FAR, NONCE)
    with pytest.raises(RpcRefused, match="used or cancelled"):
        await chain.call(
            playground.token, BY_BYTES, *values, sign(caller.key, "TransferWithAuthorization", *values)
        )


def test_accounts_never_repeat():
    assert make_account("caller").key != make_account("caller").key
