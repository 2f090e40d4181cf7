"""A facilitator by URL: asked whether it would settle an authorisation, and told to.

What it says of the outcome decides nothing: only the token's own state and the chain's logs do. It sees the
authorisation, never the request that is paid with it. The line to it is a port; `outbound/facilitator_line.py` is one.
"""

import json
from typing import Any, Protocol

import structlog
from pydantic_core import from_json

from tollway.errors import ChainUnavailable
from tollway.identifiers import TxHash
from tollway.ledger.authorization import Authorization
from tollway.money import Asset
from tollway.payments.settlement_rules import FacilitatorRules

X402_VERSION = 2
REASON_LENGTH_MAX = 100

_log = structlog.get_logger(__name__)


class FacilitatorLine(Protocol):
    """One bounded request to a facilitator. Safe to use from many tasks at once."""

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        """The body of the answer, whatever its status, within a deadline and a maximum. Raises `ChainUnavailable`."""
        ...


class RemoteFacilitator:
    """Safe to use from many tasks at once."""

    def __init__(self, rules: FacilitatorRules, line: FacilitatorLine) -> None:
        self._rules = rules
        self._line = line

    async def verify(self, authorization: Authorization, asset: Asset, *, timeout_s: int) -> str | None:
        """Why it would not settle this, or None when it would. Raises `ChainUnavailable` when it does not say."""
        told = await self._ask("verify", authorization, asset, timeout_s, self._rules.verify_headers)
        if told.get("isValid") is True:
            return None
        if told.get("isValid") is not False:
            raise ChainUnavailable("the facilitator gave no usable answer")
        return _text(told.get("invalidReason")) or "facilitator_refused"

    async def settle(self, authorization: Authorization, asset: Asset, *, timeout_s: int) -> TxHash | None:
        """Tells it to settle. The transaction that it names, which proves nothing; None when it names none. Never raises
        for what it does or leaves undone: from here on money may move."""
        try:
            told = await self._ask("settle", authorization, asset, timeout_s, self._rules.settle_headers)
            tx_hash = TxHash.parse(str(told.get("transaction")))
        except (ChainUnavailable, ValueError) as exc:
            _log.warning("facilitator_unclear", detail=str(exc)[:REASON_LENGTH_MAX])
            return None
        if told.get("success") is not True:
            _log.warning("facilitator_says_failed", reason=_text(told.get("errorReason")))
        return tx_hash

    async def _ask(
        self,
        verb: str,
        authorization: Authorization,
        asset: Asset,
        timeout_s: int,
        headers: tuple[tuple[str, str], ...],
    ) -> dict[str, Any]:
        content = json.dumps(describe_payment(authorization, asset, timeout_s=timeout_s)).encode()
        answer = await self._line.post(f"{self._rules.url.rstrip('/')}/{verb}", content, headers=headers)
        try:
            told = from_json(answer, allow_inf_nan=False)  # it refuses deep nesting by itself
        except ValueError as exc:
            raise ChainUnavailable("the facilitator gave no usable answer") from exc
        if not isinstance(told, dict):
            raise ChainUnavailable("the facilitator gave no usable answer")
        return told


def describe_payment(authorization: Authorization, asset: Asset, *, timeout_s: int) -> dict[str, Any]:
    """The body of `/verify` and `/settle` (x402 v2, scheme `exact`, EIP-3009), whatever dialect the caller spoke."""
    assert asset.domain is not None
    requirements = {
        "scheme": "exact",
        "network": asset.network,
        "amount": str(authorization.base_units),
        "asset": str(authorization.token),
        "payTo": str(authorization.payee),
        "maxTimeoutSeconds": timeout_s,
        "extra": {"name": asset.domain.name, "version": asset.domain.version},
    }
    signed = {
        "from": str(authorization.payer),
        "to": str(authorization.payee),
        "value": str(authorization.base_units),
        "validAfter": str(authorization.valid_after),
        "validBefore": str(authorization.valid_before),
        "nonce": "0x" + authorization.nonce.hex(),
    }
    return {
        "x402Version": X402_VERSION,
        "paymentPayload": {
            "x402Version": X402_VERSION,
            "payload": {"signature": "0x" + authorization.signature.hex(), "authorization": signed},
            "accepted": requirements,
        },
        "paymentRequirements": requirements,
    }


def _text(raw: object) -> str:
    """A stranger's words, short and printable."""
    text = raw if isinstance(raw, str) else ""
    return "".join(c for c in text[:REASON_LENGTH_MAX] if c.isascii() and c.isprintable())
