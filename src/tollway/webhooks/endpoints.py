"""Endpoints of webhooks and their deliveries: the records, and the port of their store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tollway.ids import Address
from tollway.webhooks.events import EventType
from tollway.webhooks.messages import Echo
from tollway.webhooks.schedule import Response


class EndpointState(StrEnum):
    """`unconfirmed`: has not echoed its challenge yet. `active`: gets events. `stopped`: too many events wait; it gets those, and no new ones until most
    are sent. `disabled`: gets nothing any more."""

    UNCONFIRMED = "unconfirmed"
    ACTIVE = "active"
    STOPPED = "stopped"
    DISABLED = "disabled"


class Reason(StrEnum):
    NOT_CONFIRMED = "not_confirmed"
    GONE = "gone"
    TOO_MANY_PENDING = "too_many_pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEndpoint:
    """An endpoint to register. `network`: the client address, as rates count it. `secret`: of the signature `v1`, None without one. `challenge`: the text
    that it must echo. `is_shared`: the wallet knows that the URL may be active for another wallet."""

    id: str
    wallet: Address
    network: str
    url: str
    origin: str
    types: tuple[EventType, ...]
    challenge: str
    created_ms: int
    secret: bytes | None = field(default=None, repr=False)
    is_shared: bool = False


class NotRegistered(StrEnum):
    """Why an endpoint was not registered: the wallet has as many as it may have, the client address has as many unconfirmed ones, or the URL is active
    for another wallet."""

    WALLET_FULL = "wallet_full"
    ADDRESS_FULL = "address_full"
    URL_TAKEN = "url_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentChallenge:
    """The last challenge of an endpoint. `tries`: this one included. `status` None: no response. `error`: why it does not confirm the endpoint, None where it does;
    of a response with success `not_echoed`, or `wallet_missing` where another wallet has the URL. `next_ms`: the time of the next one; None after the last."""

    tries: int
    sent_ms: int
    status: int | None
    error: str | None
    next_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpoint:
    """A registered endpoint. `active_from_ms`: every event from then on is delivered. `gap_from_ms`, `gap_to_ms`: the last range of time whose events
    were not kept; `gap_to_ms` None while the range is open. `pending`, `dead`: its events that wait, and that failed for good. `challenge` None: none is sent
    yet."""

    id: str
    wallet: Address
    url: str
    origin: str
    types: tuple[EventType, ...]
    state: EndpointState
    reason: Reason | None
    has_secret: bool
    created_ms: int
    active_from_ms: int | None
    gap_from_ms: int | None
    gap_to_ms: int | None
    pending: int = 0
    dead: int = 0
    challenge: SentChallenge | None = None


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """The delivery of an event to an endpoint, with the last attempt of its message. `message_id` None: it waits for its first message."""

    event_id: str
    type: str
    at_ms: int
    state: DeliveryState
    message_id: str | None
    attempts: int
    next_ms: int | None
    last_ms: int | None
    last_status: int | None
    last_error: str | None


class Resent(StrEnum):
    QUEUED = "queued"
    UNKNOWN = "unknown"
    PENDING = "pending"
    DISABLED = "disabled"


class Webhooks(Protocol):
    async def register(self, new: NewEndpoint, *, count_max: int) -> WebhookEndpoint | NotRegistered: ...

    async def list_of(self, wallet: Address) -> tuple[WebhookEndpoint, ...]:
        """The oldest endpoint comes first."""
        ...

    async def remove(self, wallet: Address, endpoint_id: str) -> bool:
        """Removes an endpoint with everything that waits for it. False where the wallet has no such endpoint."""
        ...

    async def deliveries_of(
        self,
        wallet: Address,
        endpoint_id: str,
        *,
        state: DeliveryState | None,
        before: str | None,
        limit: int,
    ) -> tuple[WebhookDelivery, ...] | None:
        """Deliveries of an endpoint, newest event first; None where the wallet has no such endpoint. `before`: an event id."""
        ...

    async def resend(self, wallet: Address, endpoint_id: str, event_id: str, *, now_ms: int) -> Resent:
        """Queues an event that was delivered or has failed for good once more, with the data of the first time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DueEndpoint:
    """An endpoint with a message whose next attempt is due, or with events that wait for their first message. `network`: the client address that
    registered it, as rates count it. `is_slow`: its last attempt had no response."""

    endpoint_id: str
    wallet: Address
    network: str
    origin: str
    is_slow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DueChallenge(DueEndpoint):
    """A challenge to send now. `tries`: the failed ones before."""

    url: str
    challenge: str
    tries: int
    secret: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What has no free slot now: endpoints of these origins, wallets and networks are left out. `after`: the wallet at which the last round ended;
    wallets behind it come first."""

    origins: frozenset[str] = frozenset()
    wallets: frozenset[Address] = frozenset()
    networks: frozenset[str] = frozenset()
    after: Address | None = None


NONE_TAKEN = Taken()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that begins now: its message is stored. `attempts`: this one included. `first_ms`: the time of the first one."""

    endpoint_id: str
    url: str
    message_id: str
    body: str
    attempts: int
    first_ms: int
    secret: bytes | None = field(default=None, repr=False)


class Outbox(Protocol):
    """The queue of the gateway that delivers. Two gateways at once send a message twice at worst."""

    async def has_work(self, *, now_ms: int) -> bool:
        """True when a new event, a challenge or a message waits: the one question of a round without work."""
        ...

    async def spread_events(self) -> int:
        """Gives some new events their data and a delivery to each endpoint that gets them, in one durable commit. Returns their number."""
        ...

    async def find_challenges(
        self, *, now_ms: int, limit: int, taken: Taken = NONE_TAKEN
    ) -> Sequence[DueChallenge]:
        """The order is that of `find_due`."""
        ...

    async def find_due(self, *, now_ms: int, limit: int, taken: Taken = NONE_TAKEN) -> Sequence[DueEndpoint]:
        """The endpoints with something to send in the order of their turns: those that are not slow first; one of each wallet, then the second of
        each. Of a wallet, an origin and a network no more than may run at once."""
        ...

    async def begin_attempt(self, endpoint_id: str, *, now_ms: int) -> Attempt | None:
        """Takes the most urgent message of an endpoint, or makes one of its waiting events, in one durable commit. None when nothing is due."""
        ...

    async def end_attempt(
        self, attempt: Attempt, response: Response, *, next_ms: int | None, now_ms: int
    ) -> None:
        """Records the end of an attempt. `next_ms`: the time of the next one after a failure; None for the last."""
        ...

    async def end_challenge(
        self,
        challenge: DueChallenge,
        response: Response,
        *,
        echo: Echo,
        sent_ms: int,
        next_ms: int | None,
        now_ms: int,
    ) -> None:
        """Records the end of a challenge. Where the URL is active for another wallet, only an echo with the wallet counts."""
        ...

    async def resume_stopped(self, *, now_ms: int) -> None:
        """Makes stopped endpoints active again whose waiting events are half of the maximum or fewer, and records the end of their gap."""
        ...

    async def prune(self, *, now_ms: int) -> None: ...
