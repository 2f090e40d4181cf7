"""One transaction, read again for an operator: what each chain says, and what the ledger has of it. It changes nothing: the provider of a call decides its price."""

from collections.abc import Mapping
from typing import Any, assert_never

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tollway.chain.networks import ChainRules, NetworkProfile, find_asset
from tollway.chain.port import ChainFacts, NotMined
from tollway.errors import ChainUnavailable, NodesDisagree
from tollway.ids import ChainId, TxHash, format_network
from tollway.ledger.records import Payment
from tollway.money import format_decimal
from tollway.payments.transaction_inspection import (
    InspectedTransaction,
    TransactionFinding,
    TransactionInspector,
    list_transfers,
    recheck,
)
from tollway.payments.transaction_rules import NoLongerPays, NotCanonical, StillPays
from tollway.web.http.query import format_time
from tollway.web.operator.operator_app import NO_STORE, refuse_form, session_of

TRANSFERS_SHOWN = 50


class AdminTransactions:
    """The look at one transaction. Safe to use from many tasks at once."""

    def __init__(
        self,
        inspector: TransactionInspector,
        *,
        rules: Mapping[ChainId, ChainRules],
        profiles: Mapping[ChainId, NetworkProfile],
    ) -> None:
        self._inspector = inspector
        self._rules = rules
        self._profiles = profiles

    async def get(self, request: Request) -> Response:
        """`GET /admin/api/transactions/{transaction}`."""
        content = await self.describe(request, request.path_params["transaction"])
        return JSONResponse(content, headers=NO_STORE)

    async def describe(self, request: Request, text: str) -> dict[str, Any]:
        """Reads the transaction now. Raises Refusal (`invalid_request`, `rate_limited`) and `StorageUnavailable`."""
        try:
            tx_hash = TxHash.parse(text.strip())
        except ValueError as exc:
            raise refuse_form(f"The transaction is not understood: {exc}.") from exc
        reader = f"operator {session_of(request).actor}"
        found = await self._inspector.inspect(tx_hash, reader=reader)
        return inspected_json(found, self._rules, self._profiles)


def inspected_json(
    found: InspectedTransaction,
    rules: Mapping[ChainId, ChainRules],
    profiles: Mapping[ChainId, NetworkProfile],
) -> dict[str, Any]:
    """The transaction for an operator. Pure."""
    held_ms = found.recorded.held_before_ms
    return {
        "transaction": str(found.tx_hash),
        "networks": [
            {"network": format_network(chain_id), "name": profiles[chain_id].name}
            | _answer_json(answer, rules[chain_id])
            for chain_id, answer in found.answers.items()
        ],
        "payments": [_payment_json(found, payment, rules) for payment in found.recorded.payments],
        "isAdmitted": found.recorded.is_admitted,
        "heldBefore": None if held_ms is None else format_time(held_ms),
    }


def _answer_json(answer: TransactionFinding, rules: ChainRules) -> dict[str, Any]:
    """`state`: disputed, away, unknown, pending, reorged, failed, mined or final."""
    match answer:
        case NodesDisagree():
            return {"state": "disputed"}
        case ChainUnavailable():
            return {"state": "away"}
        case NotMined(is_pending=is_pending):
            return {"state": "pending" if is_pending else "unknown"}
        case ChainFacts():
            transfers = list_transfers(answer, rules)
            return {
                "state": _state_of(answer),
                "blockNumber": answer.block_number,
                "blockTime": format_time(answer.block_time * 1000),
                "confirmations": max(answer.confirmations, 0),
                "sender": str(answer.sender),
                "recipient": None if answer.recipient is None else str(answer.recipient),
                "transferCount": len(transfers),
                "transfers": [
                    {
                        "currency": one.asset.symbol,
                        "amount": format_decimal(one.base_units, decimals=one.asset.decimals),
                        "from": str(one.sender),
                        "to": str(one.recipient),
                    }
                    for one in transfers[:TRANSFERS_SHOWN]
                ],
            }
        case _:
            assert_never(answer)


def _state_of(facts: ChainFacts) -> str:
    if facts.canonical_hash != facts.block_hash:
        return "reorged"
    if not facts.succeeded:
        return "failed"
    return "final" if facts.finalized_number >= facts.block_number else "mined"


def _payment_json(
    found: InspectedTransaction, payment: Payment, rules: Mapping[ChainId, ChainRules]
) -> dict[str, Any]:
    """A recorded payment, and `chain`: what the chain says of it now. `chainValue`: None unless it still pays."""
    asset = find_asset(rules, payment.chain_id, payment.asset)

    def amount(units: int) -> str:
        return str(units) if asset is None else asset.format_units(units)

    verdict = recheck(found, payment, rules)
    return {
        "network": format_network(payment.chain_id),
        "currency": payment.asset if asset is None else asset.symbol,
        "payer": str(payment.payer),
        "payee": str(payment.payee),
        "value": amount(payment.value_units),
        "remaining": amount(payment.remaining_units),
        "state": payment.state.value,
        "isHeld": payment.is_held,
        "calls": payment.calls,
        "chain": _verdict_of(verdict),
        "chainValue": amount(verdict.payment.value_units) if isinstance(verdict, StillPays) else None,
    }


def _verdict_of(verdict: StillPays | NotCanonical | NoLongerPays | None) -> str:
    """pays, not_deep, reorged, not_read, or the reason why it pays no longer."""
    match verdict:
        case None:
            return "not_read"
        case StillPays(is_deep=is_deep):
            return "pays" if is_deep else "not_deep"
        case NotCanonical():
            return "reorged"
        case NoLongerPays(reason=reason):
            return str(reason)
        case _:
            assert_never(verdict)
