"""The terms of a 402 as they go out: our own `payment` member, and the same offer in the dialects of x402 and MPP.

Shapes only. What is owed, and what can be settled now, was decided before; the law about which refusals may carry terms
is the passage's. What is the same for all who ask a listing is encoded once for each of its states; path, moment, request
and MPP's challenge are each request's own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tollway.chain.rules import ChainRules
from tollway.discovery.bazaar import BAZAAR, describe_call, find_path
from tollway.errors import Problem
from tollway.gateway.cashier import find_route
from tollway.gateway.exchange import Headers, IncomingCall, Offer
from tollway.identifiers import ChainId
from tollway.identity.notary import Notary
from tollway.money import Asset
from tollway.payments.authorization_wire import encode_json
from tollway.payments.challenge import ERROR, URL, ChallengeForm
from tollway.payments.mpp import CHALLENGE_HEADER, Challenger
from tollway.payments.offer_receipt import OFFER_RECEIPT, OFFERS, OFFERS_EXTENSION, sign_offers
from tollway.payments.requirement import Requirement
from tollway.payments.stencil import Hole, Stencil
from tollway.payments.x402 import (
    PAYMENT_IDENTIFIER,
    PAYMENT_IDENTIFIER_EXTENSION,
    REQUIRED_HEADER,
    Resource,
)
from tollway.registry.listing import Listing
from tollway.registry.pricing import list_options
from tollway.registry.revision_memory import RevisionMemory
from tollway.web.listing_wire import option_json
from tollway.web.wire import format_time

SALT_BYTES = 12
SHEETS_KEPT, HEADERS_KEPT = 1_024, 1_024
OFFERS_FRESH_S = 5
"""So long the same signed offers are given to everybody who asks for one URL. They promise that much less than fresh ones."""

_EXPIRES = Hole("expiresAt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a refusal that asks for money says beside the problem. `members`: JSON, an object."""

    members: bytes
    headers: Headers


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Sheet:
    """The terms of one listing, as it is now, for one kind of call: what is the same for everybody who asks. `form` None:
    no authorisation can pay."""

    members: Stencil
    form: ChallengeForm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    """A `PAYMENT-REQUIRED`, and the second of its offers."""

    header: bytes = field(repr=False)
    made_s: int


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
        self._sheets: RevisionMemory[_Sheet] = RevisionMemory(SHEETS_KEPT)
        self._required: dict[tuple[_Sheet, str, str], _Signed] = {}

    def tell(self, offer: Offer, call: IncomingCall, problem: Problem) -> Terms:
        """`payment` and the members of x402 v1; `PAYMENT-REQUIRED`, `WWW-Authenticate: Payment`, and where a reader that
        knows none of them finds all that it needs."""
        requirements = offer.requirements
        sheet = self._find_sheet(offer, requirements, call)
        url = call.public_url(self._public_url)  # byte for byte: clients compare it
        error = problem.reason or problem.code.value
        members = sheet.members.fill(
            {
                URL: encode_json(url),
                ERROR: encode_json(error),
                _EXPIRES: encode_json(format_time(offer.expires_ms)),
            }
        )
        headers: Headers = [(b"link", self._link(offer.shelf.listing))]
        if sheet.form is not None:
            now_s = self._now_ms() / 1000
            headers.append(
                (REQUIRED_HEADER, self._find_required(sheet, requirements, url, error, int(now_s)))
            )
        if requirements and self._challenger is not None:
            headers.append((CHALLENGE_HEADER, self._challenge(self._challenger, requirements[0], call)))
        return Terms(members=members, headers=headers)

    def _link(self, listing: Listing) -> bytes:
        url = f"{self._public_url}/api/v2/apis/{listing.id}/agent"
        return f'<{url}>; rel="describedby"; type="application/json"'.encode()

    # ---- Made once for each state of a listing.

    def _find_sheet(self, offer: Offer, requirements: tuple[Requirement, ...], call: IncomingCall) -> _Sheet:
        listing = offer.shelf.listing
        path = "" if listing.openapi is None else find_path(listing.openapi, call.target.rest)
        key = (offer.price.text, requirements, call.method, path)
        sheet = self._sheets.find(listing, key)
        if sheet is None:
            sheet = self._sheets.keep(listing, key, self._make_sheet(offer, requirements, call.method, path))
        return sheet

    def _make_sheet(
        self, offer: Offer, requirements: tuple[Requirement, ...], method: str, path: str
    ) -> _Sheet:
        listing = offer.shelf.listing
        form = None
        if requirements and self._is_x402:
            resource = Resource(
                url="", description=listing.description, service_name=listing.name, tags=listing.tags
            )
            extensions = self._extensions(listing, method, path)
            form = ChallengeForm(requirements, resource, extensions=extensions)
        quoted = requirements if self._is_x402 else ()
        payment = self._terms_json(offer, frozenset(requirement.asset for requirement in quoted))
        members_v1 = {} if form is None else form.members
        return _Sheet(members=Stencil({"payment": payment, **members_v1}), form=form)

    def _terms_json(self, offer: Offer, settled: frozenset[Asset]) -> dict[str, Any]:
        """`payment`: every number that a client needs in order to pay. `settled`: what authorisations can pay with now."""
        listing = offer.shelf.listing
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
                is_offered=lambda asset, units: asset in settled,
            )
        ]
        return {
            "amount": offer.price.text,
            "currency": listing.currency,
            "expiresAt": _EXPIRES,
            "options": options,
        }

    def _extensions(self, listing: Listing, method: str, path: str) -> dict[str, Mapping[str, Any]]:
        """The provider's own document says what the call takes; sign-in is not among them, since it grants nothing
        here."""
        extensions: dict[str, Mapping[str, Any]] = {PAYMENT_IDENTIFIER: PAYMENT_IDENTIFIER_EXTENSION}
        described = describe_call(method, path=path, openapi=listing.openapi)
        if described is not None:
            extensions[BAZAAR] = described
        if self._notary is not None:
            extensions[OFFER_RECEIPT] = OFFERS_EXTENSION
        return extensions

    # ---- Made for each request, or for each URL.

    def _find_required(
        self, sheet: _Sheet, requirements: tuple[Requirement, ...], url: str, error: str, now_s: int
    ) -> bytes:
        key = (sheet, url, error)
        known = self._required.get(key)
        if known is not None and 0 <= now_s - known.made_s < OFFERS_FRESH_S:
            return known.header
        assert sheet.form is not None
        values: dict[str, bytes] = {ERROR: encode_json(error)}
        if self._notary is not None:
            offers = sign_offers(
                requirements,
                resource_url=url,
                now_s=now_s,
                valid_s=self._offer_valid_s,
                sign=self._notary.sign,
            )
            values[OFFERS] = encode_json(offers)
        header = sheet.form.encode_required(url, values)
        if len(self._required) >= HEADERS_KEPT:
            self._required.clear()
        self._required[key] = _Signed(header=header, made_s=now_s)
        return header

    def _challenge(self, challenger: Challenger, requirement: Requirement, call: IncomingCall) -> bytes:
        """MPP's, of the first requirement alone: its clients take the first of several without looking further. The salt
        makes it one of its kind."""
        return challenger.challenge(
            requirement, find_route(call), now_s=self._now_ms() / 1000, salt=self._entropy(SALT_BYTES)
        )
