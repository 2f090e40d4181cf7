"""Tables of the code that all rails share: the proof of a request, the problem of a refused claim, and a free call."""

from typing import Any, get_args

import pytest

from tests.kit.gateway import CHAIN, HOST, NOW_MS, PAY_TO, PUBLIC_URL, SECRET, USDC, InProcessGateway
from tests.kit.ledger_records import authorization_of, authorized_claim, claim_on
from tests.kit.payer import AuthorizationSigner, encode_header
from tests.kit.proxy_requests import sample_request
from tests.kit.upstream import LoopbackUpstream
from tollway.errors import Code, Problem
from tollway.gateway.access import ActiveCall
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.idempotency import ClientNetworks
from tollway.gateway.problems import may_quote
from tollway.gateway.rail import PaymentRail, explain_claim, read_proof
from tollway.gateway.receipts import ReceiptWriter
from tollway.gateway.routing import RequestSchemas, Route, Router
from tollway.ids import CallId, ListingId
from tollway.ledger.channels import CeilingMismatch, ChannelBusy, ChannelClosed, ChannelFull, ChannelState
from tollway.ledger.ledger import (
    AuthorizationTaken,
    BudgetExceeded,
    Claim,
    Claimed,
    ClaimOutcome,
    Exhausted,
    InDebt,
    NonceUsed,
    NotCovered,
    NotFirst,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.records import CallState, Dialect, KeyedCall, KeyTaken, OpenCall, Rail, RepeatsOpenCall
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.payments.mpp import Challenger, ChallengeRoute
from tollway.payments.proof import Proof
from tollway.payments.wire import PresentedAuthorization
from tollway.registry.listing import CatalogEntry

# ---------------------------------------------------------------------- the proof that a request shows

PLAIN = {"x_payment_tx": "0x" + "1f" * 32, "x_signature": "0x" + "2e" * 64 + "1b"}
V2 = {"payment_signature": encode_header(AuthorizationSigner().payment()).decode()}
V1 = {"x_payment": encode_header(AuthorizationSigner().payment_v1()).decode()}
CREDENTIAL = AuthorizationSigner().credential(
    challenger=Challenger(secret=SECRET, realm=HOST),
    route=ChallengeRoute(api_id="api_quotes", method="GET", target=""),
)
MPP = {"authorization": "Payment " + encode_header(CREDENTIAL, is_urlsafe=True).decode()}
TWO = (Code.INVALID_REQUEST, "more_than_one_rail")
HALF = (Code.INVALID_REQUEST, "missing_header")


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({}, None),
        ({"authorization": "Bearer x"}, None),
        ({"x_payment_network": "eip155:84532"}, None),
        (PLAIN, Proof),
        (V2, Dialect.X402_V2),
        (V1, Dialect.X402_V1),
        (MPP, Dialect.MPP),
        ({**PLAIN, "authorization": "Bearer x"}, Proof),
        ({**V2, "x_payment_network": "eip155:84532"}, Dialect.X402_V2),
        ({"x_payment_tx": PLAIN["x_payment_tx"]}, HALF),
        ({"x_signature": PLAIN["x_signature"]}, HALF),
        ({"x_signature_params": "x"}, HALF),
        ({**PLAIN, "x_payment_tx": "0x1f"}, (Code.INVALID_REQUEST, "malformed_header")),
        ({"payment_signature": "!"}, (Code.PAYMENT_MALFORMED, "invalid_payload")),
        ({"x_payment": "!"}, (Code.PAYMENT_MALFORMED, "invalid_payload")),
        ({"authorization": "Payment !"}, (Code.PAYMENT_MALFORMED, "invalid_payload")),
        ({**PLAIN, **V2}, TWO),
        ({**PLAIN, **V1}, TWO),
        ({**PLAIN, **MPP}, TWO),
        ({**PLAIN, "payment_signature": "!"}, TWO),
        ({**V2, **V1}, Dialect.X402_V2),  # one signed authorisation in both headers
        ({**V2, **MPP}, TWO),
        ({"payment_signature": "!", "x_payment": "!"}, (Code.PAYMENT_MALFORMED, "invalid_payload")),
        ({"payment_signature": "!", "x_payment": "?"}, TWO),
        # What is wrong with a transaction goes before what is beside it.
        ({"x_payment_tx": PLAIN["x_payment_tx"], **V2}, HALF),
    ],
)
def test_a_request_has_one_proof_at_most(headers: dict[str, str], shown: Any) -> None:
    gateway = InProcessGateway(LoopbackUpstream(), limits=DEFAULT_LIMITS)
    rails: tuple[PaymentRail, ...] = (gateway.transaction_rail, gateway.authorization_rail)
    found = read_proof(sample_request(**headers), rails)
    if found is None or isinstance(found, Problem):
        assert (found and (found.code, found.reason)) == shown
        return
    rail, proof = found
    if isinstance(proof, PresentedAuthorization):
        assert (proof.dialect, rail) == (shown, gateway.authorization_rail)
    else:
        assert (type(proof), rail) == (shown, gateway.transaction_rail)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (V2, "unsupported_scheme"),
        (V1, "unsupported_scheme"),
        (MPP, None),
        ({"payment_signature": "!"}, "invalid_payload"),
    ],
)
def test_a_gateway_without_x402_reads_credentials_of_mpp_only(
    headers: dict[str, str], reason: str | None
) -> None:
    gateway = InProcessGateway(LoopbackUpstream(), limits=DEFAULT_LIMITS)
    rail = AuthorizationRail(
        ledger=gateway.ledger,
        settlement=gateway.settlement.settlement,
        idempotency=gateway.idempotency,
        receipts=ReceiptWriter(public_url=PUBLIC_URL, receipt_signer=None, now_ms=lambda: NOW_MS),
        challenger=gateway.challenger,
        rules=gateway.rules,
        limits=DEFAULT_LIMITS,
        networks=ClientNetworks.derive([SECRET]),
        clock=gateway.claim_clock,
        is_x402=False,
    )
    found = read_proof(sample_request(**headers), (gateway.transaction_rail, rail))
    problem = found
    if isinstance(found, tuple):
        # Parsed all the same: the ledger may know the authorisation from before.
        problem = found[1].fault
    assert (problem.reason if isinstance(problem, Problem) else None) == reason


# ---------------------------------------------------------------------- why a claim was not granted

EARLIER = CallId("call_earlier")
REUSED = Code.NONCE_REUSED
RUNNING = Code.IDEMPOTENCY_IN_PROGRESS
USED = Code.PAYMENT_ALREADY_USED
EXCEEDED = BudgetExceeded(
    reason="limit", limit="maxPerDay", left_nano=4_000, currency="USDC", until_ms=1_800_000_000_000
)
EXPLAINED: tuple[tuple[ClaimOutcome, Code, str | None, str | None], ...] = (
    (Exhausted(remaining_units=4_000), Code.PAYMENT_INSUFFICIENT, None, "released"),
    (Exhausted(remaining_units=0), USED, None, "charged"),
    (Exhausted(remaining_units=0, held_units=1), USED, None, "held"),
    (Exhausted(remaining_units=4_000, held_units=1), USED, None, "held"),
    (
        Exhausted(remaining_units=4_000, held_units=6_000, is_payment_held=True),
        Code.PAYMENT_HELD,
        None,
        "held",
    ),
    (NonceUsed(call_id=EARLIER, state=CallState.CONSUMED), REUSED, None, "charged"),
    (NonceUsed(call_id=EARLIER, state=CallState.REORGED), REUSED, None, "charged"),
    (NonceUsed(call_id=EARLIER, state=CallState.UNKNOWN), REUSED, None, "held"),
    (NonceUsed(call_id=EARLIER, state=CallState.FORWARDING), RUNNING, None, "held"),
    (NonceUsed(call_id=EARLIER, state=CallState.SETTLING), RUNNING, None, "held"),
    (PlainEnded(), Code.INVALID_REQUEST, "bound_signature_required", "released"),
    (Unspendable(is_held=True), Code.PAYMENT_HELD, None, "held"),
    (Unspendable(is_held=False), Code.PAYMENT_PENDING, "reorged", "none"),
    (InDebt(units=10_000), Code.PAYER_IN_DEBT, None, "none"),
    (UnfinalLimit(), Code.PAYMENT_PENDING, "not_final", "released"),
    (EXCEEDED, Code.BUDGET_EXCEEDED, "limit", "released"),
    (BudgetExceeded(reason="no_policy_in_force"), Code.BUDGET_EXCEEDED, "no_policy_in_force", "released"),
    (NotFirst(), Code.PAYMENT_VERIFICATION_FAILED, "wrong_token", "none"),
)
"""Of a claim on a payment: outcome, code, reason, payment state."""
EXPLAINED_OF_AUTHORIZATIONS: tuple[tuple[ClaimOutcome, Code, str | None, str | None], ...] = (
    (AuthorizationTaken(call_id=EARLIER, state=CallState.CONSUMED), USED, "authorization_used", "charged"),
    (AuthorizationTaken(call_id=EARLIER, state=CallState.FORWARDING), USED, "authorization_used", "held"),
    (AuthorizationTaken(call_id=EARLIER, state=CallState.UNKNOWN), USED, "authorization_used", "held"),
    (NotCovered(held_units=1), Code.PAYMENT_VERIFICATION_FAILED, "insufficient_balance", "none"),
    (InDebt(units=10_000), Code.PAYER_IN_DEBT, None, "none"),
    (UnfinalLimit(), Code.PAYMENT_PENDING, "not_final", "none"),
    (BudgetExceeded(reason="other_currency"), Code.BUDGET_EXCEEDED, "other_currency", "none"),
)
KEYED = KeyedCall(
    call_id=EARLIER,
    listing_id=ListingId("api_quotes"),
    epoch=1,
    state=CallState.UNKNOWN,
    digest=b"",
    price="0.01",
    price_units=10_000,
    payment_id=1,
    moved_ms=0,
)
OPEN = OpenCall(
    call_id=EARLIER, epoch=1, state=CallState.UNKNOWN, attempts=1, price="0.01", price_units=10_000
)
DECIDED_BY_THE_RAIL: tuple[ClaimOutcome, ...] = (
    Claimed(epoch=1, remaining_units=0, rail=Rail.CREDIT),
    KeyTaken(call=KEYED),
    RepeatsOpenCall(call=OPEN),
    ChannelBusy(call_id=EARLIER, state=CallState.FORWARDING),
    ChannelClosed(state=ChannelState.DRAINING),
    ChannelFull(unclaimed_units=1),
)
MAY_ASK = frozenset({Code.PAYMENT_INSUFFICIENT, Code.PAYMENT_VERIFICATION_FAILED})


async def claim_twice(gateway: InProcessGateway) -> Claim:
    """A claim on a payment that another call has spent from."""
    payment = await gateway.pay()
    await gateway.ledger.claim(claim_on(payment, 10_000, call_id=EARLIER))
    return claim_on(payment, 10_000)


def words(problem: Problem) -> tuple[Code, str | None, str | None]:
    return problem.code, problem.reason, problem.payment_state


@pytest.fixture
def gateway() -> InProcessGateway:
    return InProcessGateway(LoopbackUpstream(), limits=DEFAULT_LIMITS)


@pytest.mark.parametrize("row", EXPLAINED, ids=lambda row: repr(row[0]))
async def test_each_outcome_of_a_claim_on_a_payment_has_its_words(
    gateway: InProcessGateway, row: tuple[ClaimOutcome, Code, str | None, str | None]
) -> None:
    outcome, *expected = row
    problem = await explain_claim(outcome, await claim_twice(gateway), USDC, gateway.ledger)
    assert words(problem) == tuple(expected)
    assert may_quote(problem) == (problem.code in MAY_ASK)


@pytest.mark.parametrize("row", EXPLAINED_OF_AUTHORIZATIONS, ids=lambda row: repr(row[0]))
async def test_each_outcome_of_a_claim_on_an_authorisation_has_its_words(
    gateway: InProcessGateway, row: tuple[ClaimOutcome, Code, str | None, str | None]
) -> None:
    outcome, *expected = row
    claim = authorized_claim(authorization_of(10_000))
    problem = await explain_claim(outcome, claim, USDC, gateway.ledger)
    assert words(problem) == tuple(expected)
    assert may_quote(problem) == (problem.code in MAY_ASK)


async def test_a_refusal_by_a_budget_says_what_is_left_and_until_when(gateway: InProcessGateway) -> None:
    problem = await explain_claim(EXCEEDED, await claim_twice(gateway), USDC, gateway.ledger)
    assert problem.members == {
        "currency": "USDC",
        "limit": "maxPerDay",
        "left": "0.000004",
        "resetsAt": "2027-01-15T08:00:00.000Z",
    }
    assert not problem.is_lasting


def test_the_tables_have_a_row_for_each_outcome() -> None:
    rows = [outcome for outcome, *_ in (*EXPLAINED, *EXPLAINED_OF_AUTHORIZATIONS)]
    found = {type(outcome) for outcome in (*rows, *DECIDED_BY_THE_RAIL)}
    assert found | {CeilingMismatch} == set(get_args(ClaimOutcome))  # `test_channel_payment` has that one


@pytest.mark.parametrize("outcome", DECIDED_BY_THE_RAIL, ids=lambda outcome: type(outcome).__name__)
async def test_what_the_rail_decides_has_no_words(gateway: InProcessGateway, outcome: ClaimOutcome) -> None:
    with pytest.raises(AssertionError):
        await explain_claim(outcome, await claim_twice(gateway), USDC, gateway.ledger)


@pytest.mark.parametrize(
    ("outcome", "members"),
    [
        (Exhausted(remaining_units=4_000), {"available": "0.004", "missing": "0.006", "currency": "USDC"}),
        (Exhausted(remaining_units=0), {"callIds": [EARLIER]}),
        (Exhausted(remaining_units=0, held_units=1), {"callIds": [EARLIER]}),
        (
            InDebt(units=10_000),
            {"debt": "0.01", "currency": "USDC", "network": f"eip155:{CHAIN}", "payTo": str(PAY_TO)},
        ),
    ],
    ids=repr,
)
async def test_a_refusal_has_the_missing_or_owed_amount_and_the_calls_that_spent_the_payment(
    gateway: InProcessGateway, outcome: ClaimOutcome, members: dict[str, Any]
) -> None:
    problem = await explain_claim(outcome, await claim_twice(gateway), USDC, gateway.ledger)
    assert problem.members == members


# ---------------------------------------------------------------------- calls that cost nothing


async def test_a_free_call_is_written_and_takes_nothing(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(price=Price.parse("0"), endpoint="https://api.example.com")
    entry = await gateway.catalog.find(ListingId("api_quotes"))
    assert isinstance(entry, CatalogEntry)
    request = sample_request("POST", "/q", "x=1", idempotency_key="k", **PLAIN)
    router = Router(wait_s=lambda endpoint: None, allow_private=False, schemas=RequestSchemas())
    route = router.match(entry, request)
    assert isinstance(route, Route)
    rail = gateway.make_free_rail()
    assert rail.read(request) is None
    assert await rail.find_key_wallets(request, entry, None, None) == ()
    payment = rail.open(request, route, None, None, ActiveCall(gateway.access, request, listing))
    await payment.check()
    assert await payment.verify() is None
    assert await payment.claim() is None
    assert payment.claimed is not None
    assert (payment.asset, payment.payer, payment.units, payment.claimed.remaining_units) == (
        None,
        None,
        0,
        0,
    )
    assert (payment.price.text, payment.currency, payment.write_receipt()) == ("0", "USDC", None)
    report = await gateway.ledger.audit()
    assert (report.calls, report.is_balanced) == (1, True)
