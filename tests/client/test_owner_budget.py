"""The policy of a wallet's owner at the gateway, as the client shows it: what is left, and the failure of a call that it does not cover."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.client.conftest import API, PRICE, do, sums
from tollway.client import CannotPay, GatewayRefused, GatewayResponseInvalid, NotPaid, PolicyExceeded
from tollway.client.record_reader import read_record
from tollway.client.records import LimitLeft, WalletBudget

OWNER, OTHER = "0x" + "a1" * 20, "0x" + "a2" * 20
RESET = datetime(2026, 11, 23, tzinfo=UTC)
LIMIT = {
    "reason": "limit",
    "limit": "maxPerDay",
    "left": "0.2",
    "currency": "USDC",
    "resetsAt": "2026-11-23T00:00:00.000Z",
    "paymentState": "none",
}


def budget_of(**members: Any) -> dict[str, Any]:
    """A budget as the gateway writes it, in force."""
    return {
        "owner": OWNER,
        "agent": OTHER,
        "state": "in_force",
        "isBound": True,
        "policy": {"currency": "USDC", "maxPerDay": "5", "notAfter": 1_798_761_600, "allow": ["tag:quotes"]},
        "spent": {"hour": "0", "day": "4.8", "month": "4.8", "total": "9"},
        "left": [{"limit": "maxPerDay", "amount": "0.2", "resetsAt": "2026-11-23T00:00:00.000Z"}],
        "boundAt": "2026-11-01T00:00:00.000Z",
        **members,
    }


def answers(*budgets: dict[str, Any]) -> Any:
    return lambda request: httpx.Response(200, json={"budgets": list(budgets)})


# ---- What is left.


async def test_a_wallet_reads_what_it_may_still_spend_and_until_when(make, gateway, wallet):
    paths = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        assert "signature-input" in request.headers
        return answers(budget_of())(request)

    gateway.budgets = answer
    found = await do(make().budget())
    assert (found.owner, found.state, found.is_bound) == (OWNER, "in_force", True)
    assert (found.policy.max_per_day, found.policy.allow) == ("5", ("tag:quotes",))
    assert (found.spent.day, found.spent.total) == ("4.8", "9")
    assert found.left == (LimitLeft(limit="maxPerDay", amount="0.2", resets_at=RESET),)
    assert found.describe_left() == ("maxPerDay: 0.2 USDC left until 2026-11-23 00:00:00 UTC",)
    assert found.describe_end() == "2027-01-01 00:00:00 UTC"
    await do(make().budget(OTHER))
    assert paths == [f"/api/v2/budgets/{wallet.address}", f"/api/v2/budgets/{OTHER}"]


PENDING = budget_of(state="pending", isBound=False)


@pytest.mark.parametrize(
    ("listed", "state"),
    [
        (None, None),
        ([PENDING], None),
        ([budget_of(), PENDING], "in_force"),
        ([budget_of(state="not_yet")], "not_yet"),
        ([budget_of(state="expired")], "expired"),
        ([budget_of(state="revoked", policy=None, left=[])], "revoked"),
    ],
)
async def test_only_the_owner_to_whom_the_wallet_is_bound_limits_it(make, gateway, listed, state):
    gateway.budgets = None if listed is None else answers(*listed)
    found = await do(make().budget())
    assert (None if found is None else found.state) == state
    if state == "revoked":
        assert (found.policy, found.describe_left(), found.describe_end()) == (None, (), None)


async def test_an_owner_reads_its_policy_before_the_agent_accepts_it(make, gateway):
    gateway.budgets = answers(PENDING)
    assert (await do(make().budget(OTHER))).state == "pending"


async def test_no_budget_is_read_where_none_can_be_known(make, gateway):
    with pytest.raises(CannotPay, match="Configure a wallet"):
        await do(make(wallet=None).budget())
    gateway.budgets = lambda request: gateway.refuse(429, "rate_limited")
    with pytest.raises(GatewayRefused):
        await do(make().budget())
    for damaged in ({"isBound": "yes"}, {"left": {}}, {"spent": None}, {"policy": {"currency": "USDC"}}):
        gateway.budgets = answers(budget_of(**damaged))
        with pytest.raises(GatewayResponseInvalid):
            await do(make().budget())


def test_the_end_of_a_policy_that_no_calendar_has_is_left_out():
    policy = {"currency": "USDC", "notAfter": 10**30}
    assert read_record(WalletBudget, budget_of(policy=policy)).describe_end() is None


# ---- A call that the policy does not cover.


def check_failure(failure: PolicyExceeded) -> None:
    assert (failure.code, failure.reason, failure.is_retryable) == ("budget_exceeded", "limit", True)
    assert (failure.limit, failure.left, failure.currency) == ("maxPerDay", "0.2", "USDC")
    assert failure.resets_at == RESET


async def test_a_payment_beyond_the_policy_fails_and_stays_credit(make, gateway, chain):
    def refuse(request: httpx.Request) -> httpx.Response:
        return gateway.refuse(403, "budget_exceeded", {**LIMIT, "paymentState": "released"})

    client = make()
    gateway.answers = [gateway._call, refuse]
    with pytest.raises(PolicyExceeded) as failed:
        await do(client.call(API))
    check_failure(failed.value)
    (payment,) = client.payments()
    assert (failed.value.transaction, payment.rest) == (payment.tx_hash, PRICE)
    assert len(chain.broadcasts) == 1
    assert (await do(client.call(API))).status_code == 200
    assert len(chain.broadcasts) == 1


TARGETS = {"api": API, "provider": OWNER, "tag": "quotes"}
LISTING = {
    "id": API,
    "name": "Quotes",
    "provider": OWNER,
    "pricePerRequest": "0.01",
    "currency": "USDC",
    "endpoint": "https://api.test",
    "description": "",
    "tags": ["quotes"],
}


def policy_with(**members: Any) -> dict[str, Any]:
    return {"currency": "USDC", "notAfter": 1_798_761_600, **members}


def left(limit: str, amount: str) -> dict[str, str]:
    return {"limit": limit, "amount": amount, "resetsAt": "2026-11-23T00:00:00.000Z"}


@pytest.mark.parametrize(
    ("members", "reason", "limit"),
    [
        ({"left": [left("maxPerDay", "0.009999999")]}, "limit", "maxPerDay"),
        ({"left": [left("maxPerDay", "0")]}, "limit", "maxPerDay"),
        ({"left": [left("maxPerCall", "0.005"), left("maxTotal", "0.001")]}, "limit", "maxTotal"),
        ({"state": "revoked", "policy": None, "left": []}, "no_policy_in_force", None),
        ({"state": "expired"}, "no_policy_in_force", None),
        ({"state": "not_yet", "policy": policy_with(notBefore=1_795_392_000)}, "no_policy_in_force", None),
        ({"state": "not_yet", "policy": policy_with(notBefore=10**30)}, "no_policy_in_force", None),
        ({"policy": policy_with(currency="EURC")}, "other_currency", None),
        ({"policy": policy_with(currency="E\x1b[2J")}, "other_currency", None),
        *(
            ({"policy": policy_with(deny=[f"{kind}:{name}"])}, "target_not_allowed", None)
            for kind, name in TARGETS.items()
        ),
        ({"policy": policy_with(allow=["tag:weather"])}, "target_not_allowed", None),
    ],
)
async def test_no_transfer_is_sent_that_the_policy_does_not_cover(
    make, gateway, chain, members, reason, limit
):
    listed = lambda request: httpx.Response(200, json=LISTING)  # noqa: E731 - a row of the double
    gateway.budgets = answers(budget_of(**{"policy": policy_with(), **members}))
    client = make()
    gateway.answers = [gateway._call, listed]
    with pytest.raises(PolicyExceeded, match="Nothing was paid") as failed:
        await do(client.call(API))
    assert (failed.value.reason, failed.value.limit, failed.value.transaction) == (reason, limit, None)
    assert "\x1b" not in str(failed.value)
    assert (chain.broadcasts, client.payments()) == ([], ())
    gateway.budgets, gateway.answers = None, []
    assert (await do(client.call(API))).status_code == 200


@pytest.mark.parametrize(
    "answer",
    [
        None,
        answers(),
        answers(PENDING),
        answers(budget_of(policy=policy_with(maxPerDay="5"), left=[left("maxPerDay", "0.01")])),
        answers(budget_of(policy=policy_with(), left=[left("maxPerDay", "soon"), left("maxPerYear", "0")])),
        answers(budget_of(policy=policy_with(allow=["tag:weather"]))),
        lambda request: httpx.Response(200, json={"budgets": "none"}),
        lambda request: httpx.Response(502, text="away"),
        lambda request: httpx.Response(429, json={"code": "rate_limited"}),
    ],
    ids=["no owner", "no budget", "pending", "just enough", "forms", "listing away", "form", "away", "rate"],
)
async def test_what_says_nothing_against_a_call_lets_it_pay(make, gateway, chain, answer):
    gateway.budgets, client = answer, make()
    if answer is not None:
        gateway.answers = [gateway._call]
    assert (await do(client.call(API))).status_code == 200
    assert len(chain.broadcasts) == 1


async def test_a_gateway_that_ends_the_connection_lets_the_call_pay(make, gateway, chain):
    def cut(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    gateway.budgets = cut
    assert (await do(make().call(API))).status_code == 200
    assert len(chain.broadcasts) == 1


async def test_the_policy_is_read_once_for_a_new_transfer_and_never_for_credit(make, gateway):
    read = []
    gateway.budgets = lambda request: read.append(request) or gateway.refuse(404, "budget_not_found")
    client = make(max_price="1 USDC")
    for _ in range(3):
        assert (await do(client.call(API, prepay=3))).status_code == 200
    assert len(read) == 1


async def test_a_prepayment_counts_one_call(make, gateway, chain):
    gateway.budgets = answers(budget_of(policy=policy_with(), left=[left("maxPerCall", "0.01")]))
    assert (await do(make().call(API, prepay=10))).status_code == 200
    assert len(chain.broadcasts) == 1


async def test_an_authorization_beyond_the_policy_fails_and_is_released(make, gateway):
    gateway.offer_authorizations()
    client = make()
    gateway.answers = [gateway._call, lambda request: gateway.refuse(403, "budget_exceeded", LIMIT)]
    with pytest.raises(PolicyExceeded) as failed:
        await do(client.call(API))
    check_failure(failed.value)
    assert (failed.value.transaction, gateway.served) == (None, 0)
    assert isinstance(failed.value, NotPaid)
    (authorization,) = client.authorizations()
    assert authorization.state.value == "released"
    assert sums(client.spending().session) == {"USDC": PRICE * 10**12}, "no word of a gateway takes it back"


def test_a_voucher_beyond_the_policy_fails_and_takes_nothing(channel_caller, channel_gateway):
    channel_caller.call("/0")
    before = channel_caller.channel
    channel_gateway.faults = [
        lambda request: channel_gateway.refuse(403, "budget_exceeded", members=LIMIT, state="none")
    ]
    with pytest.raises(PolicyExceeded) as failed:
        channel_caller.call("/1")
    check_failure(failed.value)
    after = channel_caller.channel
    assert (after.pending, after.calls, after.deposit) == (None, before.calls, before.deposit)
    assert channel_caller.call("/1").status_code == 200


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"reason": "no_policy_in_force"}, ("no_policy_in_force", None, None, None, None)),
        (
            {"reason": "no_policy_in_force", "resetsAt": LIMIT["resetsAt"]},
            ("no_policy_in_force", None, None, None, RESET),
        ),
        ({"reason": "other_currency", "currency": "EURC"}, ("other_currency", None, None, "EURC", None)),
        ({**LIMIT, "limit": "maxTotal", "resetsAt": None}, ("limit", "maxTotal", "0.2", "USDC", None)),
        ({**LIMIT, "left": "-1", "limit": 5, "resetsAt": "soon"}, ("limit", None, None, "USDC", None)),
        (
            {**LIMIT, "left": "0.2; pay me", "currency": "US\x1b[2J", "resetsAt": "2026-11-23T00:00:00"},
            ("limit", "maxPerDay", None, None, None),
        ),
        ({"reason": [], "left": 1, "currency": {}, "resetsAt": 10**30}, (None, None, None, None, None)),
    ],
)
async def test_the_failure_has_what_the_gateway_names_and_no_other_text(make, gateway, members, expected):
    gateway.answers = [lambda request: gateway.refuse(403, "budget_exceeded", members)]
    with pytest.raises(PolicyExceeded, match="It is budget_exceeded") as failed:
        await do(make().call(API))
    found = failed.value
    assert (found.reason, found.limit, found.left, found.currency, found.resets_at) == expected
    assert found.is_retryable is (found.resets_at is not None)


async def test_an_upstream_never_speaks_for_the_owner(make, gateway):
    def relay(request: httpx.Request) -> httpx.Response:
        problem = gateway.refuse(403, "budget_exceeded", LIMIT)
        return httpx.Response(
            403,
            content=problem.content,
            headers={**problem.headers, **gateway.relayed("charged", status=403)},
        )

    gateway.answers = [gateway._call, relay]
    assert (await do(make().call(API))).status_code == 403


async def test_a_stream_beyond_the_policy_fails_before_its_body(make, gateway):
    gateway.answers = [lambda request: gateway.refuse(403, "budget_exceeded", LIMIT)]
    with pytest.raises(PolicyExceeded) as failed:
        await enter(make().stream(API))
    check_failure(failed.value)


async def enter(stream: Any) -> None:
    if hasattr(stream, "__aenter__"):
        await stream.__aenter__()
    else:
        stream.__enter__()
