"""A payer made by hand for the live tests: it reads a gateway's own 402 and signs what that asks for, honestly or as a
test wants it. Loaded by `conftest.py`. It shares no code with what reads its headers.
"""

import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from eth_account import Account

from tests.kit.payer import (
    AuthorizationSigner,
    Edit,
    Header,
    bind_nonce,
    decode_header,
    encode_header,
    read_challenge,
)
from tollway.ids import Address, ChainId
from tollway.money import Asset, TokenDomain
from tollway.sandbox.chain import FundedAccount

V2, V1, MPP = "x402 v2", "x402 v1", "mpp"
DIALECTS = (V2, V1, MPP)
RECEIPTS = {V2: "PAYMENT-RESPONSE", V1: "X-PAYMENT-RESPONSE", MPP: "Payment-Receipt"}
STOCK_PATIENCE_S = 600
"""Stock clients sign `validAfter` this long before now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What one 402 asks for, in each dialect."""

    required: dict[str, Any]
    accepted: dict[str, Any]
    accepted_v1: dict[str, Any]
    challenge: dict[str, str]

    @classmethod
    def read(cls, reply: Any) -> "Quote":
        assert reply.status == 402, (reply.status, reply.body)
        required = decode_header(reply.headers["PAYMENT-REQUIRED"].encode())
        return cls(
            required=required,
            accepted=required["accepts"][0],
            accepted_v1=reply.json["accepts"][0],
            challenge=read_challenge(reply.headers["WWW-Authenticate"].encode()),
        )


@dataclass(frozen=True, kw_only=True)
class WalletSigner(AuthorizationSigner):
    """`payer`: the wallet that pays, of which the account is the owner or itself. `shown`: a signature in place of the account's."""

    payer: Address
    shown: bytes | None = None

    @property
    def address(self) -> Address:
        return self.payer

    @property
    def signature(self) -> bytes:
        return super().signature if self.shown is None else self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationPayer:
    """`payer`: the wallet that pays, where it is a contract and the key only signs for it."""

    cluster: Any
    gateway: Any
    api_id: str
    signer: FundedAccount
    payer: Address | None = None

    @property
    def address(self) -> Address:
        return self.payer or self.signer.address

    async def call(self, rest: str, headers: list[Header] | tuple[Header, ...] = (), **options: Any) -> Any:
        return await self.cluster.call(self.gateway, self.api_id, rest, headers=list(headers), **options)

    async def quote(self, rest: str) -> Quote:
        return Quote.read(await self.call(rest))

    async def pay(self, rest: str, dialect: str = V2, *, edit: Edit | None = None, **changes: Any) -> Any:
        """Asks, signs what the 402 asks for, and asks again."""
        return await self.call(rest, [self.show(await self.quote(rest), dialect, edit=edit, **changes)])

    async def balance(self) -> int:
        return int(
            await self.cluster.driver.call(self.cluster.playground.token, "balanceOf", str(self.address))
        )

    def show(self, quote: Quote, dialect: str = V2, *, edit: Edit | None = None, **changes: Any) -> Header:
        """The header that answers a 402. `changes`: of the signed fields; `edit`: of the message around them, once they
        are signed."""
        content = self.write(quote, dialect, **changes)
        if edit is not None:
            edit(content)
        return dress(dialect, encode_header(content, is_urlsafe=dialect == MPP))

    def write(self, quote: Quote, dialect: str, **changes: Any) -> dict[str, Any]:
        """What stands in the header, before it is encoded."""
        signed = self.sign(quote, dialect, **changes)
        if dialect == V2:
            return {
                "x402Version": 2,
                "resource": quote.required["resource"],
                "accepted": quote.accepted,
                "payload": signed.payload(),
            }
        if dialect == V1:
            return signed.payment_v1()
        payload = {"type": "authorization", **signed.fields, "signature": "0x" + signed.signature.hex()}
        return {"challenge": quote.challenge, "payload": payload}

    def sign(
        self, quote: Quote, dialect: str, *, signature: bytes | None = None, **changes: Any
    ) -> WalletSigner:
        now_s = int(time.time())
        accepted = quote.accepted
        is_mpp = dialect == MPP
        signed = WalletSigner(
            account=Account.from_key(self.signer.key),
            payer=self.address,
            shown=signature,
            asset=Asset(
                chain_id=ChainId(self.cluster.driver.chain_id),
                token=Address.parse(accepted["asset"]),
                symbol="USDC",
                decimals=6,
                domain=TokenDomain(**accepted["extra"]),
            ),
            payee=Address.parse(accepted["payTo"]),
            base_units=int(accepted["amount"]),
            valid_after=0 if is_mpp else now_s - STOCK_PATIENCE_S,
            valid_before=now_s + accepted["maxTimeoutSeconds"],
            nonce=bind_nonce(quote.challenge) if is_mpp else secrets.token_bytes(32),
        )
        return replace(signed, **changes)


def dress(dialect: str, encoded: bytes) -> Header:
    """The header of a dialect around any bytes."""
    if dialect == MPP:
        return "Authorization", f"Payment {encoded.decode()}"
    return {V2: "PAYMENT-SIGNATURE", V1: "X-PAYMENT"}[dialect], encoded.decode()


def undress(header: Header) -> Any:
    return decode_header(header[1].removeprefix("Payment ").encode())
