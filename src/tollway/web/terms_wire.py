"""The terms of a 402 as they go out: our own `payment` member, and the same offer in the dialects of x402 and MPP.

Shapes only. What is owed, and what can be settled now, was decided before; the law about which refusals may carry terms
is the passage's.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tollway.chain.rules import ChainRules
from tollway.discovery.bazaar import BAZAAR, describe_call
from tollway.errors import Problem
from tollway.gateway.cashier import find_route
from tollway.gateway.exchange import IncomingCall, Offer
from tollway.identifiers import ChainId
from tollway.identity.notary import Notary
from tollway.money import Asset
from tollway.payments.challenge import Challenge, build_challenge
from tollway.payments.mpp import Challenger
from tollway.payments.offer_receipt import OFFER_RECEIPT, sign_offers
from tollway.payments.x402 import (
    PAYMENT_IDENTIFIER,
    PAYMENT_IDENTIFIER_EXTENSION,
    REQUIRED_HEADER,
    Resource,
)
from tollway.registry.listing import Listing
from tollway.registry.pricing import list_options
from tollway.web.listing_wire import option_json
from tollway.web.wire import format_time

SALT_BYTES = 12


class TermsWire:
    """One per process. `challenger` None: MPP is off. `is_x402` False: x402 is."""

    def __init__(
        self,
        rules: Mapping[ChainId, ChainRules],
        *,
        public_url: str,
        challenger: Challenger | None,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        is_x402: bool = True,
        notary: Notary | None = None,
        offer_valid_s: int = 600,
    ) -> None:
        """`notary` signs the offers, which are good for `offer_valid_s`."""
        self._rules = rules
        self._public_url = public_url
        self._challenger = challenger
        self._now_ms = now_ms
        self._entropy = entropy
        self._is_x402 = is_x402
        self._notary = notary
        self._offer_valid_s = offer_valid_s

    def terms_json(self, offer: Offer) -> dict[str, Any]:
        """`payment`: every number that a client needs in order to pay."""
        listing = offer.shelf.listing
        quoted = offer.requirements if self._is_x402 else ()
        settled = frozenset(requirement.asset for requirement in quoted)
        options = [
            option_json(option)
            for chain_id in listing.networks
            if chain_id in self._rules
            for option in list_options(
                listing,
                offer.price,
                assets=self._rules[chain_id].assets,
                confirmations_for=self._rules[chain_id].confirmations_for,
                timeout_s=listing.timeout_s,
                is_offered=lambda asset, units: _is_settled(asset, settled),
            )
        ]
        return {
            "amount": offer.price.text,
            "currency": listing.currency,
            "expiresAt": format_time(offer.expires_ms),
            "options": options,
        }

    def challenge(self, offer: Offer, call: IncomingCall, problem: Problem) -> Challenge:
        """`PAYMENT-REQUIRED`, `WWW-Authenticate: Payment`, and the body's members of x402 v1."""
        resource = self._resource(offer.shelf.listing, call)
        challenge = build_challenge(
            offer.requirements,
            resource,
            error=problem.reason or problem.code.value,
            extensions=self._extensions(offer, call, resource),
            challenger=self._challenger,
            route=find_route(call),
            now_s=self._now_ms() / 1000,
            salt=self._entropy(SALT_BYTES),
        )
        if self._is_x402:
            return challenge
        return Challenge(headers=[one for one in challenge.headers if one[0] != REQUIRED_HEADER], members={})

    def _resource(self, listing: Listing, call: IncomingCall) -> Resource:
        """The public URL that was asked for, byte for byte: clients compare it."""
        return Resource(
            url=call.public_url(self._public_url),
            description=listing.description,
            service_name=listing.name,
            tags=listing.tags,
        )

    def _extensions(
        self, offer: Offer, call: IncomingCall, resource: Resource
    ) -> dict[str, Mapping[str, Any]]:
        """The provider's own document says what the call takes; sign-in is not among them, since it grants nothing
        here."""
        listing = offer.shelf.listing
        extensions: dict[str, Mapping[str, Any]] = {PAYMENT_IDENTIFIER: PAYMENT_IDENTIFIER_EXTENSION}
        described = describe_call(call.method, path=call.target.rest, openapi=listing.openapi)
        if described is not None:
            extensions[BAZAAR] = described
        if self._notary is not None:
            extensions[OFFER_RECEIPT] = sign_offers(
                offer.requirements,
                resource_url=resource.url,
                now_s=self._now_ms() / 1000,
                valid_s=self._offer_valid_s,
                sign=self._notary.sign,
            )
        return extensions


def _is_settled(asset: Asset, settled: frozenset[Asset]) -> bool:
    return asset in settled
