"""The terms of calls: the columns that calls share, stored once in the table `call_terms`.

A batch writes the terms that this gateway does not know, in the transaction of the calls that reference them. They are known after the
commit, because a rolled back transaction has written nothing. A failed batch forgets all known terms, because a restored database may
lack some; the foreign key refuses a call without its terms.

The id of terms is a hash of their content, not a number of a sequence. Every gateway computes the same id without a query, two gateways
that write the same terms write the same row, and no restored database gives a known id to other terms. Different terms with one id
are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from json import dumps
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Connection, select

from tollway.ids import Address, ChainId, ListingId
from tollway.ledger.ledger import Claim
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.engine.statements import insert_for
from tollway.storage.ledger.ledger_tables import call_terms_table

KNOWN_MAX = 20_000
"""How many terms one gateway remembers (some megabytes). Forgotten terms are written and compared again."""


class CallTerms(NamedTuple):
    """Terms of a call, in the order of the columns of `call_terms` after the id."""

    listing_id: ListingId
    listing_name: str
    method: str
    price: str
    currency: str
    chain_id: ChainId | None
    asset: str | None
    decimals: int
    pay_to: Address | None
    metering: str | None = None


class TermsReference(NamedTuple):
    terms_id: int
    listing_key: int


class KnownTerms:
    """A cache of the terms whose commit this gateway has seen. One batch writes at a time."""

    def __init__(self, *, at_most: int = KNOWN_MAX) -> None:
        self._at_most = at_most
        self._known: dict[CallTerms, TermsReference] = {}
        self.find: Callable[[CallTerms], TermsReference | None] = self._known.get

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
        claim.metering,
    )


def reference_of(terms: CallTerms) -> TermsReference:
    content = [*terms[:-2], None if terms.pay_to is None else terms.pay_to.hex()]
    if terms.metering is not None:
        content.append(terms.metering)
    return TermsReference(terms_id=_key(dumps(content)), listing_key=listing_key(terms.listing_id))


def listing_key(listing_id: str) -> int:
    """A signed 64-bit number in place of the listing's id, for the indexes of calls. The gateway draws the ids at random, so no provider
    can choose two ids with one key."""
    return _key(listing_id)


def write_terms(
    connection: Connection,
    terms: Iterable[CallTerms],
    reference: Callable[[CallTerms], TermsReference] = reference_of,
) -> dict[CallTerms, TermsReference]:
    """Writes missing terms and returns the references to all. Raises `ValueRefused` when other terms have the same id."""
    written = {one: reference(one) for one in terms}
    rows = [{"id": id_, **one._asdict()} for one, (id_, _) in written.items()]
    # Two gateways that add the same terms take the locks in one order.
    rows.sort(key=itemgetter("id"))
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
