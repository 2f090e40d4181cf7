"""`x-payment-info`: what an operation of an OpenAPI document costs, in the two shapes that crawlers read (AgentCash's
`price` and `protocols`, MPP's `offers`). Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tollway.money import Price

OFFERS_MAX = 8

_DOLLARS = frozenset({"USDC", "USDT", "DAI", "USDS", "PYUSD"})
_CODE = re.compile(r"[A-Z]{3}")


def payment_info(
    price: Price, currency: str, options: Sequence[Mapping[str, Any]], *, has_mpp: bool
) -> dict[str, Any] | None:
    """`options`: every way to pay that price, as a 402 shows them. None for a free operation.

    Crawlers know authorisations only; the way by a transaction stands in the 402 and in the agent document.
    """
    if price.is_free:
        return None
    signed = [option for option in options if option.get("rail") == "x402" and "token" in option]
    shown = "USD" if currency in _DOLLARS else currency
    info: dict[str, Any] = {}
    if _CODE.fullmatch(shown):
        info["price"] = {"mode": "fixed", "currency": shown, "amount": price.text}
    protocols: list[dict[str, Any]] = [{"x402": {}}] if signed else []
    if signed and has_mpp:
        mpp = {"method": "evm", "intent": "charge", "currency": signed[0]["token"]}
        protocols.append({"mpp": mpp})
        info["offers"] = [
            {
                "intent": "charge",
                "method": "evm",
                "amount": option["amount"],
                "currency": option["token"],
                "description": f"{price.text} {currency} on {option['network']}",
            }
            for option in signed[:OFFERS_MAX]
        ]
    info["protocols"] = protocols
    return info
