"""One call as it was wished for: what may be sent, and what makes two runs the same request."""

import pytest

from tollway.client.call_plan import CallOptions, plan_call
from tollway.client.checkout import Rules
from tollway.client.quote import Cap

DEFAULTS = Rules(max_price=Cap.parse("1 USDC"), rail="tx")


def plan(path: str = "/quote/ETH", api_id: str = "api_1", **options):
    return plan_call("http://gw.test", api_id, path, CallOptions(**options), defaults=DEFAULTS)


SAME = {"method": "POST", "content": b"body", "idempotency_key": "k"}


def test_the_same_request_has_the_same_digest_whatever_it_may_cost() -> None:
    digest = plan(**SAME).digest("http://gw.test")
    assert plan(**SAME).digest("http://gw.test") == digest
    assert (
        plan(**SAME, max_price="9 USDC", rail="x402", headers={"Accept": "x"}).digest("http://gw.test")
        == digest
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/quote/BTC"},
        {"path": "/quote/ETH?x=1"},
        {"api_id": "api_2"},
        {"method": "PUT"},
        {"content": b"other"},
        {"idempotency_key": "k2"},
        {"idempotency_key": None},
    ],
)
def test_any_other_request_has_another(changes: dict[str, object]) -> None:
    assert plan(**{**SAME, **changes}).digest("http://gw.test") != plan(**SAME).digest("http://gw.test")
    assert plan(**SAME).digest("http://other.test") != plan(**SAME).digest("http://gw.test")


def test_parts_cannot_run_into_each_other() -> None:
    first = plan(method="POST", content=b"ab", idempotency_key="c").digest("g")
    assert plan(method="POST", content=b"b", idempotency_key="ca").digest("g") != first


@pytest.mark.parametrize(
    ("options", "is_repeatable"),
    [
        ({}, True),
        ({"method": "head"}, True),
        ({"method": "POST"}, False),
        ({"method": "POST", "idempotency_key": "k"}, True),
        ({"method": "POST", "headers": {"idempotency-key": "k"}}, True),
    ],
)
def test_safe_methods_and_keys_may_run_twice(options: dict[str, object], is_repeatable: bool) -> None:
    assert plan(**options).rules.is_repeatable is is_repeatable


def test_a_call_has_its_own_rail_or_the_clients() -> None:
    assert (plan().rules.rail, plan(rail="x402").rules.rail) == ("tx", "x402")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_id": "a/b"}, "API id"),
        ({"path": "/../../apis"}, "leaves the listing"),
        ({"rail": "mpp"}, "rail"),
        ({"json": {}, "content": b"x"}, "either json or content"),
        ({"headers": {"Payment-Signature": "x"}}, "payment headers"),
        ({"headers": {"X-PAYMENT": "x"}}, "payment headers"),
        ({"headers": {"X-Payment-Tx": "x"}}, "payment headers"),
    ],
)
def test_refuses_what_cannot_be_sent(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(**options)
