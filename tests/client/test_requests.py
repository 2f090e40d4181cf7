"""The plan of a call: which calls can be sent, and which two runs are the same request."""

import httpx
import pytest

from tollway.client.errors import HeaderInvalid
from tollway.client.quote import Cap
from tollway.client.requests import CallOptions, plan_call
from tollway.client.transfer import CallRules

TIMEOUT = httpx.Timeout(5.0)
DEFAULTS = CallRules(max_price=Cap.parse("1 USDC"), rail="tx")


def plan(path: str = "/quote/ETH", api_id: str = "api_1", **options):
    return plan_call(
        "https://gw.test", api_id, path, CallOptions(**options), defaults=DEFAULTS, timeout=TIMEOUT
    )


SAME = {"method": "POST", "content": b"body", "idempotency_key": "k"}


def test_the_same_request_has_the_same_digest_whatever_it_may_cost() -> None:
    digest = plan(**SAME).digest("https://gw.test")
    assert plan(**SAME).digest("https://gw.test") == digest
    assert (
        plan(**SAME, max_price="9 USDC", rail="x402", headers={"Accept": "x"}).digest("https://gw.test")
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
    assert plan(**{**SAME, **changes}).digest("https://gw.test") != plan(**SAME).digest("https://gw.test")
    assert plan(**SAME).digest("http://other.test") != plan(**SAME).digest("https://gw.test")


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
        ({"json": {}, "content": b"x"}, "one body, not content and json"),
        ({"headers": {"Payment-Signature": "x"}}, "payment headers"),
        ({"headers": {"X-PAYMENT": "x"}}, "payment headers"),
        ({"headers": {"X-Payment-Tx": "x"}}, "payment headers"),
    ],
)
def test_refuses_what_cannot_be_sent(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(**options)


@pytest.mark.parametrize(
    "headers",
    [{"Bad Name": "x"}, {"": "x"}, {"N\u00e4me": "x"}, {"X": "a\r\nY: b"}, {"X": "\u00e4"}, {"X:": "x"}],
)
def test_a_header_that_no_request_can_have_is_refused_with_its_code(headers):
    with pytest.raises(HeaderInvalid) as refused:
        plan(headers=headers)
    assert refused.value.code == "header_invalid"
