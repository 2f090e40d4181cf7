"""The lines of an audit: closed hours, and what each held call and payment holds."""

from dataclasses import replace

import pytest

from tollway.chain.networks import PRESETS
from tollway.cli.audit_report import describe_held, describe_report
from tollway.config.networks import parse_network
from tollway.ids import Address, CallId, ChainId
from tollway.ledger.ledger import AuditReport, HeldMoney

BALANCED = AuditReport(payments=3, calls=5, wrong=(), held_calls=(), held_payments=(), closed_periods=24)
RULES = PRESETS["sandbox"].rules()
NETWORK = parse_network({"preset": "sandbox", "rpc_urls": ["http://127.0.0.1:1"]})
PAYER = Address(b"\x0a" * 20)
NOW_MS = 1_800_000_000_000
CALL = HeldMoney(
    is_call=True,
    id="call_1",
    payer=PAYER,
    chain_id=RULES.chain_id,
    asset=RULES.assets[0].key,
    units=10_000,
    since_ms=NOW_MS - 3 * 3_600_000,
)
PAYMENT = replace(CALL, is_call=False, id="0x12", units=2_500_000, since_ms=NOW_MS - 5 * 86_400_000)


@pytest.mark.parametrize(
    ("report", "lines"),
    [
        (BALANCED, ["24 closed hours and days equal their calls"]),
        (
            replace(BALANCED, marked_periods=1),
            ["24 closed hours and days equal their calls; 1 wait to be written again"],
        ),
        (
            replace(BALANCED, wrong_periods=("one", "two")),
            ["CLOSED HOURS OR DAYS DIFFER FROM THEIR CALLS: 24 compared", "wrong: one", "wrong: two"],
        ),
    ],
)
def test_audit_says_whether_closed_hours_equal_their_calls(report: AuditReport, lines: list[str]) -> None:
    assert list(describe_report(report, [], payments_are="held"))[1:] == lines


@pytest.mark.parametrize(
    ("held", "line", "amount"),
    [
        (CALL, f"held call: call_1, 0.01 USDC of {PAYER} for 3 h", "0.01"),
        (PAYMENT, f"held payment: 0x12, 2.5 USDC of {PAYER} for 5 d", "2.5"),
        (replace(CALL, chain_id=ChainId(1)), f"held call: call_1, of {PAYER} for 3 h", None),
        (replace(CALL, chain_id=None, asset=None, payer=None, units=0), "held call: call_1, for 3 h", None),
        (replace(CALL, since_ms=NOW_MS + 9), f"held call: call_1, 0.01 USDC of {PAYER} for 0 s", "0.01"),
    ],
)
def test_held_money_has_its_amount_its_payer_and_its_age(
    held: HeldMoney, line: str, amount: str | None
) -> None:
    calls, payments = ((CallId(held.id),), ()) if held.is_call else ((), (held.id,))
    report = replace(BALANCED, held=(held,), held_calls=calls, held_payments=payments)
    (described,) = describe_held(report, [NETWORK], now_ms=NOW_MS)
    assert list(describe_report(report, [described], payments_are="held"))[2:] == [line]
    assert (described["kind"], described["amount"]) == ("call" if held.is_call else "payment", amount)
