"""The rows of a ledger's read side for routes that show them: a charged call, a free one, a payment, and a fake store with such rows."""

from collections.abc import Sequence
from dataclasses import replace

from tollway.ids import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.history import HistoryPage, HistoryQuery, JoinedCredit, ListedPayment, PaymentQuery
from tollway.ledger.records import (
    AUTHORIZED_RAILS,
    CallRecord,
    CallState,
    Delivery,
    Payment,
    PaymentState,
    Rail,
    RecordedTransaction,
    decide_resolution,
)
from tollway.money import Asset
from tollway.payments.held_calls import ChargeFault

PAYER, PROVIDER, STRANGER = Address(b"p" * 20), Address(b"q" * 20), Address(b"s" * 20)
NOW_MS = 1_795_252_500_007
TX = TxHash(b"t" * 32)
CHAIN = ChainId(84532)
USDC = Asset(
    chain_id=CHAIN,
    token=Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
    symbol="USDC",
    decimals=6,
)
ETHER = Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18)

CALL = CallRecord(
    id=CallId("call_1"),
    listing_id=ListingId("api_1"),
    listing_name="Weather",
    provider=PROVIDER,
    payer=PAYER,
    method="GET",
    path="/v1/cities/berlin",
    state=CallState.CONSUMED,
    rail=Rail.TX,
    price="0.01",
    price_units=10_000,
    currency="USDC",
    chain_id=CHAIN,
    asset=USDC.key,
    decimals=6,
    tx_hash=TX,
    pay_to=PROVIDER,
    http_status=200,
    upstream_status=200,
    request_bytes=0,
    response_bytes=512,
    latency_ms=31,
    upstream_latency_ms=30,
    delivery=Delivery.COMPLETE,
    idempotency_key=None,
    request_id="req_12345678",
    error=None,
    created_ms=NOW_MS,
    completed_ms=NOW_MS + 31,
    moved_ms=NOW_MS + 30,
)
FREE = replace(
    CALL, rail=Rail.NONE, price="0", price_units=0, chain_id=None, asset=None, tx_hash=None, pay_to=None
)
PAYMENT = Payment(
    id=7,
    chain_id=CHAIN,
    tx_hash=TX,
    asset=USDC.key,
    payer=PAYER,
    payee=PROVIDER,
    value_units=30_000,
    taken_units=10_000,
    state=PaymentState.UNFINAL,
    block_number=1,
    block_hash=b"b" * 32,
    block_time=1,
)


class FakeRecords:
    """The read side and the write side of a ledger, with the rows of a test."""

    def __init__(self, calls: Sequence[CallRecord] = (), payments: Sequence[Payment] = ()) -> None:
        self.calls = {call.id: call for call in calls}
        self.payments = tuple(payments)
        self.queries: list[HistoryQuery] = []
        self.payment_queries: list[PaymentQuery] = []
        self.is_lower_bound = False
        self.claimed: tuple[CallId, ...] = (CallId("call_1"),)
        self.unknown: tuple[CallId, ...] = ()
        self.joined: tuple[JoinedCredit, ...] = ()
        self.held_before_ms: int | None = None
        self.charge_fault: ChargeFault | None = None

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        return RecordedTransaction(payments=(), is_admitted=False, held_before_ms=self.held_before_ms)

    async def history(self, query: HistoryQuery) -> HistoryPage:
        self.queries.append(query)
        calls = tuple(self.calls.values())
        return HistoryPage(calls=calls, total=len(calls), is_lower_bound=self.is_lower_bound)

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        return self.calls.get(call_id)

    async def read_payments(self, query: PaymentQuery) -> tuple[ListedPayment, ...]:
        self.payment_queries.append(query)
        own = tuple(
            ListedPayment(
                payment=one,
                recorded_ms=NOW_MS,
                is_restored=one.is_held and self.held_before_ms is not None,
                has_unknown_call=bool(self.unknown),
            )
            for one in self.payments
            if one.payer == query.wallet
        )
        return own[query.offset : query.offset + query.limit]

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
        return tuple(p for p in self.payments if (p.payer, p.tx_hash) == (payer, tx_hash))

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return self.claimed[:limit]

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return self.unknown[:limit]

    async def joined_credit(self, call_id: CallId, *, limit: int) -> tuple[JoinedCredit, ...]:
        return self.joined[:limit]

    async def find_charge_fault(self, call: CallRecord, *, client_address: str) -> ChargeFault | None:
        return self.charge_fault

    async def resolve(
        self, call: CallRecord, outcome: CallState, *, client_address: str
    ) -> CallState | ChargeFault | None:
        """As `HeldCalls` does. Another request may have decided the call since it was read."""
        now = self.calls[call.id]
        if now.state is not CallState.UNKNOWN:
            return None
        if outcome is CallState.CONSUMED and self.charge_fault is not None:
            return self.charge_fault
        after = decide_resolution(outcome, is_unpaid=now.rail in AUTHORIZED_RAILS)
        self.calls[call.id] = replace(now, state=after)
        return after
