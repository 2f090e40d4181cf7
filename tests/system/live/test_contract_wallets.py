"""Sign-in of contract wallets on a real EVM: ERC-1271 wallets, normal and hostile, and ERC-6492 before the wallet is
deployed."""

from collections.abc import AsyncIterator
from itertools import count

import pytest
from eth_abi.abi import encode
from eth_account import Account

from tests.kit.lookup_counter import LookupCounter
from tests.kit.stores import ControlStores
from tollway.chain.rpc import ChainEndpoints, RpcReader
from tollway.errors import ChainUnavailable, Code, Refusal
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import SignatureVerifier, eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId, keccak256
from tollway.limits import DEFAULT_LIMITS

DIGEST = keccak256(b"what was signed")
WRAPPED = bytes.fromhex("6492" * 16)
SALT = b"\x05" * 32
NOW_MS = 1_795_239_000_000


def sign(account, digest: bytes = DIGEST) -> bytes:
    return bytes(Account.unsafe_sign_hash(digest, account.key).signature)


@pytest.fixture
async def chains(chain) -> AsyncIterator[RpcReader]:
    endpoints = {ChainId(chain.chain_id): ChainEndpoints(urls=(chain.rpc_url,))}
    async with RpcReader(endpoints, limits=DEFAULT_LIMITS) as reader:
        yield reader


@pytest.fixture
def verifier(chains: RpcReader) -> SignatureVerifier:
    return SignatureVerifier(chains, limits=DEFAULT_LIMITS)


@pytest.fixture
def chain_id(chain) -> ChainId:
    return ChainId(chain.chain_id)


@pytest.fixture
async def future(scenarios, caller, chain):
    """An undeployed wallet of `caller`: its address, and the wrapper for its owner's signature."""
    factory = await scenarios.deploy("OwnedWalletFactory")
    arguments = (str(caller.address), SALT)
    asked = {
        "to": str(factory.address),
        "data": "0x" + factory.artifact.function("addressOf").encode(arguments).hex(),
    }
    address = Address(bytes.fromhex((await chain.rpc("eth_call", asked, "latest"))[-40:]))
    making = factory.artifact.function("create").encode(arguments)

    def wrap(inner: bytes) -> bytes:
        return encode(["address", "bytes", "bytes"], [str(factory.address), making, inner]) + WRAPPED

    async def build() -> None:
        await scenarios.mined(await chain.transact(factory, "create", *arguments, key=caller.key))

    return address, wrap, build


async def test_a_contract_wallet_is_its_owner(scenarios, verifier, chain_id, caller, stranger) -> None:
    wallet = await scenarios.deploy("OwnedWallet", str(caller.address))
    for ask in (verifier.is_signed_by, verifier.is_signed_for_authentication):
        assert await ask(wallet.address, DIGEST, sign(caller), [chain_id])
        assert not await ask(wallet.address, DIGEST, sign(stranger), [chain_id])
        assert not await ask(wallet.address, keccak256(b"else"), sign(caller), [chain_id])
        assert not await ask(stranger.address, DIGEST, sign(caller), [chain_id])


@pytest.mark.parametrize(
    ("name", "is_signed"),
    [
        ("YesWallet", True),
        ("MisalignedWallet", False),
        ("RevertingWallet", False),
        ("GasBurnerWallet", False),
        ("ReturnBombWallet", False),
    ],
)
async def test_only_a_wallet_that_returns_the_exact_magic_value_signs(
    scenarios, verifier, chain_id, name: str, is_signed: bool
) -> None:
    wallet = await scenarios.deploy(name)
    assert await verifier.is_signed_by(wallet.address, DIGEST, b"anything", [chain_id]) is is_signed


async def test_an_undeployed_wallet_signs_for_sign_in_only(
    verifier, chain_id, caller, stranger, future
) -> None:
    address, wrap, _build = future
    assert await verifier.is_signed_for_authentication(address, DIGEST, wrap(sign(caller)), [chain_id])
    assert not await verifier.is_signed_for_authentication(address, DIGEST, wrap(sign(stranger)), [chain_id])
    assert not await verifier.is_signed_for_authentication(
        stranger.address, DIGEST, wrap(sign(caller)), [chain_id]
    )
    assert not await verifier.is_signed_by(address, DIGEST, wrap(sign(caller)), [chain_id])


async def test_a_wrapped_signature_counts_after_the_wallet_was_made(
    verifier, chain_id, caller, future
) -> None:
    address, wrap, build = future
    await build()
    assert await verifier.is_signed_for_authentication(address, DIGEST, wrap(sign(caller)), [chain_id])
    assert await verifier.is_signed_for_authentication(address, DIGEST, sign(caller), [chain_id])


async def test_an_invalid_wrapper_does_not_verify(verifier, chain_id, caller) -> None:
    for inner in (WRAPPED, b"\xff" * 96 + WRAPPED, b"\x00" * 4_000 + WRAPPED):
        assert not await verifier.is_signed_for_authentication(caller.address, DIGEST, inner, [chain_id])


async def test_a_delegated_account_signs_by_its_contract_and_by_its_key(
    scenarios, verifier, chain, chain_id, caller, stranger
) -> None:
    """EIP-7702: the code of an account that delegates is 0xef0100 and the contract's address."""
    contract = await scenarios.deploy("OwnedWallet", str(stranger.address))
    await chain.set_code(caller.address, bytes.fromhex("ef0100") + contract.address)
    assert await verifier.is_signed_by(caller.address, DIGEST, sign(stranger), [chain_id])
    assert await verifier.is_signed_by(caller.address, DIGEST, sign(caller), [chain_id])


async def test_a_node_that_is_down_is_not_a_refused_signature(chain_id) -> None:
    async with RpcReader(
        {chain_id: ChainEndpoints(urls=("http://127.0.0.1:9/",))}, limits=DEFAULT_LIMITS
    ) as gone:
        verifier = SignatureVerifier(gone, limits=DEFAULT_LIMITS)
        with pytest.raises(ChainUnavailable):
            await verifier.is_signed_by(Address(b"\xc0" * 20), DIGEST, b"anything", [chain_id])


async def test_a_future_wallet_opens_a_session(verifier, chain_id, caller, stranger, future) -> None:
    address, wrap, _build = future
    numbers = count(1)
    desk = SignIn(
        ControlStores().sessions,
        verifier,
        LookupCounter(),
        origin=parse_origin("http://127.0.0.1:8402"),
        limits=DEFAULT_LIMITS,
        now_ms=lambda: NOW_MS,
        entropy=lambda size: next(numbers).to_bytes(size, "big"),
    )
    text = (await desk.create_challenge()).format_message(address=address, chain_id=chain_id)
    digest = eip191_digest(text.encode())
    with pytest.raises(Refusal) as caught:
        await desk.open_session(text=text, signature=wrap(sign(stranger, digest)), client_address="")
    assert caught.value.problem.code is Code.INVALID_SIGNATURE
    admission = await desk.open_session(text=text, signature=wrap(sign(caller, digest)), client_address="")
    assert (await desk.find_session(admission.token)).address == address
