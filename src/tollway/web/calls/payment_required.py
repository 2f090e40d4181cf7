"""Encodes the terms of a 402: the `payment` member, and the same offer for x402 and MPP.

Formats only: the pipeline decides the price, the payable options, and which refusals have terms. Parts that do not depend on the request are encoded once for
each revision of a listing; URL, expiry, error and MPP's challenge are encoded for each request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tollway.chain.networks import ChainRules
from tollway.discovery.bazaar import BAZAAR, describe_call, find_path
from tollway.errors import Problem
from tollway.gateway.authorization_payment import build_challenge_route
from tollway.gateway.messages import Headers, ProxyRequest, Quote
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import ChainId
from tollway.money import Asset
from tollway.payments.mpp import CHALLENGE_HEADER, Challenger
from tollway.payments.offer_receipt import OFFER_RECEIPT, OFFERS, OFFERS_EXTENSION, sign_offers
from tollway.payments.payment_required import ERROR, URL, JsonTemplate, PaymentRequiredEncoder, TemplateSlot
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.wire import encode_json
from tollway.payments.x402 import (
    PAYMENT_IDENTIFIER,
    PAYMENT_IDENTIFIER_EXTENSION,
    REQUIRED_HEADER,
    Resource,
)
from tollway.registry.listing import Listing, RevisionCache, list_payment_options
from tollway.registry.metering import offer
from tollway.web.api.listing_json import option_json, read_channels
from tollway.web.http.query import format_time

SALT_BYTES = 12
TEMPLATES_CACHED_MAX, HEADERS_CACHED_MAX = 1_024, 1_024
OFFERS_CACHE_S = 5
"""The time for which all requests for one URL get the same signed offers. The last of them gets offers that are valid for so much less."""

_EXPIRES = TemplateSlot("expiresAt")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedQuote:
    """The terms of a refusal, beside its problem. `members`: a JSON object."""

    members: bytes
    headers: Headers


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _QuoteTemplate:
    """The encoded terms of one revision of a listing, for one method, path and price. `encoder` None: no authorisation can pay."""

    members: JsonTemplate
    encoder: PaymentRequiredEncoder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignedHeader:
    """A value of `PAYMENT-REQUIRED`. `made_s`: the time at which its offers were signed."""

    header: bytes = field(repr=False)
    made_s: int


class PaymentRequiredRenderer:
    """Renders quotes, with caches for one process. `challenger` None: MPP is off. `is_x402` False: x402 is off."""

    def __init__(
        self,
        rules: Mapping[ChainId, ChainRules],
        *,
        public_url: str,
        challenger: Challenger | None,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        is_x402: bool = True,
        receipt_signer: ReceiptSigner | None = None,
        offer_valid_s: int = 600,
    ) -> None:
        """`receipt_signer` signs the offers, which are valid for `offer_valid_s`."""
        self._rules = rules
        self._public_url = public_url
        self._challenger = challenger
        self._now_ms = now_ms
        self._entropy = entropy
        self._is_x402 = is_x402
        self._receipt_signer = receipt_signer
        self._offer_valid_s = offer_valid_s
        self._templates: RevisionCache[_QuoteTemplate] = RevisionCache(TEMPLATES_CACHED_MAX)
        self._required: dict[tuple[_QuoteTemplate, str, str], _SignedHeader] = {}

    def render(self, quote: Quote, call: ProxyRequest, problem: Problem) -> RenderedQuote:
        """The members `payment` and those of x402 v1; the headers `PAYMENT-REQUIRED`, `WWW-Authenticate: Payment`, and a `Link` to the agent
        document for clients that know neither protocol."""
        requirements = quote.requirements
        template = self._find_template(quote, requirements, call)
        url = call.public_url(self._public_url)  # clients compare it byte for byte
        error = problem.reason or problem.code.value
        members = template.members.fill(
            {
                URL: encode_json(url),
                ERROR: encode_json(error),
                _EXPIRES: encode_json(format_time(quote.expires_ms)),
            }
        )
        listing = quote.entry.listing
        headers: Headers = [(b"link", self._link(listing))]
        if quote.metering is not None:
            headers.append((b"tollway-price-max", f"{quote.price.text} {listing.currency}".encode()))
        if template.encoder is not None:
            now_s = self._now_ms() / 1000
            headers.append(
                (REQUIRED_HEADER, self._find_required_header(template, requirements, url, error, int(now_s)))
            )
        charge = next((one for one in requirements if one.channel is None), None)
        if charge is not None and self._challenger is not None:
            headers.append((CHALLENGE_HEADER, self._challenge(self._challenger, charge, call)))
        return RenderedQuote(members=members, headers=headers)

    def _link(self, listing: Listing) -> bytes:
        url = f"{self._public_url}/api/v2/apis/{listing.id}/agent"
        return f'<{url}>; rel="describedby"; type="application/json"'.encode()

    # ---- Once for each revision of a listing.

    def _find_template(
        self, quote: Quote, requirements: tuple[PaymentRequirement, ...], call: ProxyRequest
    ) -> _QuoteTemplate:
        listing = quote.entry.listing
        path = "" if listing.openapi is None else find_path(listing.openapi, call.target.rest)
        key = (quote.price.text, quote.metering, requirements, call.method, path)
        template = self._templates.find(listing, key)
        if template is None:
            template = self._templates.put(
                listing, key, self._make_template(quote, requirements, call.method, path)
            )
        return template

    def _make_template(
        self, quote: Quote, requirements: tuple[PaymentRequirement, ...], method: str, path: str
    ) -> _QuoteTemplate:
        listing = quote.entry.listing
        encoder = None
        if requirements and self._is_x402:
            resource = Resource(
                url="", description=listing.description, service_name=listing.name, tags=listing.tags
            )
            extensions = self._extensions(listing, method, path)
            encoder = PaymentRequiredEncoder(requirements, resource, extensions=extensions)
        quoted = requirements if self._is_x402 else ()
        authorizable = frozenset(requirement.asset for requirement in quoted if requirement.channel is None)
        payment = self._payment_json(quote, authorizable, read_channels(quoted))
        members_v1 = {} if encoder is None else encoder.members
        return _QuoteTemplate(members=JsonTemplate({"payment": payment, **members_v1}), encoder=encoder)

    def _payment_json(
        self, quote: Quote, authorizable: frozenset[Asset], channels: Mapping[Asset, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The `payment` member: all numbers that a client needs to pay. `authorizable`: the assets in
        which an authorisation can pay now; `channels`: those in which a channel can. `mode` and the formula of a metered price only."""
        listing, offered = quote.entry.listing, offer(quote)
        options = [
            option_json(option)
            for chain_id in listing.networks
            if chain_id in self._rules
            for option in list_payment_options(
                listing,
                offered,
                assets=self._rules[chain_id].assets,
                confirmations_for=self._rules[chain_id].confirmations_for,
                timeout_s=listing.timeout_s,
                is_offered=lambda asset, units: asset in authorizable,
                channels=channels,
            )
        ]
        members = offered.to_json(listing.currency)
        if offered.metering is None:
            del members["mode"]
        return {**members, "expiresAt": _EXPIRES, "options": options}

    def _extensions(self, listing: Listing, method: str, path: str) -> dict[str, Mapping[str, Any]]:
        """The x402 extensions of a call, with its input from the provider's document. Sign-in is not one of them: it grants no gateway call."""
        extensions: dict[str, Mapping[str, Any]] = {PAYMENT_IDENTIFIER: PAYMENT_IDENTIFIER_EXTENSION}
        described = describe_call(method, path=path, openapi=listing.openapi)
        if described is not None:
            extensions[BAZAAR] = described
        if self._receipt_signer is not None:
            extensions[OFFER_RECEIPT] = OFFERS_EXTENSION
        return extensions

    # ---- Once for each request, or for each URL.

    def _find_required_header(
        self,
        template: _QuoteTemplate,
        requirements: tuple[PaymentRequirement, ...],
        url: str,
        error: str,
        now_s: int,
    ) -> bytes:
        key = (template, url, error)
        known = self._required.get(key)
        if known is not None and 0 <= now_s - known.made_s < OFFERS_CACHE_S:
            return known.header
        assert template.encoder is not None
        values: dict[str, bytes] = {ERROR: encode_json(error)}
        if self._receipt_signer is not None:
            offers = sign_offers(
                requirements,
                resource_url=url,
                now_s=now_s,
                valid_s=self._offer_valid_s,
                sign=self._receipt_signer.sign,
            )
            values[OFFERS] = encode_json(offers)
        header = template.encoder.encode_required(url, values)
        if len(self._required) >= HEADERS_CACHED_MAX:
            self._required.clear()
        self._required[key] = _SignedHeader(header=header, made_s=now_s)
        return header

    def _challenge(
        self, challenger: Challenger, requirement: PaymentRequirement, call: ProxyRequest
    ) -> bytes:
        """The challenge of MPP for the first requirement that one authorisation meets, because its clients use the first of several. The salt makes each challenge unique."""
        return challenger.challenge(
            requirement,
            build_challenge_route(call),
            now_s=self._now_ms() / 1000,
            salt=self._entropy(SALT_BYTES),
        )
