"""`ChannelGateway`: a gateway that sells one call by x402 `batch-settlement`, for tests of the callers' client. An httpx handler, with the contract in memory.

It keeps the laws of the wire: the ceiling of a voucher is what was announced and the maximum of its call, else a corrective 402; a voucher that is shown twice with its
own request opens its stored response; a deposit lands before its call is answered. `faults` says what goes wrong with the next paid requests.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from eth_abi.abi import decode
from eth_abi.abi import encode as encode_abi
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from tollway.chain.channel_contract import SETTLEMENT_CONTRACT, ChannelConfig
from tollway.client import Patience, TollwayClient, Wallet
from tollway.client.call_io import PaymentQuote
from tollway.client.own_channel import OwnChannel
from tollway.identity.signatures import recover
from tollway.ids import Address, keccak256
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.channel_wire import (
    PresentedChannelPayment,
    RefundRequest,
    SignedDeposit,
    SignedVoucher,
    parse_channel_payment,
)
from tollway.payments.channels import channel_id, deposit_digest, deposit_nonce, voucher_digest
from tollway.payments.wire import decode_object

Json = dict[str, Any]
WALLET_KEY = b"\x11" * 32
MISMATCH = "invalid_batch_settlement_evm_cumulative_amount_mismatch"
_CHANNELS, _WITHDRAWALS, _MULTICALL = (
    keccak256(name)[:4]
    for name in (b"channels(bytes32)", b"pendingWithdrawals(bytes32)", b"multicall(bytes[])")
)


@dataclass
class Escrow:
    """A channel in the contract."""

    balance: int = 0
    claimed: int = 0
    withdrawal: int = 0
    since_s: int = 0


@dataclass
class SettlementChain:
    """The settlement contract, and the token as far as deposits need it."""

    asset: Asset
    escrows: dict[bytes, Escrow] = field(default_factory=dict)
    used: set[bytes] = field(default_factory=set)
    is_away: bool = False
    wallet_units: int = 10**9
    now_s: int = 1_700_000_000
    fee_wei: int = 1
    mined: dict[str, int] = field(default_factory=dict)
    is_mining: bool = True

    def find(self, key: bytes) -> Escrow:
        return self.escrows.setdefault(bytes(key), Escrow())

    def call(self, to: str, payload: bytes) -> bytes:
        """`eth_call`."""
        selector, words = payload[:4], payload[4:]
        if Address.parse(to) == SETTLEMENT_CONTRACT:
            if selector == _MULTICALL:
                (calls,) = decode(["bytes[]"], words)
                return encode_abi(["bytes[]"], [[self.call(to, bytes(call)) for call in calls]])
            escrow = self.find(words[:32])
            numbers = {
                _CHANNELS: (escrow.balance, escrow.claimed),
                _WITHDRAWALS: (escrow.withdrawal, escrow.since_s),
            }.get(selector, (0,))
            return b"".join(number.to_bytes(32, "big") for number in numbers)
        if selector == keccak256(b"authorizationState(address,bytes32)")[:4]:
            return int(payload[-32:] in self.used).to_bytes(32, "big")
        return self.wallet_units.to_bytes(32, "big")

    def answer(self, request: httpx.Request) -> httpx.Response:
        """JSON-RPC."""
        if self.is_away:
            raise httpx.ConnectError("away")
        asked = json.loads(request.content)
        method, params = asked["method"], asked["params"]
        if method == "eth_call":
            result: object = "0x" + self.call(params[0]["to"], bytes.fromhex(params[0]["data"][2:])).hex()
        elif method == "eth_getBlockByNumber":
            base_fee = hex(self.fee_wei)
            result = {"number": "0x64", "timestamp": hex(self.now_s), "baseFeePerGas": base_fee}
        elif method == "eth_sendRawTransaction":
            result = self._mine(bytes.fromhex(params[0][2:]))
        elif method == "eth_getTransactionReceipt":
            status = self.mined.get(params[0])
            receipt = {"transactionHash": params[0], "blockNumber": "0x64", "status": hex(status or 0)}
            result = None if status is None or not self.is_mining else receipt
        else:
            numbers = {
                "eth_chainId": self.asset.chain_id,
                "eth_getBalance": 10**18,
                "eth_estimateGas": 52_700,
            }
            result = hex(numbers.get(method, len(self.mined)))
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": result})

    def _mine(self, raw: bytes) -> str:
        """Runs `initiateWithdraw` or `finalizeWithdraw` of the payer."""
        tx_hash = "0x" + keccak256(raw).hex()
        fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        payload = bytes(fields["data"])
        config = _parse_config(payload[4 : 4 + 7 * 32])
        sender = Address.parse(Account.recover_transaction(raw))
        is_own = sender == config.payer and Address(bytes(fields["to"])) == SETTLEMENT_CONTRACT
        escrow, done = self.find(channel_id(config, self.asset.chain_id)), False
        if is_own and payload[:4] == _INITIATE and not escrow.since_s:
            amount = int.from_bytes(payload[-32:], "big")
            if 0 < amount <= escrow.balance - escrow.claimed:
                escrow.withdrawal, escrow.since_s, done = amount, self.now_s, True
        is_ready = escrow.since_s > 0 and self.now_s >= escrow.since_s + config.withdraw_delay
        if is_own and payload[:4] == _FINALIZE and is_ready:
            amount = min(escrow.withdrawal, escrow.balance - escrow.claimed)
            escrow.balance, self.wallet_units = escrow.balance - amount, self.wallet_units + amount
            escrow.withdrawal, escrow.since_s, done = 0, 0, True
        self.mined[tx_hash] = int(done)
        return tx_hash


_TUPLE = "(address,address,address,address,address,uint40,bytes32)"
_INITIATE = keccak256(f"initiateWithdraw({_TUPLE},uint128)".encode())[:4]
_FINALIZE = keccak256(f"finalizeWithdraw({_TUPLE})".encode())[:4]


def _parse_config(words: bytes) -> ChannelConfig:
    parts = [words[start : start + 32] for start in range(0, len(words), 32)]
    payer, payer_authorizer, receiver, authorizer, token = (Address(part[12:]) for part in parts[:5])
    return ChannelConfig(
        payer=payer,
        payer_authorizer=payer_authorizer,
        receiver=receiver,
        receiver_authorizer=authorizer,
        token=token,
        withdraw_delay=int.from_bytes(parts[5], "big"),
        salt=parts[6],
    )


@dataclass
class Books:
    """A channel in the ledger of the gateway. `stored`: the responses by voucher and request."""

    announced: int = 0
    spent: int = 0
    voucher: SignedVoucher | None = None
    stored: dict[tuple[int, bytes], httpx.Response] = field(default_factory=dict)


@dataclass
class ChannelGateway:
    """`price`: the maximum of a call. `actual`: what the next call costs. `faults`: for the next paid requests, one of `lose request`, `lose answer`, `busy`,
    `unknown`, `fail` (the upstream) and None; or a function that makes the response. `shown`, `proofs`, `amounts`, `owed`: the paid requests, the price in their
    accepted offer, and the announced sum when they arrived."""

    asset: Asset
    pay_to: Address
    authorizer: Address
    now_s: int
    price: int = 300
    actual: int | None = None
    deposit_min: int | None = 300_000
    withdraw_delay: int = 900
    timeout_s: int = 60
    is_metered: bool = False
    has_voucher_state: bool = True
    options: list[Json] = field(default_factory=list)
    accepts: list[Json] = field(default_factory=list)
    faults: list[str | Callable[[httpx.Request], httpx.Response] | None] = field(default_factory=list)
    books: dict[bytes, Books] = field(default_factory=dict)
    shown: list[PresentedChannelPayment] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)
    owed: list[int] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    corrections: int = 0
    served: int = 0
    unpaid: int = 0

    def __post_init__(self) -> None:
        self.chain = SettlementChain(asset=self.asset)

    @property
    def ceilings(self) -> list[int]:
        return [payment.voucher.ceiling for payment in self.shown]

    @property
    def kinds(self) -> str:
        """A letter for each paid request: d, v or r."""
        kinds = {SignedDeposit: "d", RefundRequest: "r", type(None): "v"}
        return "".join(kinds[type(payment.request)] for payment in self.shown)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "node.test":
            return self.chain.answer(request)
        self.paths.append(request.url.path)
        proof = request.headers.get("payment-signature")
        if proof is None:
            self.unpaid += 1
            return self.require()
        content = decode_object(proof.encode(), bytes_max=Limits().payment_header_bytes_max)
        payment = parse_channel_payment(content)
        assert payment.fault is None, payment.fault
        self.shown.append(payment)
        self.proofs.append(proof)
        self.amounts.append(int(content["accepted"]["amount"]))
        books = self.books.get(payment.voucher.channel_id)
        self.owed.append(0 if books is None else books.announced)
        fault = self.faults.pop(0) if self.faults else None
        if callable(fault):
            return fault(request)
        if fault == "lose request":
            raise httpx.ReadError("cut")
        if fault == "busy":
            return self.refuse(503, "channel_busy", headers={"retry-after": "1"})
        if fault == "unknown":
            return self.refuse(503, "payment_outcome_unknown", state="held", headers={"retry-after": "1"})
        response = self._pay(request, payment, is_failed=fault == "fail")
        if fault == "lose answer":
            raise httpx.ReadError("cut")
        return response

    def _pay(
        self, request: httpx.Request, payment: PresentedChannelPayment, *, is_failed: bool
    ) -> httpx.Response:
        voucher = payment.voucher
        self._check(voucher)
        books, escrow = (
            self.books.setdefault(voucher.channel_id, Books()),
            self.chain.find(voucher.channel_id),
        )
        if isinstance(payment.request, RefundRequest):
            return self._refund(voucher, books, escrow)
        name = (voucher.ceiling, keccak256(str(request.url).encode() + request.content))
        if name in books.stored:
            return books.stored[name]
        deposit = payment.request if isinstance(payment.request, SignedDeposit) else None
        covered = escrow.balance + (deposit.base_units if deposit is not None else 0)
        if voucher.ceiling != books.announced + self.price or voucher.ceiling > covered:
            return self.correct(voucher, books, escrow)
        landed = self._deposit(voucher, deposit, escrow)
        if is_failed:
            own = {"success": True, "chargedAmount": "0"} if landed else None
            return self._relay(voucher, books, escrow, charged=0, status=503, transaction=landed, settled=own)
        cost = self.price if self.actual is None else min(self.actual, self.price)
        books.announced, books.spent, books.voucher = books.announced + cost, books.spent + cost, voucher
        self.served += 1
        response = self._relay(voucher, books, escrow, charged=cost, transaction=landed, settled={})
        books.stored[name] = response
        return response

    def _check(self, voucher: SignedVoucher) -> None:
        """The channel is that of the offer, and its payer signed the voucher."""
        config = voucher.config
        terms = (config.receiver, config.receiver_authorizer, config.token, config.withdraw_delay)
        assert terms == (self.pay_to, self.authorizer, self.asset.token, self.withdraw_delay)
        assert voucher.channel_id == channel_id(config, self.asset.chain_id)
        digest = voucher_digest(voucher.chain_id, voucher.channel_id, voucher.ceiling)
        assert recover(digest, voucher.signature) == config.payer_authorizer

    def _deposit(self, voucher: SignedVoucher, deposit: SignedDeposit | None, escrow: Escrow) -> str:
        """Lands a deposit; returns its transaction."""
        if deposit is None:
            return ""
        nonce = deposit_nonce(voucher.channel_id, deposit.salt)
        assert self.asset.domain is not None
        assert self.asset.token is not None
        digest = deposit_digest(
            self.asset.domain,
            chain_id=self.asset.chain_id,
            token=self.asset.token,
            payer=voucher.config.payer,
            base_units=deposit.base_units,
            valid_after=deposit.valid_after,
            valid_before=deposit.valid_before,
            nonce=nonce,
        )
        assert recover(digest, deposit.signature) == voucher.config.payer
        assert deposit.valid_before > self.now_s
        if nonce not in self.chain.used:
            self.chain.used.add(nonce)
            self.chain.wallet_units -= deposit.base_units
            escrow.balance += deposit.base_units
        return "0x" + keccak256(nonce).hex()

    def _refund(self, voucher: SignedVoucher, books: Books, escrow: Escrow) -> httpx.Response:
        if voucher.ceiling != books.announced:
            return self.correct(voucher, books, escrow)
        amount = escrow.balance - books.announced
        escrow.balance, escrow.claimed = books.announced, books.announced
        self.chain.wallet_units += amount
        settled = {"success": True, "transaction": "0x" + "ab" * 32, "amount": str(amount)}
        settled |= {
            "network": self.asset.network,
            "extra": {"channelState": self._state(voucher, books, escrow)},
        }
        return httpx.Response(
            200,
            json={"message": "Refund acknowledged", "channelId": str(voucher.channel_id)},
            headers={"payment-response": encode(settled)},
        )

    # ---- The responses.

    def require(self, *, error: str = "payment_required", extra: Json | None = None) -> httpx.Response:
        required: Json = {
            "x402Version": 2,
            "error": error,
            "resource": {"url": "https://gateway.test/api/v2/gateway/api_1"},
            "accepts": [*self.accepts, self.entry(**(extra or {}))],
        }
        if extra is not None:
            required["accepts"] = required["accepts"][-1:]
        return self.refuse(
            402,
            "payment_required" if extra is None else "payment_verification_failed",
            members={"payment": {"options": self.options}},
            headers={
                "payment-required": encode(required),
                **({"tollway-price-max": "0.0003 USDC"} if self.is_metered else {}),
            },
        )

    def entry(self, **extra: object) -> Json:
        """The entry of `accepts`."""
        domain = self.asset.domain
        assert domain is not None
        proposed = {} if self.deposit_min is None else {"minDeposit": str(self.deposit_min)}
        return {
            "scheme": "batch-settlement",
            "network": self.asset.network,
            "amount": str(self.price),
            "asset": str(self.asset.token),
            "payTo": str(self.pay_to),
            "maxTimeoutSeconds": self.timeout_s,
            "extra": {
                "name": domain.name,
                "version": domain.version,
                "receiverAuthorizer": str(self.authorizer),
                "withdrawDelay": self.withdraw_delay,
                **proposed,
                **extra,
            },
        }

    def correct(self, voucher: SignedVoucher, books: Books, escrow: Escrow) -> httpx.Response:
        """The corrective 402."""
        self.corrections += 1
        extra: Json = {"channelState": self._state(voucher, books, escrow)}
        if books.voucher is not None and self.has_voucher_state:
            signature = "0x" + books.voucher.signature.hex()
            extra["voucherState"] = {
                "signedMaxClaimable": str(books.voucher.ceiling),
                "signature": signature,
            }
        return self.require(error=MISMATCH, extra=extra)

    def _state(self, voucher: SignedVoucher, books: Books, escrow: Escrow) -> Json:
        return {
            "channelId": str(voucher.channel_id),
            "balance": str(escrow.balance),
            "totalClaimed": str(escrow.claimed),
            "withdrawRequestedAt": escrow.since_s,
            "refundNonce": "0",
            "chargedCumulativeAmount": str(books.announced),
        }

    def _relay(
        self,
        voucher: SignedVoucher,
        books: Books,
        escrow: Escrow,
        *,
        charged: int,
        transaction: str,
        settled: Json | None,
        status: int = 200,
    ) -> httpx.Response:
        """A response of the upstream. `settled` None: without `PAYMENT-RESPONSE`."""
        headers = {
            "proxy-status": f'"gateway.test"; received-status={status}',
            "tollway-payment-state": "charged" if status == 200 else "released",
            "tollway-call-id": f"call_{self.served}",
            "tollway-price": f"{charged / 10**6:.6f} USDC",
        }
        if settled is not None:
            receipt = {
                "success": True,
                "transaction": transaction,
                "network": self.asset.network,
                "extra": {
                    "chargedAmount": str(charged),
                    "channelState": self._state(voucher, books, escrow),
                },
            }
            headers["payment-response"] = encode(receipt)
        return httpx.Response(status, json={"served": self.served}, headers=headers)

    def refuse(
        self,
        status: int,
        code: str,
        *,
        state: str = "none",
        members: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        problem = {"status": status, "code": code, "detail": f"It is {code}.", **(members or {})}
        own = {"content-type": "application/problem+json", "tollway-payment-state": state}
        return httpx.Response(status, content=json.dumps(problem), headers={**own, **(headers or {})})


def encode(document: Json) -> str:
    """A header of x402."""
    return base64.b64encode(json.dumps(document).encode()).decode()


class ChannelCaller:
    """Clients of one wallet over one gateway, each of which pays by channel. `clock_s`: unix seconds."""

    def __init__(self, gateway: ChannelGateway, store_path: Path) -> None:
        self.gateway, self.store_path, self.clock_s = gateway, store_path, gateway.now_s
        self.quotes: list[PaymentQuote] = []

    def open(self, **options: Any) -> TollwayClient:
        return TollwayClient("https://gateway.test", **{**self.options(), **options})

    def options(self) -> dict[str, Any]:
        return {
            "wallet": Wallet.from_key(WALLET_KEY),
            "chains": [self.gateway.asset.chain_id],
            "store_path": self.store_path,
            "patience": Patience(poll_s=0.001, wait_s=0.02),
            "transport": httpx.MockTransport(self.gateway.handle),
            "now_ms": lambda: self.clock_s * 1000,
            "before_signing": self.quotes.append,
            "rail": "channel",
        }

    def call(self, path: str = "/", **options: Any) -> Any:
        with self.open(**options) as client:
            return client.call("api_1", path)

    @property
    def channel(self) -> OwnChannel:
        with self.open() as client:
            (found,) = client.channels()
        return found
