"""Ids and digests of channels equal those of the stock packages."""

from dataclasses import replace
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import _hash_eip191_message, encode_typed_data
from hypothesis import given
from hypothesis import strategies as st
from x402.mechanisms.evm.batch_settlement import authorizer_signer, constants, encoding
from x402.mechanisms.evm.batch_settlement import types as stock
from x402.mechanisms.evm.batch_settlement.utils import (
    compute_channel_id,
    get_batch_settlement_eip712_domain,
)

from tests.kit.channel_payer import ChannelPayer, stock_config
from tests.kit.payer import USDC
from tollway.chain.channel_contract import WITHDRAW_DELAYS_S
from tollway.chain.networks import PRESETS
from tollway.identity.signatures import recover
from tollway.ids import Address, ChainId, ChannelId
from tollway.payments.channels import (
    WITHDRAW_DELAY_S,
    ChannelConfig,
    ClaimRow,
    channel_id,
    claim_batch_digest,
    deposit_digest,
    deposit_nonce,
    refund_digest,
    voucher_digest,
)

PAYER = Address.parse("0x70997970C51812dc3A010C7d01b50e0d17dc79C8")
AUTHORIZER = Address.parse("0x90F79bf6EB2c4f870365E785982E1f101E93b906")
DEPOSIT_SALT = b"\x1d" * 32

SEPOLIA = ChannelConfig(
    payer=PAYER,
    payer_authorizer=PAYER,
    receiver=Address.parse("0x14dC79964da2C08b23698B3D3cc7Ca32193d9955"),
    receiver_authorizer=AUTHORIZER,
    token=Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
    withdraw_delay=900,
    salt=bytes(32),
)
BASE = replace(
    SEPOLIA,
    receiver=Address(b"\xbb" * 20),
    token=Address.parse("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"),
    withdraw_delay=86_400,
    salt=b"\xab" * 31 + b"\x01",
)

# By @x402/evm 2.27.0, unmodified, with two of anvil's keys: `computeChannelId`, `signVoucher` of 8523, `signClaimBatch` of this channel
# (8523, 8223) and of the one with salt 0x07… (2^128-1, 1), `signRefund` of 291777 with nonce 3, `buildErc3009DepositNonce`.
VECTORS = [
    (
        ChainId(84532),
        SEPOLIA,
        "706f5650e8139bba408458ef9724aaeb0403bb559b1b2178ef6cce0f43750efb",
        "cb338482cf8a2705eea83a2ed730d13f5bab6bb9b17039fb8f7abdbdaf69a0560394d4b915012b7ed6707453ff6b3536fada092a5ff104f1fe70485dc684e84d1c",
        "a3e04f12b175d2b9b4fd87baf52abdc00e031eacd85cd5b420ebe598df824fb973e25919a4b9b8ba31c0673b7223b2f99b0af05eae1fa8cdba08a817d55234d71c",
        "c35f6ec0e077040b6254e340f7437b61e9287072a0db87240fd7d19f61aed08b40f8eb36e7425cd781db500fd2c39f3356fcf24cb9b71a3b241ac24491dd6f471c",
        "3566f3b098282cb49af861aa9e7789a8217774687cd7251b99be48eff6d0ed7f",
    ),
    (
        ChainId(8453),
        BASE,
        "fce1406d397b12632836305ea3a7c7d9d4d38bb87aaecdbf45dfc0a4eabcbf71",
        "2bf9a45ab13e9e462e9d226f2939cd50ed6e725f148d4e0f9e4fadc6122e6b471e54fab36b2d100b12171ebe454d360785825c2e46d5f55db03b19d116f69a3e1b",
        "44a18d481d2ea980ae28b241bc50911016b114908293dd4a0e88448a529a37e860fea626ffabaaf52a4eaa888b663401f18c8cac1d75a8821c5e6b4597369b2a1b",
        "fb2a926ea3ddb46eb084400af2fc99ff7d37502e08817189bed4cb662f5de8e519f2634e5fda32eb202c2fff9cbf5a07b8187f0292d56c394c3288c9ee89484f1b",
        "eb69157ff16c9a736eab1c81dd7e767ea5466cbfe620f6924e5d9c977a10fe78",
    ),
]


@pytest.mark.parametrize(("chain_id", "config", "channel", "voucher", "batch", "refund", "nonce"), VECTORS)
def test_the_stock_client_signs_the_same_digests(
    chain_id: ChainId, config: ChannelConfig, channel: str, voucher: str, batch: str, refund: str, nonce: str
) -> None:
    own = channel_id(config, chain_id)
    rows = [
        ClaimRow(config=config, ceiling=8_523, signature=b"", total_claimed=8_223),
        ClaimRow(
            config=replace(config, salt=b"\x07" * 32), ceiling=2**128 - 1, signature=b"", total_claimed=1
        ),
    ]
    assert own.hex() == channel
    assert recover(voucher_digest(chain_id, own, 8_523), bytes.fromhex(voucher)) == PAYER
    assert recover(claim_batch_digest(chain_id, rows), bytes.fromhex(batch)) == AUTHORIZER
    assert recover(refund_digest(chain_id, own, nonce=3, amount=291_777), bytes.fromhex(refund)) == AUTHORIZER
    assert deposit_nonce(own, DEPOSIT_SALT).hex() == nonce


ADDRESS = st.binary(min_size=20, max_size=20).map(Address)
WORD = st.binary(min_size=32, max_size=32)
UINT128, UINT256 = st.integers(0, 2**128 - 1), st.integers(0, 2**256 - 1)
CHAIN = st.integers(1, 10**12).map(ChainId)
CONFIG = st.builds(
    ChannelConfig,
    payer=ADDRESS,
    payer_authorizer=ADDRESS,
    receiver=ADDRESS,
    receiver_authorizer=ADDRESS,
    token=ADDRESS,
    withdraw_delay=st.integers(0, 2**40 - 1),
    salt=WORD,
)
ROWS = st.lists(
    st.builds(ClaimRow, config=CONFIG, ceiling=UINT128, signature=st.just(b""), total_claimed=UINT128),
    min_size=1,
    max_size=3,
)
KEY = Account.from_key(b"\x11" * 32)
SIGNER = authorizer_signer.LocalAuthorizerSigner(KEY)


@given(CHAIN, CONFIG, UINT128)
def test_id_and_voucher_are_those_of_the_python_package(
    chain_id: ChainId, config: ChannelConfig, ceiling: int
) -> None:
    own = channel_id(config, chain_id)
    assert str(own) == compute_channel_id(stock_config(config), chain_id)
    signable = encode_typed_data(
        get_batch_settlement_eip712_domain(chain_id),
        constants.VOUCHER_TYPES,
        {"channelId": bytes(own), "maxClaimableAmount": ceiling},
    )
    assert voucher_digest(chain_id, own, ceiling) == bytes(_hash_eip191_message(signable))


@given(CHAIN, ROWS, UINT256, UINT128)
def test_claims_and_refunds_are_those_of_the_python_package(
    chain_id: ChainId, rows: list[ClaimRow], nonce: int, amount: int
) -> None:
    network = f"eip155:{chain_id}"
    claims = [
        stock.VoucherClaim(
            channel=stock_config(row.config),
            max_claimable_amount=str(row.ceiling),
            signature="0x",
            total_claimed=str(row.total_claimed),
        )
        for row in rows
    ]
    batch = authorizer_signer.sign_claim_batch(SIGNER, claims, network)
    assert str(recover(claim_batch_digest(chain_id, rows), bytes.fromhex(batch[2:]))) == KEY.address
    own = channel_id(rows[0].config, chain_id)
    refund = authorizer_signer.sign_refund(SIGNER, str(own), amount, nonce, network)
    digest = refund_digest(chain_id, own, nonce=nonce, amount=amount)
    assert str(recover(digest, bytes.fromhex(refund[2:]))) == KEY.address


@given(WORD.map(ChannelId), WORD)
def test_the_nonce_of_a_deposit_is_that_of_the_python_package(channel: ChannelId, salt: bytes) -> None:
    theirs = encoding.build_erc3009_deposit_nonce(str(channel), "0x" + salt.hex())
    assert "0x" + deposit_nonce(channel, salt).hex() == theirs


@given(UINT128, UINT256, UINT256, WORD)
def test_a_deposit_is_an_authorisation_to_the_collector(
    base_units: int, valid_after: int, valid_before: int, salt: bytes
) -> None:
    payer = ChannelPayer(deposit_salt=salt, valid_after=valid_after, valid_before=valid_before)
    assert USDC.domain is not None
    digest = deposit_digest(
        USDC.domain,
        chain_id=USDC.chain_id,
        token=payer.config.token,
        payer=payer.address,
        base_units=base_units,
        valid_after=valid_after,
        valid_before=valid_before,
        nonce=deposit_nonce(payer.channel_id, salt),
    )
    assert recover(digest, payer.sign_deposit(base_units)) == payer.address


@pytest.mark.parametrize(
    "change",
    [
        {"payer": AUTHORIZER},
        {"payer_authorizer": AUTHORIZER},
        {"receiver": AUTHORIZER},
        {"receiver_authorizer": PAYER},
        {"token": AUTHORIZER},
        {"withdraw_delay": 901},
        {"salt": b"\x01" * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_of_a_config_makes_another_channel(change: dict[str, Any]) -> None:
    assert channel_id(replace(SEPOLIA, **change), ChainId(84532)) != channel_id(SEPOLIA, ChainId(84532))


def test_a_channel_is_another_one_on_another_chain() -> None:
    assert channel_id(SEPOLIA, ChainId(84532)) != channel_id(SEPOLIA, ChainId(8453))


def test_each_preset_has_a_delay_that_the_contract_accepts() -> None:
    assert {WITHDRAW_DELAY_S[preset.kind] for preset in PRESETS.values()} == {900, 86_400}
    assert set(WITHDRAW_DELAY_S.values()) <= set(WITHDRAW_DELAYS_S)


def test_the_text_of_an_id_is_parsed_back() -> None:
    own = channel_id(SEPOLIA, ChainId(84532))
    assert ChannelId.parse(str(own)) == own
    assert ChannelId.parse("0X" + own.hex().upper()) == own
    for other in ("", "0x", str(own)[:-1], str(own) + "0", own.hex(), "0x" + "g" * 64):
        with pytest.raises(ValueError, match="channel id"):
            ChannelId.parse(other)
