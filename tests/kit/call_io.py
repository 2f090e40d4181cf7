"""Doubles of `CallIo`, over which the client's flows run: one that has money and holds the invariants of every payment, and one that a test steps."""

import inspect
from collections.abc import Coroutine, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tollway.client.call_io import (
    AuthorizationState,
    CallIo,
    GatewayResponse,
    NodeOutcome,
    NodeResult,
    NoResponse,
    OverBudget,
    PolicyBinding,
    SignedAuthorization,
    SignedTransfer,
    Stored,
    Transfer,
    TransferState,
    UnsignedTransfer,
)
from tollway.client.exchange import run_blocking
from tollway.client.flow import pay_flow
from tollway.client.quote import Cap
from tollway.client.response_rules import CallResult
from tollway.client.transfer import CallRules, Patience, PaymentSource
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

CHAIN = ChainId(84532)
TOKEN = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
USDC = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6)
PAYER, PAYEE = Address(b"\x01" * 20), Address(b"\x22" * 20)
TX = TxHash(b"\x0a" * 32)
SOURCE = PaymentSource(payer=PAYER, chains=frozenset({CHAIN}), gateway="http://gw", assets={})
NOW_S = 1_700_000_000
OFFER = {
    "rail": "tx",
    "network": "eip155:84532",
    "token": str(TOKEN),
    "symbol": "USDC",
    "decimals": 6,
    "amount": "10000",
    "payTo": str(PAYEE),
    "confirmations": 1,
}
"""One call by a transfer, in the gateway's words."""
OPEN, RELEASED = AuthorizationState.OPEN, AuthorizationState.RELEASED


def build_transfer(**changes: Any) -> Transfer:
    transfer = Transfer(
        tx_hash=TX,
        raw=b"raw",
        asset=USDC,
        payer=PAYER,
        pay_to=PAYEE,
        gateway="http://gw",
        amount=10_000,
        rest=10_000,
        nonce=5,
        confirmations=2,
        state=TransferState.STORED,
    )
    return replace(transfer, **changes)


def build_authorization(number: int = 1, **changes: Any) -> SignedAuthorization:
    authorization = SignedAuthorization(
        nonce=bytes([number]) * 32,
        proof=f"proof {number}",
        asset=USDC,
        payer=PAYER,
        pay_to=PAYEE,
        gateway="http://gw",
        amount=10_000,
        valid_before=NOW_S + 90,
    )
    return replace(authorization, **changes)


class ScriptedNode:
    """A `NodeIo` that responds from a list."""

    def __init__(self, responses: Iterable[NodeOutcome]) -> None:
        self.responses = list(responses)

    async def query_node(self, _chain_id: ChainId, _method: str, *_params: object) -> NodeOutcome:
        return self.responses.pop(0)


class FakeCallIo:
    """A wallet with money on a quick chain, and a gateway that responds from a list. `left`: the authorisation that an earlier run left. `over`: the
    outcome of a store that refuses. `used`: the nonces that the token has seen. `served`: the calls that each payment has paid before."""

    def __init__(
        self,
        *responses: GatewayResponse | NoResponse,
        left: SignedAuthorization | None = None,
        over: OverBudget | None = None,
        usdc: int = 10**9,
        credit: tuple[Transfer, ...] = (),
        used: tuple[bytes, ...] = (),
        final_s: int = NOW_S,
        served: int = 0,
        is_repeatable: bool = False,
        binding: PolicyBinding | None = None,
    ) -> None:
        self.responses = list(responses)
        self.left, self.over, self.usdc, self.credit = left, over, usdc, credit
        self.used, self.final_s, self.served = used, final_s, served
        self.is_repeatable = is_repeatable
        self.binding, self.asked = binding, 0
        self.signed: list[SignedAuthorization] = []
        self.stored: dict[bytes, AuthorizationState] = {} if left is None else {left.nonce: OPEN}
        self.kept: dict[bytes, TxHash] = {}
        self.sent_again: set[bytes] = set()
        self.transfers: list[Transfer] = []
        self.recorded: list[TransferState] = []
        self.sent: list[tuple[tuple[str, str], ...]] = []
        self.signatures = 0
        self.waited_s = 0.0
        self.notices: list[str] = []
        self.free_ended: list[int | None] = []

    def call(self, *, source: dict[str, Any] | None = None, **rules: Any) -> CallResult:
        """Runs the flow of one call."""
        usual = CallRules(
            max_price=Cap.parse("0.01 USDC"),
            patience=Patience(poll_s=1, wait_s=9),
            is_repeatable=self.is_repeatable,
        )
        return run_blocking(pay_flow(self, replace(SOURCE, **(source or {})), replace(usual, **rules)))

    @property
    def proofs(self) -> list[str]:
        return [value for headers in self.sent for name, value in headers if name == "PAYMENT-SIGNATURE"]

    @property
    def states(self) -> list[AuthorizationState]:
        return list(self.stored.values())

    @property
    def amounts(self) -> list[int]:
        return [transfer.amount for transfer in self.transfers]

    @property
    def _authorizations(self) -> list[SignedAuthorization]:
        return [*self.signed, *filter(None, [self.left])]

    async def send_call(
        self, headers: tuple[tuple[str, str], ...] = (), *, method: str | None = None
    ) -> GatewayResponse | NoResponse:
        proof = dict(headers).get("PAYMENT-SIGNATURE")
        if proof is not None:
            assert "X-Payment-Tx" not in dict(headers)
            nonce = next(signed.nonce for signed in self._authorizations if signed.proof == proof)
            assert self.stored[nonce] is OPEN, "sent before it was stored, or after its end"
        self.sent.append(headers)
        return self.responses.pop(0)

    async def query_node(self, _chain_id: ChainId, method: str, *params: Any) -> Any:
        return NodeResult(result=self.read_chain(method, params))

    def read_chain(self, method: str, params: Any) -> object:
        match method:
            case "eth_getTransactionReceipt":
                return {"transactionHash": params[0], "blockNumber": "0x1", "status": "0x1"}
            case "eth_getBlockByNumber":
                return {"baseFeePerGas": "0x1", "number": "0x64", "timestamp": hex(self.final_s)}
            case "eth_call" if len(params[0]["data"]) > 100:
                is_used = bytes.fromhex(params[0]["data"][-64:]) in self.used
                return "0x" + int(is_used).to_bytes(32, "big").hex()
            case "eth_call":
                return "0x" + self.usdc.to_bytes(32, "big").hex()
        return hex({"eth_chainId": CHAIN, "eth_getBalance": 10**18}.get(method, 100))

    async def sleep(self, seconds: float) -> None:
        self.waited_s += seconds

    async def report_progress(self, progress: Any) -> None:
        if progress.notice is not None:
            self.notices.append(progress.notice)

    async def approve_payment(self, _quote: Any) -> None:
        return None

    async def sign_call(self, transfer: Transfer) -> tuple[tuple[str, str], ...]:
        self.signatures += 1
        return (("X-Payment-Tx", str(transfer.tx_hash)), ("X-Signature", str(self.signatures)))

    async def sign_request(self) -> tuple[tuple[str, str], ...]:
        return () if self.free_ended else (("Signature-Input", "sig"),)

    async def end_free_calls(self, per_s: int | None) -> None:
        self.free_ended.append(per_s)

    async def fetch_binding(self) -> PolicyBinding | None:
        self.asked += 1
        return self.binding

    async def sign_transfer(self, _unsigned: UnsignedTransfer) -> SignedTransfer:
        assert OPEN not in self.stored.values(), "a transfer while an authorisation may move money"
        return SignedTransfer(tx_hash=TxHash(bytes([10 + len(self.transfers)]) * 32), raw=b"raw")

    async def sign_authorization(self, offer: Any, asset: Asset) -> SignedAuthorization:
        assert OPEN not in self.stored.values(), "a second one while the first may move money"
        signed = build_authorization(
            len(self.signed) + 1,
            asset=asset,
            pay_to=offer.pay_to,
            amount=offer.amount,
            valid_before=NOW_S + offer.timeout_s,
        )
        self.signed.append(signed)
        return signed

    async def find_payments(self, _payees: tuple[Address, ...] = ()) -> tuple[Transfer, ...]:
        return self.credit

    async def find_next_nonce(self, _chain_id: ChainId, _pending: int) -> int:
        return 0

    async def find_unsent_transfers(self, _chain_id: ChainId) -> tuple[Transfer, ...]:
        return ()

    async def store_transfer(self, transfer: Transfer, _price: int, _tried: frozenset[TxHash]) -> Stored:
        self.transfers.append(transfer)
        return Stored()

    async def record_transfer_state(
        self, _tx_hash: TxHash, state: TransferState, _rest: int | None = None, *, is_served: bool = False
    ) -> None:
        self.recorded.append(state)

    async def count_served_calls(self, _tx_hash: TxHash) -> int:
        return self.served

    async def lease_authorization(self) -> SignedAuthorization | None:
        return self.left

    async def find_lapsed_authorizations(self, nonce: bytes | None = None) -> tuple[SignedAuthorization, ...]:
        return tuple(
            signed
            for signed in self._authorizations
            if signed.valid_before <= NOW_S
            and nonce in (None, signed.nonce)
            and self.stored[signed.nonce] in (OPEN, RELEASED)
        )

    async def store_authorization(self, authorization: SignedAuthorization) -> Stored | OverBudget:
        if self.over is None:
            self.stored[authorization.nonce] = OPEN
        return self.over or Stored()

    async def record_authorization_state(
        self,
        nonce: bytes,
        state: AuthorizationState,
        tx_hash: TxHash | None = None,
        *,
        is_sent_again: bool = False,
    ) -> None:
        was = self.stored[nonce]
        (self.sent_again.add if is_sent_again else self.sent_again.discard)(nonce)
        is_final = state in (AuthorizationState.EXPIRED, AuthorizationState.CHARGED)
        if was is OPEN or (was is RELEASED and is_final):
            self.stored[nonce] = state
            if tx_hash is not None:
                self.kept[nonce] = tx_hash

    async def count_calls(self, _pay_to: Address) -> int:
        return self.served

    async def lease_channel(self, *_given: Any, **_named: Any) -> Any:
        raise AssertionError(
            "no channel is offered here; tests/client/test_channel_payment.py has a gateway that does"
        )

    sign_voucher = store_voucher = drop_voucher = record_channel = lease_channel


# ---- Step by step.


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a method of `CallIo`, with every argument by its name."""

    name: str
    arguments: dict[str, Any]

    def __await__(self) -> Generator["Step", Any, Any]:
        return (yield self)


class StepIo:
    """A `CallIo` whose every method suspends with its `Step`: it returns what the test sends, or raises what the test throws."""

    def __getattr__(self, name: str) -> Any:
        signature = inspect.signature(getattr(CallIo, name))

        def build(*args: Any, **options: Any) -> Step:
            bound = signature.bind(None, *args, **options)
            bound.apply_defaults()
            return Step(name, {key: value for key, value in bound.arguments.items() if key != "self"})

        return build


step: Any = StepIo()
"""Builds the expected steps: `step.sleep(1)`."""


class SteppedFlow:
    """Runs a flow step by step: `<<` expects a step, or one of that name; `>>` sends its outcome. Nothing is left over of an earlier run of the
    request."""

    def __init__(self, flow: Coroutine[Step, Any, Any]) -> None:
        self._flow = flow
        self.step: Step | None = None
        self.result: Any = None
        self.failure: Exception | None = None
        self._send(None)
        if self.step == step.lease_authorization():
            self._send(None)

    def __lshift__(self, expected: Step | str) -> "SteppedFlow":
        assert self.failure is None, self.failure
        assert self.step is not None
        assert expected == (self.step.name if isinstance(expected, str) else self.step)
        return self

    def __rshift__(self, outcome: object) -> "SteppedFlow":
        self._send(outcome)
        return self

    def _send(self, outcome: object) -> None:
        try:
            self.step = self._flow.send(outcome)
            while self.step.name in ("report_progress", "fetch_binding"):  # the wallet has no owner
                self.step = self._flow.send(None)
        except StopIteration as end:
            self.step, self.result = None, end.value
        except Exception as exc:
            self.step, self.failure = None, exc
