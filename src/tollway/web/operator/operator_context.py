"""The collaborators of the operator's pages, in one record."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tollway.audit_log import AuditLog
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.ledger import AuditReport, OperatorLedger
from tollway.ledger.records import CallRecord
from tollway.observability.fleet import BookSizes, DutyLeader, EncryptedValues, GatewayRecord, HeldPayment
from tollway.observability.recent_metrics import MetricsSample
from tollway.observability.telemetry import FleetFigures
from tollway.payments.gas import GasKeyStatus, GasSpending
from tollway.registry.moderation import Moderation
from tollway.web.api.context import WebContext
from tollway.web.operator.chains import NetworkChannels, NetworkNodes
from tollway.web.operator.sign_in import AdminSignInPages
from tollway.web.operator.transactions import AdminTransactions
from tollway.web.pages.markdown import MarkdownPage


class FleetReader(Protocol):
    """Figures about all gateways, from the database. Raises `StorageUnavailable`."""

    async def read(self) -> FleetFigures: ...

    async def count_encrypted_values(self) -> tuple[EncryptedValues, ...]: ...


class OpenCalls(Protocol):
    """What waits for an end, from the ledger. Raises `StorageUnavailable`."""

    async def list_open(self, state: str) -> tuple[CallRecord, ...]: ...

    async def count_held_payments(self) -> int: ...

    async def find_last_audit(self) -> tuple[int, int] | None: ...


class BookReader(Protocol):
    """Sizes of the large tables, held payments and channels, from the ledger. Raises `StorageUnavailable`."""

    async def read_sizes(self) -> BookSizes: ...

    async def list_held(self) -> tuple[HeldPayment, ...]: ...

    async def sum_channels(self) -> tuple[ChannelMoney, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """The collaborators of the operator's pages. `web`: those of the routes for clients. Members that return an awaitable raise `StorageUnavailable`."""

    web: WebContext
    sign_in: AdminSignInPages
    moderation: Moderation
    operator_ledger: OperatorLedger
    entries: AuditLog
    open_calls: OpenCalls
    transactions: AdminTransactions
    books: BookReader
    record_audit: Callable[[AuditReport], Awaitable[object]]
    """Writes the result for the metrics of all gateways, as the command does."""
    runbooks: Mapping[str, MarkdownPage]
    gateway_name: str
    """Typed by an operator who releases balances."""

    # The overview.
    own_id: str
    check_ready: Callable[[], Awaitable[Mapping[str, bool]]]
    count_in_flight: Callable[[], int]
    list_gas_keys: Callable[[], Sequence[GasKeyStatus]]
    list_gas_spending: Callable[[], Sequence[GasSpending]]
    fleet: FleetReader
    list_nodes: Callable[[], Sequence[NetworkNodes]]
    list_channels: Callable[[], Awaitable[Sequence[NetworkChannels]]]
    list_gateways: Callable[[], Awaitable[Sequence[GatewayRecord]]]
    find_leaders: Callable[[], Awaitable[Sequence[DutyLeader]]]
    find_increase: Callable[[float], MetricsSample]
    """What the metrics of this process gained in a window of seconds."""
    find_risks: Callable[[], Awaitable[Sequence[str]]]
    """Warnings of doctor."""
