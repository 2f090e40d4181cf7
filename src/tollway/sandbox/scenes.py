"""What the walk-through of the demo shows to whoever listens. Pure."""

from dataclasses import dataclass

from tollway.ids import TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class TourStep:
    """The headline of what follows. `why` in a sentence."""

    number: int
    title: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """One request as it was sent, and its answer."""

    method: str
    target: str
    sent: tuple[tuple[str, str], ...]
    sent_body: bytes
    status: int
    reason: str
    received: tuple[tuple[str, str], ...]
    received_body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TourPayment:
    """A transfer that is mined."""

    tx_hash: TxHash
    block: int
    sender: str
    to: str
    amount: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TourRemark:
    """A sentence about what was just shown."""

    text: str


TourEvent = TourStep | RecordedExchange | TourPayment | TourRemark
