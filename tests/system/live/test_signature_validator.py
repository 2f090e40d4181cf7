"""The one byte that the validator returns on a real EVM, for every kind of wallet (ERC-6492 order), normal and
hostile."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from eth_abi.abi import encode
from eth_account import Account

from tollway.ids import Address, keccak256
from tollway.sandbox.chain import RpcRefused, load_artifact

VALIDATOR = load_artifact(files("tollway.identity") / "contracts" / "SignatureValidator.json")
DIGEST = keccak256(b"what was signed")
MAGIC = bytes.fromhex("6492" * 16)
SECP256K1_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
GAS = 1_000_000


def sign(account, digest=DIGEST) -> bytes:
    return bytes(Account.unsafe_sign_hash(digest, account.key).signature)


def wrap(factory: Address, payload: bytes, inner: bytes) -> bytes:
    return encode(["address", "bytes", "bytes"], [str(factory), payload, inner]) + MAGIC


@pytest.fixture
def ask(chain):
    async def ask(signer: Address, signature: bytes, *, gas: int = GAS) -> bytes:
        payload = VALIDATOR.encode_creation((str(signer), DIGEST, signature))
        return bytes.fromhex(
            (await chain.rpc("eth_call", {"data": "0x" + payload.hex(), "gas": hex(gas)}))[2:]
        )

    return ask


def with_v(signature: bytes, v: int) -> bytes:
    return signature[:64] + bytes([v])


def high_s(signature: bytes) -> bytes:
    s = SECP256K1_N - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


async def test_plain_wallet_is_its_key(ask, caller, stranger):
    good = sign(caller)
    assert await ask(caller.address, good) == b"\x01"
    assert await ask(caller.address, with_v(good, good[64] - 27)) == b"\x01"
    refused = {
        "another key": sign(stranger),
        "another digest": sign(caller, keccak256(b"something else")),
        "high s": high_s(good),
        "v of a chain": with_v(good, good[64] + 35),
        "short": good[:64],
        "long": good + b"\x00",
        "compact": good[:64],
        "empty": b"",
        "zeroes": bytes(65),
    }
    for why, signature in refused.items():
        assert await ask(caller.address, signature) == b"\x00", why
    assert await ask(Address(20), with_v(bytes(64), 27)) == b"\x00"


async def test_a_contract_wallet_verifies_its_own_signature(ask, scenarios, caller, stranger):
    wallet = await scenarios.deploy("OwnedWallet", str(caller.address))
    assert await ask(wallet.address, sign(caller)) == b"\x01"
    assert await ask(wallet.address, sign(stranger)) == b"\x00"
    assert await ask(wallet.address, b"") == b"\x00"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("YesWallet", b"\x01"),
        ("ReturnBombWallet", b"\x01"),  # the first word is the magic value; the rest is not read
        ("GasBurnerWallet", b"\x00"),
        ("MisalignedWallet", b"\x00"),
        ("ShortWallet", b"\x00"),
        ("RevertingWallet", b"\x00"),
        ("NativeForwarder", b"\x00"),  # a contract without ERC-1271
        ("TransferSpoofer", b"\x00"),
    ],
)
async def test_odd_contracts(ask, scenarios, stranger, name, answer):
    wallet = await scenarios.deploy(name)
    assert await ask(wallet.address, sign(stranger), gas=5_000_000) == answer


@pytest.mark.parametrize("name", ["GasBurnerWallet", "ReturnBombWallet"])
async def test_wallets_that_burn_gas_do_not_verify(ask, scenarios, stranger, name):
    wallet = await scenarios.deploy(name)
    assert await ask(wallet.address, sign(stranger), gas=200_000) == b"\x00"


async def test_the_gas_limit_is_enough_for_a_normal_wallet(ask, scenarios, caller):
    wallet = await scenarios.deploy("OwnedWallet", str(caller.address))
    assert await ask(wallet.address, sign(caller), gas=200_000) == b"\x01"


async def counterfactual(chain, factory, owner, salt=b"\x01" * 32):
    """The future address of the wallet, and the call that deploys it."""
    address = Address.parse(await chain.call(factory, "addressOf", str(owner.address), salt))
    return address, factory.artifact.function("create").encode((str(owner.address), salt))


async def test_an_undeployed_wallet_signs_in_a_wrapper(ask, chain, scenarios, caller, stranger):
    factory = await scenarios.deploy("OwnedWalletFactory")
    address, payload = await counterfactual(chain, factory, caller)
    assert await ask(address, wrap(factory.address, payload, sign(caller))) == b"\x01"
    assert await ask(address, wrap(factory.address, payload, sign(stranger))) == b"\x00"
    assert await ask(address, sign(caller)) == b"\x00"
    assert await chain.rpc("eth_getCode", str(address), "latest") == "0x"


async def test_the_wrapper_counts_after_the_wallet_is_deployed(ask, chain, scenarios, caller, stranger):
    factory = await scenarios.deploy("OwnedWalletFactory")
    address, payload = await counterfactual(chain, factory, caller)
    await scenarios.mined(
        await chain.transact(factory, "create", str(caller.address), b"\x01" * 32, key=caller.key)
    )
    assert await ask(address, wrap(factory.address, payload, sign(caller))) == b"\x01"
    assert await ask(address, wrap(factory.address, payload, sign(stranger))) == b"\x00"


async def test_a_wrapper_that_deploys_no_wallet_does_not_verify(ask, chain, scenarios, caller, stranger):
    factory = await scenarios.deploy("OwnedWalletFactory")
    address, payload = await counterfactual(chain, factory, caller)
    elsewhere, other_payload = await counterfactual(chain, factory, stranger)
    assert elsewhere != address
    assert await ask(address, wrap(factory.address, other_payload, sign(stranger))) == b"\x00"
    assert await ask(address, wrap(factory.address, b"", sign(caller))) == b"\x00"
    # A call that succeeds and deploys nothing.
    assert await ask(address, wrap(stranger.address, payload, sign(caller))) == b"\x00"
    # The signature of a plain wallet does not count inside a wrapper.
    assert await ask(caller.address, wrap(factory.address, payload, sign(caller))) == b"\x00"


async def test_the_wrapped_call_is_not_run_for_a_deployed_wallet(ask, chain, scenarios, caller, stranger):
    """Otherwise the sender of a signature could change the wallet during the check."""
    switch = await scenarios.deploy("SwitchWallet")
    assert await ask(switch.address, sign(stranger)) == b"\x00"
    payload = switch.artifact.function("agree").encode(())
    assert await ask(switch.address, wrap(switch.address, payload, sign(stranger))) == b"\x00"
    await scenarios.mined(await chain.transact(switch, "agree", key=stranger.key))
    assert await ask(switch.address, sign(stranger)) == b"\x01"


async def test_wrapper_of_nonsense_is_a_revert(ask, caller):
    with pytest.raises(RpcRefused):
        await ask(caller.address, b"\xff" * 96 + MAGIC)


async def test_delegated_account_is_tried_as_a_contract_and_then_as_its_key(
    ask, chain, scenarios, caller, stranger
):
    wallet = await scenarios.deploy("OwnedWallet", str(stranger.address))
    await chain.set_code(caller.address, bytes.fromhex("ef0100") + wallet.address)
    assert await ask(caller.address, sign(stranger)) == b"\x01"
    assert await ask(caller.address, sign(caller)) == b"\x01"
    assert await ask(caller.address, sign(scenarios.playground.account("gas"))) == b"\x00"


def test_the_code_fits_what_a_creation_may_carry():
    source = Path(str(files("tollway.identity") / "contracts" / "SignatureValidator.json"))
    assert json.loads(source.read_text())["compiler"]["settings"]["evmVersion"] == "paris"
    assert len(VALIDATOR.creation_code) < 2_048
