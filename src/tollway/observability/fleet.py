"""What the database and its server say about all gateways: their leases and releases, the duties that one of them leads, held payments, sizes of tables, encrypted values by key."""

from dataclasses import dataclass

from tollway.ids import Address, ChainId, TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBuild:
    """One gateway process. `name`: its machine and port. `schema`: the newest tables that its release knows."""

    name: str
    version: str
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRecord:
    """A gateway process with a lease. `build` None: its release writes none, or it has begun just now. `is_alive`: it renewed its lease in time."""

    owner_id: str
    build: GatewayBuild | None
    started_ms: int
    seen_ms: int
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DutyLeader:
    """The gateway that does a duty for all. `is_led` False: none does now. `owner_id` None: its release does not say which gateway it is."""

    duty: str
    is_led: bool
    owner_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPayment:
    """A payment that is not spendable for now. `units`: what calls have not taken, in ledger units of `asset` (`Asset.key`)."""

    chain_id: ChainId
    tx_hash: TxHash
    asset: str
    payer: Address
    payee: Address
    units: int
    recorded_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """A large table. `rows`: a count, an estimate of the server, or the highest row number of SQLite, which is not less than the count; None where
    none of them is known. `size_bytes`: with its indexes; None on SQLite. `oldest_ms`: the time of its oldest row; None without one."""

    name: str
    rows: int | None
    size_bytes: int | None
    oldest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BookSizes:
    """The large tables, the largest first. `size_bytes`: the whole database."""

    tables: tuple[TableSize, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedValues:
    """Encrypted values of one kind by the key that opens them: the first key, an older key, or none of the settings (`lost`). `is_whole` False: only a part was
    opened."""

    kind: str
    current: int
    older: int
    lost: int
    is_whole: bool
