"""What calls share, written once: the terms of a call, as `call_terms` has them.

A batch writes the terms that this gateway does not know yet, in the transaction of the calls that name them. They are known from
the commit on, never before: a transaction that was rolled back has written nothing. A batch that failed forgets all of them,
because a database that was restored may have lost some; the foreign key refuses a call whose terms are not there.

The id of terms is made from their content, not by a sequence. Every gateway computes the same one without a question, two that
write the same terms at once write the same row, and no restored database can give a known id to other terms. Different terms
with one id are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from json import dumps
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Connection, select

from tollway.ids import Address, ChainId, ListingId
from tollway.ledger.ledger import Claim
from tollway.storage.ledger_tables import call_terms_table
from tollway.storage.outage import ValueRefused
from tollway.storage.statements import insert_for

KNOWN_MAX = 20_000
"""Terms that one gateway remembers: some megabytes. What it has forgotten is written and compared again."""


class CallTerms(NamedTuple):
    """In the order of the columns of `call_terms`, after the id."""

    listing_id: ListingId
    listing_name: str
    method: str
    price: str
    currency: str
    chain_id: ChainId | None
    asset: str | None
    decimals: int
    pay_to: Address | None


class TermsReference(NamedTuple):
    """How a call names its terms. `listing_key`: of the listing, for the indexes of calls."""

    terms_id: int
    listing_key: int


class KnownTerms:
    """The terms whose commit this gateway has seen. One batch writes at a time."""

    def __init__(self, *, at_most: int = KNOWN_MAX) -> None:
        self._at_most = at_most
        self._known: dict[CallTerms, TermsReference] = {}

    def find(self, terms: CallTerms) -> TermsReference | None:
        return self._known.get(terms)

    def remember(self, committed: Mapping[CallTerms, TermsReference]) -> None:
        self._known.update(committed)
        while len(self._known) > self._at_most:
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        self._known.clear()


def terms_of(claim: Claim) -> CallTerms:
    return CallTerms(
        claim.listing_id,
        claim.listing_name,
        claim.method,
        claim.price,
        claim.currency,
        claim.chain_id,
        claim.asset,
        claim.decimals,
        claim.pay_to,
    )


def reference_of(terms: CallTerms) -> TermsReference:
    content = [*terms[:-1], None if terms.pay_to is None else terms.pay_to.hex()]
    return TermsReference(terms_id=_key(dumps(content)), listing_key=listing_key(terms.listing_id))


def listing_key(listing_id: str) -> int:
    """A signed 64-bit number in place of the id, in the indexes of calls. Ids of listings are drawn by the gateway: no
    provider chooses two with one key."""
    return _key(listing_id)


def write_terms(
    connection: Connection,
    terms: Iterable[CallTerms],
    reference: Callable[[CallTerms], TermsReference] = reference_of,
) -> dict[CallTerms, TermsReference]:
    """Writes those that are not there yet; how calls name each. Raises `ValueRefused` where other terms have the id."""
    written = {one: reference(one) for one in terms}
    rows = [{"id": id_, **one._asdict()} for one, (id_, _) in written.items()]
    rows.sort(key=itemgetter("id"))  # two gateways that add the same terms wait for each other in one order
    columns = call_terms_table.c
    insert = insert_for(connection, call_terms_table).values(rows).on_conflict_do_nothing()
    added = set(connection.execute(insert.returning(columns.id)).scalars())
    there = {id_: one for one, (id_, _) in written.items() if id_ not in added}
    if there:
        stored = connection.execute(select(call_terms_table).where(columns.id.in_(there)))
        found = {id_: CallTerms(*content) for id_, *content in stored}
        if found != there:
            raise ValueRefused("other terms of calls have the same id")
    return written


def _key(content: str) -> int:
    return int.from_bytes(sha256(content.encode()).digest()[:8], "big", signed=True)
