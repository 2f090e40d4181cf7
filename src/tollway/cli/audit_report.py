"""The result of `tollway gateway audit` as sentences and as JSON: the verdict, what is wrong, and each call and payment that holds money, with its amount, payer and age."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tollway.chain.networks import ChainRules, find_asset
from tollway.config.networks import NetworkSettings
from tollway.ids import ChainId
from tollway.ledger.ledger import AuditReport, HeldMoney
from tollway.web.http.query import format_time
from tollway.web.operator.findings import format_age


def describe_report(
    report: AuditReport, held: Sequence[Mapping[str, Any]], *, payments_are: str
) -> Iterator[str]:
    """The lines of the command. `held`: of `describe_held`. `payments_are`: held, or released by this command."""
    verdict = "the ledger balances" if report.is_balanced else "THE LEDGER DOES NOT BALANCE"
    yield f"{verdict}: {report.payments} payments, {report.calls} calls"
    yield from (f"wrong: {line}" for line in report.wrong)
    yield from _describe_periods(report)
    details = {one["id"]: _summarise(one) for one in held}
    yield from (f"held call: {one}{details.get(one, '')}" for one in report.held_calls)
    yield from (f"{payments_are} payment: {one}{details.get(one, '')}" for one in report.held_payments)


def describe_held(
    report: AuditReport, networks: Iterable[NetworkSettings], *, now_ms: int
) -> list[dict[str, Any]]:
    """Each call and payment that holds money, as JSON. `amount` None: the settings do not have its asset, or the call is of a free API."""
    rules = {network.rules.chain_id: network.rules for network in networks}
    return [_describe_one(one, rules, now_ms=now_ms) for one in report.held]


def _describe_one(held: HeldMoney, rules: Mapping[ChainId, ChainRules], *, now_ms: int) -> dict[str, Any]:
    asset = None
    if held.chain_id is not None and held.asset is not None:
        asset = find_asset(rules, held.chain_id, held.asset)
    return {
        "kind": "call" if held.is_call else "payment",
        "id": held.id,
        "amount": None if asset is None else asset.format_units(held.units),
        "currency": None if asset is None else asset.symbol,
        "payer": None if held.payer is None else str(held.payer),
        "since": format_time(held.since_ms),
        "age": format_age(max(0, now_ms - held.since_ms) / 1000),
    }


def _summarise(held: Mapping[str, Any]) -> str:
    amount = "" if held["amount"] is None else f" {held['amount']} {held['currency']}"
    payer = "" if held["payer"] is None else f" of {held['payer']}"
    return f",{amount}{payer} for {held['age']}"


def _describe_periods(report: AuditReport) -> Iterator[str]:
    """The verdict about closed hours and days. A difference is no reason to hold money: calls decide, sums only tell."""
    waiting = f"; {report.marked_periods} wait to be written again" if report.marked_periods else ""
    if not report.wrong_periods:
        yield f"{report.closed_periods} closed hours and days equal their calls{waiting}"
        return
    yield f"CLOSED HOURS OR DAYS DIFFER FROM THEIR CALLS: {report.closed_periods} compared{waiting}"
    yield from (f"wrong: {line}" for line in report.wrong_periods)


def describe_rewrite(count: int) -> str:
    if not count:
        return "no closed hour or day has to be written again"
    return f"closed hours and days to be written again: {count}; the gateway that leads writes up to 500 of them a minute. Run the audit again until it names none"
