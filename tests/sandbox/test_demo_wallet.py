"""The signer of the demo's wallet: what the pages request of a wallet is signed, and nothing else."""

import copy
import json
from typing import Any

import pytest

from tests.kit.budgets import policy_of
from tests.kit.payer import CHAIN
from tollway.identity.signatures import eip191_digest, recover
from tollway.ids import Address
from tollway.sandbox.chain import ChainDriver, Playground
from tollway.sandbox.demo_wallet import DATA_BYTES_MAX, MESSAGE_BYTES_MAX, SandboxSigner
from tollway.spending_policy import policy_members, typed_digest, write_typed_data
from tollway.web.pages.demo_wallet import WalletRefused

PAYEE = "0x" + "22" * 20
WORD = "0x" + "33" * 32


@pytest.fixture
def signer(chain: ChainDriver, playground: Playground) -> SandboxSigner:
    return SandboxSigner(chain, playground, playground.account("stranger"))


def make_transfer(signer: SandboxSigner, playground: Playground) -> dict[str, Any]:
    domain = {
        "name": "USDC",
        "version": "2",
        "chainId": CHAIN,
        "verifyingContract": str(playground.token.address),
    }
    message = {
        "from": str(signer.address),
        "to": PAYEE,
        "value": "10000",
        "validAfter": "0",
        "validBefore": "9",
        "nonce": WORD,
    }
    return {"primaryType": "TransferWithAuthorization", "domain": domain, "message": message}


def make_call() -> dict[str, Any]:
    message = {
        "gateway": "http://127.0.0.1:1",
        "apiId": "api_1",
        "method": "GET",
        "target": "/x",
        "bodyHash": WORD,
        "transaction": WORD,
        "validUntil": "9",
        "nonce": WORD,
    }
    return {
        "primaryType": "PaidCall",
        "domain": {"name": "Tollway", "version": "1", "chainId": CHAIN},
        "message": message,
    }


async def sign(signer: SandboxSigner, typed: dict[str, Any], account: str | None = None) -> str:
    return str(
        await signer.respond("eth_signTypedData_v4", [account or str(signer.address), json.dumps(typed)])
    )


async def test_signs_a_message_a_payment_and_a_call(signer: SandboxSigner, playground: Playground) -> None:
    message = await signer.respond("personal_sign", ["0x" + b"hello".hex(), str(signer.address)])
    assert recover(eip191_digest(b"hello"), bytes.fromhex(str(message)[2:])) == signer.address
    for typed in (make_transfer(signer, playground), make_call()):
        assert len(await sign(signer, typed)) == 2 + 2 * 65


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("domain", {"chainId": 1}),
        ("domain", {"chainId": str(CHAIN)}),
        ("domain", {"verifyingContract": PAYEE}),
        ("domain", {"name": "USD Coin"}),
        ("message", {"from": PAYEE}),
        ("message", {"to": "0x1"}),
        ("message", {"value": "-1"}),
        ("message", {"value": str(1 << 256)}),
        ("message", {"nonce": "0x00"}),
        ("message", {"nonce": None}),
        ("message", {"validBefore": "soon"}),
    ],
)
async def test_signs_no_other_payment(
    signer: SandboxSigner, playground: Playground, part: str, change: dict[str, Any]
) -> None:
    typed = make_transfer(signer, playground)
    typed[part].update(change)
    with pytest.raises(WalletRefused):
        await sign(signer, typed)


def make_policy(signer: SandboxSigner) -> dict[str, Any]:
    policy = policy_of(owner=signer.address, agent=Address.parse(PAYEE), maxPerDay="5")
    return write_typed_data("SpendingPolicy", policy_members(policy))


async def test_signs_what_a_budget_needs(signer: SandboxSigner) -> None:
    ends = {"owner": str(signer.address), "agent": str(signer.address), "gateway": "http://gw", "nonce": 7}
    for typed in (
        make_policy(signer),
        *(write_typed_data(f"Policy{act}", ends) for act in ("Acceptance", "Revocation")),
    ):
        message: Any = typed["message"]
        digest = typed_digest(str(typed["primaryType"]), message)
        assert recover(digest, bytes.fromhex((await sign(signer, typed))[2:])) == signer.address


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("domain", {"chainId": CHAIN}),
        ("domain", {"name": "Other"}),
        ("message", {"owner": PAYEE}),
        ("message", {"nonce": "7"}),
        ("message", {"nonce": -1}),
        ("message", {"allow": "tag:a"}),
        ("message", {"deny": [1]}),
    ],
)
async def test_signs_no_other_budget(signer: SandboxSigner, part: str, change: dict[str, Any]) -> None:
    typed = copy.deepcopy(make_policy(signer))
    typed[part] = {**typed[part], **change}
    with pytest.raises(WalletRefused):
        await sign(signer, typed)


@pytest.mark.parametrize(
    "kind", ["Permit", "PermitWitnessTransferFrom", "ReceiveWithAuthorization", "", None]
)
async def test_signs_no_other_typed_data(signer: SandboxSigner, playground: Playground, kind: Any) -> None:
    typed = {**copy.deepcopy(make_transfer(signer, playground)), "primaryType": kind}
    with pytest.raises(WalletRefused):
        await sign(signer, typed)
    with pytest.raises(WalletRefused):
        await sign(signer, {**make_call(), "domain": {"name": "Other", "version": "1", "chainId": CHAIN}})
    with pytest.raises(WalletRefused, match="another account"):
        await sign(signer, make_call(), account=PAYEE)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_sign", [PAYEE, "0x00"]),
        ("anvil_setBalance", [PAYEE, "0x1"]),
        ("eth_sendRawTransaction", ["0x00"]),
        ("personal_sign", ["0x" + "00" * (MESSAGE_BYTES_MAX + 1), "OWN"]),
        ("personal_sign", ["hello", "OWN"]),
        ("personal_sign", ["0x00", PAYEE]),
        ("personal_sign", []),
        ("personal_sign", ["0x00", "OWN", 3]),
        ("personal_sign", [None, None]),
        ("eth_signTypedData_v4", ["OWN", "{"]),
        ("eth_signTypedData_v4", ["OWN", "[]"]),
        ("eth_signTypedData_v4", ["OWN", "{}"]),
        ("eth_getTransactionReceipt", ["latest"]),
        ("eth_call", [{"to": PAYEE, "data": "0x00"}]),
        ("eth_call", [{"to": "TOKEN", "data": "0x" + "00" * (DATA_BYTES_MAX + 1)}]),
        ("eth_sendTransaction", [{"from": PAYEE, "to": PAYEE, "value": "0x1", "chainId": hex(CHAIN)}]),
        ("eth_sendTransaction", [{"from": "OWN", "to": PAYEE, "value": "0x1", "chainId": "0x1"}]),
        (
            "eth_sendTransaction",
            [{"from": "OWN", "to": PAYEE, "value": "0x0", "data": "0x00", "chainId": hex(CHAIN)}],
        ),
        ("eth_sendTransaction", [{"from": "OWN", "to": PAYEE, "value": "-0x1", "chainId": hex(CHAIN)}]),
        ("eth_sendTransaction", [{"from": "OWN", "value": "0x0", "data": "0x00", "chainId": hex(CHAIN)}]),
    ],
)
async def test_responds_to_no_other_request(
    signer: SandboxSigner, playground: Playground, method: str, params: list[Any]
) -> None:
    names = {"OWN": str(signer.address), "TOKEN": str(playground.token.address)}
    filled = json.loads(
        json.dumps(params).replace('"OWN"', f'"{names["OWN"]}"').replace('"TOKEN"', f'"{names["TOKEN"]}"')
    )
    with pytest.raises(WalletRefused):
        await signer.respond(method, filled)


async def test_sends_a_transfer_and_reads_its_receipt_and_the_balance(
    signer: SandboxSigner, playground: Playground, chain: ChainDriver
) -> None:
    token = str(playground.token.address)
    data = "0xa9059cbb" + PAYEE[2:].rjust(64, "0") + f"{10_000:064x}"
    sent = {"from": str(signer.address), "to": token, "value": "0x0", "data": data, "chainId": hex(CHAIN)}
    for transaction in (sent, {**sent, "to": PAYEE, "value": "0x5", "data": "0x"}):
        tx_hash = await signer.respond("eth_sendTransaction", [transaction])
        await chain.rpc("anvil_mine", "0x1")
        assert await signer.respond("eth_getTransactionReceipt", [tx_hash]) == {"status": "0x1"}
    balance = await signer.respond(
        "eth_call", [{"to": token, "data": "0x70a08231" + PAYEE[2:].rjust(64, "0")}, "latest"]
    )
    assert int(str(balance), 16) == 10_000
    assert await signer.respond("eth_getTransactionReceipt", [WORD]) is None
