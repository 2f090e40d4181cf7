"""A wallet with a local key: it signs payments, calls and requests. It sends nothing and stores nothing.

The key comes from a file that only its owner can read, or from the environment. It never appears in a repr, a log, an
error or a command line.
"""

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import coincurve
from pydantic_core import from_json

from tollway.chain.signer import derive_address, sign_digest, sign_transaction
from tollway.client.call_io import OwnVoucher, SignedAuthorization, SignedTransfer, UnsignedTransfer
from tollway.client.channel_offer import OfferedChannel, build_deposit, encode_refund, encode_voucher
from tollway.client.keystore import open_keystore
from tollway.client.own_channel import HeldDeposit, OwnChannel, PendingVoucher, VoucherPlan
from tollway.client.x402 import X402Offer, encode_payment
from tollway.identity.http_signatures import SignedRequest, signature_headers
from tollway.identity.signatures import paid_call_digest
from tollway.identity.siwe import PublicOrigin
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.money import Asset
from tollway.payments.channels import DEPOSIT_COLLECTOR, deposit_digest, deposit_nonce, voucher_digest
from tollway.payments.eip3009 import transfer_digest
from tollway.payments.proof import Binding, format_binding

CALL_VALIDITY_S = 240
"""Less than the 300 s that gateways allow, so that signatures count even with a clock one minute fast."""

REQUEST_VALIDITY_S = 60
KEY_FILE_BYTES_MAX = 16_384
VALID_AFTER = 0
"""Valid at once, because block times may be behind the local clock."""


class KeyUnusable(ValueError):
    """The key cannot be read or is invalid."""


class Wallet:
    """A private key in this process, and its address. Safe to use from many threads at once."""

    def __init__(self, key: coincurve.PrivateKey) -> None:
        self._key = key
        self.address = derive_address(key)

    def __repr__(self) -> str:
        return f"Wallet({self.address})"

    @classmethod
    def from_key(cls, key: str | bytes) -> Self:
        """A wallet from 32 bytes, or from 64 hex digits with or without `0x`. Raises `KeyUnusable`."""
        try:
            raw = bytes.fromhex(key.strip().removeprefix("0x")) if isinstance(key, str) else key
            if len(raw) != 32:
                raise ValueError("not 32 bytes")
            return cls(coincurve.PrivateKey(raw))
        except Exception:  # noqa: BLE001 - an exception of the library could hold the key
            raise KeyUnusable("a private key must be 32 bytes, written as 64 hex digits") from None

    @classmethod
    def from_file(cls, path: Path, *, password: str | None = None) -> Self:
        """A wallet from a file: the key in hex, or a JSON keystore with its password. Raises `KeyUnusable`.

        A file that other users can read is refused.
        """
        try:
            mode = path.stat().st_mode
            text = path.read_bytes()[:KEY_FILE_BYTES_MAX].decode("ascii")
        except (OSError, UnicodeDecodeError) as exc:
            raise KeyUnusable(f"the key file {path} cannot be read") from exc
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyUnusable(f"other users can access the key file {path}; run chmod 600 on it")
        if not text.lstrip().startswith("{"):
            return cls.from_key(text)
        if password is None:
            raise KeyUnusable("the keystore needs its password")
        try:
            return cls.from_key(open_keystore(text, password))
        except Exception:  # noqa: BLE001 - as above
            raise KeyUnusable("the keystore cannot be opened with that password") from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """A wallet from `TOLLWAY_KEY_FILE` (with `TOLLWAY_KEY_PASSWORD` for a keystore) or `TOLLWAY_PRIVATE_KEY`."""
        if path := environment.get("TOLLWAY_KEY_FILE"):
            return cls.from_file(Path(path), password=environment.get("TOLLWAY_KEY_PASSWORD"))
        if key := environment.get("TOLLWAY_PRIVATE_KEY"):
            return cls.from_key(key)
        raise KeyUnusable("no key: name a file in TOLLWAY_KEY_FILE, or set TOLLWAY_PRIVATE_KEY")

    def sign_transfer(self, unsigned: UnsignedTransfer) -> SignedTransfer:
        """Signs an EIP-1559 transaction."""
        signed = sign_transaction(
            self._key,
            chain_id=unsigned.chain_id,
            nonce=unsigned.nonce,
            to=unsigned.to,
            value=unsigned.value,
            calldata=unsigned.calldata,
            gas=unsigned.gas,
            max_fee_wei=unsigned.fee_max_wei,
            tip_wei=unsigned.tip_wei,
        )
        return SignedTransfer(tx_hash=signed.tx_hash, raw=signed.raw)

    def sign_authorization(
        self, offer: X402Offer, asset: Asset, *, gateway: str, now_s: int, nonce: bytes
    ) -> SignedAuthorization:
        """Signs an EIP-3009 `TransferWithAuthorization` for one call. `asset`: the offer's token, by another source than the gateway. `nonce`: 32 new
        random bytes."""
        valid_before = now_s + offer.timeout_s
        digest = transfer_digest(
            offer.domain,
            chain_id=offer.chain_id,
            token=offer.token,
            payer=self.address,
            payee=offer.pay_to,
            base_units=offer.amount,
            valid_after=VALID_AFTER,
            valid_before=valid_before,
            nonce=nonce,
        )
        proof = encode_payment(
            offer,
            payer=self.address,
            nonce=nonce,
            valid_after=VALID_AFTER,
            valid_before=valid_before,
            signature=self.sign_digest(digest),
        )
        return SignedAuthorization(
            nonce=nonce,
            proof=proof,
            asset=asset,
            payer=self.address,
            pay_to=offer.pay_to,
            gateway=gateway,
            amount=offer.amount,
            valid_before=valid_before,
        )

    def sign_voucher(
        self,
        offer: OfferedChannel,
        channel: OwnChannel,
        plan: VoucherPlan,
        *,
        request: bytes,
        now_s: int,
        salt: bytes,
    ) -> OwnVoucher:
        """Signs a voucher of a channel for one call, and a deposit where the plan has a new one. `request`: the digest of the call. `salt`: 32 new
        random bytes."""
        held, authorization = channel.deposit, None
        if plan.deposit and not plan.is_resent:
            held, authorization = self._sign_deposit(offer, channel, plan.deposit, now_s=now_s, salt=salt)
        proof = encode_voucher(
            offer,
            channel.config,
            channel.id,
            ceiling=plan.ceiling,
            signature=self._sign_ceiling(channel, plan.ceiling),
            deposit=from_json(held.document) if plan.deposit and held is not None else None,
        )
        pending = PendingVoucher(
            request=request,
            proof=proof,
            ceiling=plan.ceiling,
            price=offer.terms.amount,
            signed_before=channel.ceiling,
            has_deposit=plan.deposit > 0,
        )
        signed = replace(channel, pending=pending, deposit=held, ceiling=max(channel.ceiling, plan.ceiling))
        return OwnVoucher(channel=signed, deposit=authorization)

    def sign_refund(self, offer: OfferedChannel, channel: OwnChannel) -> str:
        """Signs a request for all that is left of a channel; returns the value of `PAYMENT-SIGNATURE`. Its voucher covers what was charged, and no more."""
        signature = self._sign_ceiling(channel, channel.charged)
        return encode_refund(offer, channel.config, channel.id, ceiling=channel.charged, signature=signature)

    def _sign_ceiling(self, channel: OwnChannel, ceiling: int) -> bytes:
        return self.sign_digest(voucher_digest(channel.asset.chain_id, channel.id, ceiling))

    def _sign_deposit(
        self, offer: OfferedChannel, channel: OwnChannel, amount: int, *, now_s: int, salt: bytes
    ) -> tuple[HeldDeposit, SignedAuthorization]:
        """Signs an EIP-3009 `ReceiveWithAuthorization` to the deposit collector, which can pay into this channel alone."""
        terms, nonce = offer.terms, deposit_nonce(channel.id, salt)
        valid_before = now_s + terms.timeout_s
        digest = deposit_digest(
            terms.domain,
            chain_id=terms.chain_id,
            token=terms.token,
            payer=self.address,
            base_units=amount,
            valid_after=VALID_AFTER,
            valid_before=valid_before,
            nonce=nonce,
        )
        document = build_deposit(
            amount=amount,
            valid_after=VALID_AFTER,
            valid_before=valid_before,
            salt=salt,
            signature=self.sign_digest(digest),
        )
        held = HeldDeposit(
            nonce=nonce, amount=amount, valid_before=valid_before, document=json.dumps(document)
        )
        return held, SignedAuthorization(
            nonce=nonce,
            proof="",  # it is sent with a voucher, as the pending one of its channel
            asset=channel.asset,
            payer=self.address,
            pay_to=DEPOSIT_COLLECTOR,
            gateway=channel.gateway,
            amount=amount,
            valid_before=valid_before,
        )

    def sign_call(
        self,
        *,
        chain_id: ChainId,
        tx_hash: TxHash,
        gateway: str,
        api_id: str,
        method: str,
        target: bytes,
        body: bytes,
        now_s: int,
        nonce: bytes,
    ) -> tuple[tuple[str, str], ...]:
        """The headers that prove a payment for exactly one request (EIP-712 `PaidCall`)."""
        binding = Binding(valid_until=now_s + CALL_VALIDITY_S, nonce=nonce, body_hash=keccak256(body))
        digest = paid_call_digest(
            chain_id=chain_id,
            gateway=gateway,
            api_id=api_id,
            method=method,
            target=target,
            body_hash=keccak256(body),
            transaction=tx_hash,
            valid_until=binding.valid_until,
            nonce=nonce,
        )
        return (
            ("X-Payment-Tx", str(tx_hash)),
            ("X-Payment-Network", f"eip155:{chain_id}"),
            ("X-Signature", "0x" + self.sign_digest(digest).hex()),
            ("X-Signature-Params", format_binding(binding)),
        )

    def sign_request(
        self, request: SignedRequest, *, origin: PublicOrigin, chain_id: ChainId, now_s: int, nonce: str
    ) -> tuple[tuple[str, str], ...]:
        """The headers that sign a request with this wallet (ERC-8128)."""
        return signature_headers(
            request,
            origin=origin,
            address=self.address,
            chain_id=chain_id,
            created=now_s,
            expires=now_s + REQUEST_VALIDITY_S,
            nonce=nonce,
            sign=self.sign_digest,
        )

    def sign_digest(self, digest: bytes) -> bytes:
        """Signs a digest: 65 bytes, r, s (low), v (27 or 28)."""
        return sign_digest(self._key, digest)


def create_key_file(path: Path) -> Address:
    """Creates a new key in a new file that only its owner can read; returns its address.

    Raises FileExistsError where the file exists.
    """
    key = secrets.token_bytes(32)
    address = derive_address(coincurve.PrivateKey(key))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("0x" + key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return address
