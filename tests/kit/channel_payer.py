"""`ChannelPayer`: a wallet that opens an x402 payment channel, signs its vouchers and deposits, and writes the content of
`PAYMENT-SIGNATURE`. Every field can be given.

eth-account signs the typed data of the `x402` package; no code is shared with what reads the payments, beyond the records.
"""

from dataclasses import dataclass, field
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from x402.mechanisms.evm.batch_settlement import constants as stock
from x402.mechanisms.evm.batch_settlement.encoding import build_erc3009_deposit_nonce
from x402.mechanisms.evm.batch_settlement.types import ChannelConfig as StockConfig
from x402.mechanisms.evm.batch_settlement.utils import (
    compute_channel_id,
    get_batch_settlement_eip712_domain,
)

from tests.kit.payer import NOW_S, PAY_TO, TIMEOUT_S, USDC
from tollway.chain.channel_contract import ChannelConfig, encode_deposit
from tollway.ids import Address, ChannelId, keccak256
from tollway.money import Asset

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChannelPayer:
    """A plain wallet with one channel, honest or not. `authorizer`: the key of the receiver that signs claims and refunds."""

    account: LocalAccount = field(default_factory=lambda: Account.from_key(keccak256(b"a channel payer")))
    authorizer: LocalAccount = field(default_factory=lambda: Account.from_key(keccak256(b"an authorizer")))
    receiver: Address = PAY_TO
    asset: Asset = USDC
    withdraw_delay: int = 900
    salt: bytes = bytes(32)
    deposit_salt: bytes = b"\x1d" * 32
    valid_after: int = 0
    valid_before: int = NOW_S + TIMEOUT_S + 60

    @property
    def address(self) -> Address:
        return Address.parse(self.account.address)

    @property
    def config(self) -> ChannelConfig:
        assert self.asset.token is not None
        return ChannelConfig(
            payer=self.address,
            payer_authorizer=self.address,
            receiver=self.receiver,
            receiver_authorizer=Address.parse(self.authorizer.address),
            token=self.asset.token,
            withdraw_delay=self.withdraw_delay,
            salt=self.salt,
        )

    @property
    def channel_id(self) -> ChannelId:
        return ChannelId.parse(compute_channel_id(stock_config(self.config), self.asset.chain_id))

    def sign_voucher(self, ceiling: int) -> bytes:
        message = {"channelId": bytes(self.channel_id), "maxClaimableAmount": ceiling}
        return self._sign(self.account, stock.VOUCHER_TYPES, message)

    def encode_deposit(self, base_units: int) -> bytes:
        """What anyone may send to the contract with the payer's signature."""
        return encode_deposit(
            self.config,
            base_units=base_units,
            valid_after=self.valid_after,
            valid_before=self.valid_before,
            salt=self.deposit_salt,
            signature=self.sign_deposit(base_units),
        )

    def sign_deposit(self, base_units: int) -> bytes:
        domain = self.asset.domain
        assert domain is not None
        signed = self.account.sign_typed_data(
            domain_data={
                "name": domain.name,
                "version": domain.version,
                "chainId": self.asset.chain_id,
                "verifyingContract": str(self.asset.token),
            },
            message_types=stock.RECEIVE_AUTHORIZATION_TYPES,
            message_data={
                "from": str(self.address),
                "to": stock.ERC3009_DEPOSIT_COLLECTOR_ADDRESS,
                "value": base_units,
                "validAfter": self.valid_after,
                "validBefore": self.valid_before,
                "nonce": self.deposit_nonce,
            },
        )
        return bytes(signed.signature)

    @property
    def deposit_nonce(self) -> bytes:
        return bytes.fromhex(
            build_erc3009_deposit_nonce(str(self.channel_id), "0x" + self.deposit_salt.hex())[2:]
        )

    def sign_refund(self, base_units: int, *, nonce: int) -> bytes:
        message = {"channelId": bytes(self.channel_id), "nonce": nonce, "amount": base_units}
        return self._sign(self.authorizer, stock.REFUND_TYPES, message)

    def _sign(self, account: LocalAccount, types: Any, message: Json) -> bytes:
        domain = get_batch_settlement_eip712_domain(self.asset.chain_id)
        return bytes(account.sign_typed_data(domain, types, message).signature)

    # ---- What a client sends.

    def voucher(self, ceiling: int) -> Json:
        """The payload of type `voucher`."""
        return {
            "type": "voucher",
            "channelConfig": stock_config(self.config).to_dict(),
            "voucher": {
                "channelId": str(self.channel_id),
                "maxClaimableAmount": str(ceiling),
                "signature": "0x" + self.sign_voucher(ceiling).hex(),
            },
        }

    def deposit(self, base_units: int, *, ceiling: int) -> Json:
        """The payload of type `deposit`."""
        signed = {
            "validAfter": str(self.valid_after),
            "validBefore": str(self.valid_before),
            "salt": "0x" + self.deposit_salt.hex(),
            "signature": "0x" + self.sign_deposit(base_units).hex(),
        }
        authorization = {"erc3009Authorization": signed}
        return self.voucher(ceiling) | {
            "type": "deposit",
            "deposit": {"amount": str(base_units), "authorization": authorization},
        }

    def refund(self, *, ceiling: int, base_units: int | None = None) -> Json:
        """The payload of type `refund`."""
        amount = {} if base_units is None else {"amount": str(base_units)}
        return self.voucher(ceiling) | {"type": "refund"} | amount

    def payment(self, payload: Json, *, amount: int = 300) -> Json:
        """The content of `PAYMENT-SIGNATURE`."""
        domain = self.asset.domain
        assert domain is not None
        return {
            "x402Version": 2,
            "payload": payload,
            "accepted": {
                "scheme": "batch-settlement",
                "network": self.asset.network,
                "amount": str(amount),
                "asset": str(self.asset.token),
                "payTo": str(self.receiver),
                "maxTimeoutSeconds": TIMEOUT_S,
                "extra": {
                    "name": domain.name,
                    "version": domain.version,
                    "receiverAuthorizer": self.authorizer.address,
                    "withdrawDelay": self.withdraw_delay,
                },
            },
            "resource": {"url": "https://gw.example.com/api/v2/gateway/api_1/v1/quote?city=Wien"},
        }


def stock_config(config: ChannelConfig) -> StockConfig:
    """The config as the `x402` package has it."""
    return StockConfig(
        payer=str(config.payer),
        payer_authorizer=str(config.payer_authorizer),
        receiver=str(config.receiver),
        receiver_authorizer=str(config.receiver_authorizer),
        token=str(config.token),
        withdraw_delay=config.withdraw_delay,
        salt="0x" + config.salt.hex(),
    )
