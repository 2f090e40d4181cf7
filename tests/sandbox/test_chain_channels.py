"""The sandbox's payment channels on a real EVM: what unmodified x402 clients sign, the contracts take, by the ABI of the `x402` package.

Rules of money: `tests/contracts/test_channel_rules.py`.
"""

from typing import Any

import pytest
from eth_abi.abi import decode, encode
from eth_utils.abi import function_abi_to_4byte_selector, get_abi_input_types, get_abi_output_types
from x402.mechanisms.evm.batch_settlement import abi as stock_abi
from x402.mechanisms.evm.batch_settlement import authorizer_signer, constants
from x402.mechanisms.evm.batch_settlement import types as stock
from x402.mechanisms.evm.batch_settlement.encoding import build_erc3009_collector_data

from tests.kit.channel_payer import ChannelPayer, stock_config
from tollway.chain.channel_contract import (
    DEPOSIT_COLLECTOR,
    SETTLEMENT_CONTRACT,
    ChannelConfig,
    ContractError,
    parse_contract_error,
)
from tollway.ids import Address, ChainId, keccak256
from tollway.payments.channels import ClaimRow, claim_batch_digest, refund_digest, voucher_digest
from tollway.sandbox.chain import (
    ChainDriver,
    MinedReceipt,
    Playground,
    RpcRefused,
    load_channel_contracts,
    load_test_usdc,
)

pytestmark = pytest.mark.live

CHAIN = ChainId(84532)
FAR = 2**40
ABI = {entry["name"]: entry for entry in stock_abi.BATCH_SETTLEMENT_ABI if entry["type"] == "function"}


def encode_call(function: str, *arguments: Any) -> bytes:
    entry: Any = ABI[function]
    return function_abi_to_4byte_selector(entry) + encode(get_abi_input_types(entry), arguments)


async def call(chain: ChainDriver, function: str, *arguments: Any) -> Any:
    request = {"to": str(SETTLEMENT_CONTRACT), "data": "0x" + encode_call(function, *arguments).hex()}
    returned = bytes.fromhex((await chain.rpc("eth_call", request, "latest"))[2:])
    values = decode(get_abi_output_types(ABI[function]), returned)  # type: ignore[arg-type]  # plain dicts
    return values[0] if len(values) == 1 else values


async def send(chain: ChainDriver, key: bytes, function: str, *arguments: Any) -> MinedReceipt:
    calldata = encode_call(function, *arguments)
    return await chain.wait_receipt(await chain.send(key=key, to=SETTLEMENT_CONTRACT, payload=calldata))


def as_tuple(config: ChannelConfig) -> tuple[Any, ...]:
    parties = (config.payer, config.payer_authorizer, config.receiver, config.receiver_authorizer)
    return (*map(str, parties), str(config.token), config.withdraw_delay, config.salt)


def as_claim(payer: ChannelPayer, ceiling: int, total: int) -> tuple[Any, ...]:
    return ((as_tuple(payer.config), ceiling), payer.sign_voucher(ceiling), total)


async def open_channel(chain: ChainDriver, playground: Playground, base_units: int) -> ChannelPayer:
    payer = ChannelPayer(receiver=playground.account("provider").address, valid_before=FAR)
    gas = playground.account("gas")
    await chain.wait_receipt(
        await chain.transact(playground.token, "mint", payer.address, base_units, key=gas.key)
    )
    collected = build_erc3009_collector_data(
        "0", str(FAR), "0x" + payer.deposit_salt.hex(), "0x" + payer.sign_deposit(base_units).hex()
    )
    arguments = (as_tuple(payer.config), base_units, str(DEPOSIT_COLLECTOR), collected)
    assert (await send(chain, gas.key, "deposit", *arguments)).succeeded
    return payer


async def test_a_stock_client_pays_through_a_channel(chain: ChainDriver, playground: Playground) -> None:
    payer, gas = await open_channel(chain, playground, 300_000), playground.account("gas")
    network = f"eip155:{CHAIN}"
    signer = authorizer_signer.LocalAuthorizerSigner(payer.authorizer)
    claim = stock.VoucherClaim(
        channel=stock_config(payer.config), max_claimable_amount="8523", signature="0x", total_claimed="8223"
    )
    batch = bytes.fromhex(authorizer_signer.sign_claim_batch(signer, [claim], network)[2:])
    token, receiver = str(payer.config.token), str(payer.config.receiver)
    calls = [
        encode_call("claimWithSignature", [as_claim(payer, 8_523, 8_223)], batch),
        encode_call("settle", receiver, token),
    ]
    assert (await send(chain, gas.key, "multicall", calls)).succeeded
    assert await call(chain, "channels", payer.channel_id) == (300_000, 8_223)
    assert await call(chain, "receivers", receiver, token) == (8_223, 8_223)
    assert await chain.call(playground.token, "balanceOf", receiver) == 1_000 * 10**6 + 8_223

    refund = authorizer_signer.sign_refund(signer, str(payer.channel_id), 291_777, 0, network)
    arguments = (as_tuple(payer.config), 291_777, 0, bytes.fromhex(refund[2:]))
    assert (await send(chain, gas.key, "refundWithSignature", *arguments)).succeeded
    assert await call(chain, "channels", payer.channel_id) == (8_223, 8_223)
    assert await call(chain, "refundNonce", payer.channel_id) == 1
    assert await chain.call(playground.token, "balanceOf", str(payer.address)) == 291_777


async def test_the_contract_computes_the_digests_that_clients_sign(
    chain: ChainDriver, playground: Playground
) -> None:
    payer = ChannelPayer()
    own = payer.channel_id
    rows = [ClaimRow(config=payer.config, ceiling=9, signature=payer.sign_voucher(9), total_claimed=7)]
    assert await call(chain, "getChannelId", as_tuple(payer.config)) == own
    assert await call(chain, "getVoucherDigest", own, 600) == voucher_digest(CHAIN, own, 600)
    assert await call(chain, "getRefundDigest", own, 3, 5) == refund_digest(CHAIN, own, nonce=3, amount=5)
    batch = await call(chain, "getClaimBatchDigest", [as_claim(payer, 9, 7)])
    assert batch == claim_batch_digest(CHAIN, rows)


async def test_the_receivers_side_claims_and_refunds_without_a_signature(
    chain: ChainDriver, playground: Playground
) -> None:
    payer = await open_channel(chain, playground, 1_000)
    provider, stranger = playground.account("provider"), playground.account("stranger")
    rows = [as_claim(payer, 600, 600)]
    for function, arguments, error in (
        ("claim", (rows,), ContractError.NOT_AUTHORIZED_TO_CLAIM),
        ("refund", (as_tuple(payer.config), 1), ContractError.NOT_AUTHORIZED_TO_REFUND),
    ):
        request = {"from": str(stranger.address), "to": str(SETTLEMENT_CONTRACT)}
        with pytest.raises(RpcRefused) as refused:
            await chain.rpc(
                "eth_call", request | {"data": "0x" + encode_call(function, *arguments).hex()}, "latest"
            )
        assert parse_contract_error(refused.value.payload) is error
        assert (await send(chain, provider.key, function, *arguments)).succeeded
    assert await call(chain, "channels", payer.channel_id) == (999, 600)
    assert await call(chain, "refundNonce", payer.channel_id) == 1


async def test_both_contracts_describe_themselves(chain: ChainDriver, playground: Playground) -> None:
    settlement, collector = load_channel_contracts()
    domain = await chain.rpc(
        "eth_call", {"to": str(settlement.address), "data": "0x84b0196e"}, "latest"
    )  # eip712Domain()
    kinds = ["bytes1", "string", "string", "uint256", "address", "bytes32", "uint256[]"]
    fields, name, version, chain_id, contract, salt, extensions = decode(kinds, bytes.fromhex(domain[2:]))
    assert (fields, salt, extensions) == (b"\x0f", bytes(32), ())
    assert (name, version) == (
        constants.BATCH_SETTLEMENT_DOMAIN_NAME,
        constants.BATCH_SETTLEMENT_DOMAIN_VERSION,
    )
    assert (chain_id, Address.parse(contract)) == (CHAIN, SETTLEMENT_CONTRACT)
    assert await chain.call(collector, "x402BatchSettlement") == str(SETTLEMENT_CONTRACT)
    delays = [await chain.call(settlement, f"{limit}_WITHDRAW_DELAY") for limit in ("MIN", "MAX")]
    assert delays == [constants.MIN_WITHDRAW_DELAY, constants.MAX_WITHDRAW_DELAY]


async def test_only_the_settlement_contract_collects(chain: ChainDriver, playground: Playground) -> None:
    collector = load_channel_contracts()[1]
    arguments = (str(playground.account("caller").address), str(playground.token.address), 1, bytes(32), b"")
    with pytest.raises(RpcRefused) as refused:
        await chain.call(collector, "collect", *arguments)
    assert refused.value.payload == keccak256(b"OnlyX402BatchSettlement()")[:4]


def test_the_token_takes_authorisations_with_a_signature_of_bytes() -> None:
    words = "address,address,uint256,uint256,uint256,bytes32"
    assert load_test_usdc().function(f"receiveWithAuthorization({words},bytes)")
