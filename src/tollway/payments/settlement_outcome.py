"""An order to settle, and what came of it: a closed set of outcomes. Pure records."""

from dataclasses import dataclass, field
from typing import assert_never

from tollway.identifiers import ListingId, TxHash
from tollway.ledger.authorization import Authorization, SettledTransfer
from tollway.ledger.book import Close
from tollway.money import Asset
from tollway.payments.settling_notes import OutcomeLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementOrder:
    """A call whose upstream's head costs. `close`: into `settling`. `digest`: instead of the claim's, where the body's
    hash is known only now."""

    authorization: Authorization
    asset: Asset
    close: Close
    listing_id: ListingId
    digest: bytes | None

    @property
    def units(self) -> int:
        """The price, in ledger units."""
        return self.asset.floor_to_ledger(self.authorization.base_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The money moved, and the ledger says so: the call is `consumed`."""

    transfer: SettledTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSettled:
    """It surely never will: refused before anything was broadcast. The call is `released`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The call stays in `settling`; settlement recovery finishes it once it is orphaned. `tx_hash`: what was broadcast for it so far,
    for the log."""

    tx_hash: TxHash | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementFenced:
    """Somebody else moved this call on. Stop."""


SettlementOutcome = Settled | NotSettled | Undecided | SettlementFenced


def outcome_label(outcome: SettlementOutcome) -> OutcomeLabel | None:
    """How it is counted; None where another gateway counts it."""
    match outcome:
        case Settled():
            return OutcomeLabel.SETTLED
        case NotSettled():
            return OutcomeLabel.FAILED
        case Undecided():
            return OutcomeLabel.UNDECIDED
        case SettlementFenced():
            return None
        case _:
            assert_never(outcome)


def describe_outcome(outcome: SettlementOutcome) -> dict[str, str | None]:
    """The same for the log: nothing in it is a secret."""
    end = outcome_label(outcome)
    tx_hash = outcome.tx_hash if isinstance(outcome, Undecided) else None
    if isinstance(outcome, Settled):
        tx_hash = outcome.transfer.tx_hash
    return {
        "outcome": None if end is None else end.value,
        "transaction": None if tx_hash is None else str(tx_hash),
        "reason": outcome.reason if isinstance(outcome, NotSettled) else None,
    }
