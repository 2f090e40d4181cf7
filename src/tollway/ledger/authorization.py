"""An EIP-3009 authorisation as the ledger knows it, the attempts to settle it, and what became of it. Pure.

An authorisation pays exactly one call: it is claimed before the call is forwarded, settled when the upstream has
answered, and what it moved is then a payment like any other. Whether a signature is good is not known here.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tollway.identifiers import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.call import CallState

_BEFORE_SETTLEMENT = frozenset({CallState.FORWARDING, CallState.UNKNOWN})


class Dialect(StrEnum):
    """In which protocol an authorisation was shown; the answer speaks the same."""

    X402_V2 = "x402-2"
    X402_V1 = "x402-1"
    MPP = "mpp"


class AuthorizationKey(NamedTuple):
    """What the token contract keeps: a (from, nonce) is used once. `asset` is `Asset.key`."""

    chain_id: ChainId
    asset: str
    payer: Address
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """`TransferWithAuthorization` as it was signed. `base_units` of the token; times in unix seconds.

    `challenge_id`: of MPP's challenge, which its receipt names; empty elsewhere.
    """

    chain_id: ChainId
    token: Address
    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes = field(repr=False)
    dialect: Dialect
    challenge_id: str = ""

    @property
    def asset(self) -> str:
        return "0x" + self.token.hex()

    @property
    def key(self) -> AuthorizationKey:
        return AuthorizationKey(self.chain_id, self.asset, self.payer, self.nonce)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The payer's balance in ledger units, as seen at a block: what its open authorisations may add up to."""

    balance_units: int
    block_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementAttempt:
    """One signed transaction that carries an authorisation to its chain; stored before it is broadcast.

    `sender`: the gas key's address, `nonce`: of its sequence. A fee bump is another attempt with the same nonce.
    `raw`: the signed transaction. `fee_max_wei`: the most that it can cost. `code_hash`: of the payer's code where it has
    any; for the stores, which do not tell it again.
    """

    chain_id: ChainId
    tx_hash: TxHash
    call_id: CallId
    listing_id: ListingId
    sender: Address
    nonce: int
    raw: bytes = field(repr=False)
    fee_max_wei: int
    created_ms: int
    code_hash: bytes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTransfer:
    """Where an authorisation's money moved: by our transaction or by anybody's."""

    tx_hash: TxHash
    block_number: int
    block_hash: bytes
    block_time: int
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedCall:
    """The call that holds an authorisation (a `released` one does not hold it any more).

    `is_orphaned`: nobody waits for its settlement; settlement recovery finishes it. `has_stored_response`: the upstream's answer is
    stored. `is_lost`: paid, but its answer reached nobody and is not stored: the same request may run again once.
    `seen_block`: the head when it was claimed. `transfer`: where its money moved, once that is known.
    `idempotency_key`: the one that it came with. Unlike the authorisation it is never seen on a chain.
    `client_network`: a keyed hash of the network that showed the authorisation; None where none was kept.
    """

    authorization: Authorization
    call_id: CallId
    listing_id: ListingId
    method: str
    digest: bytes
    state: CallState
    epoch: int
    attempts: int
    price: str
    price_units: int
    is_orphaned: bool
    is_lost: bool
    has_stored_response: bool
    seen_block: int
    transfer: TxHash | None
    created_ms: int
    idempotency_key: str | None = None
    client_network: bytes | None = None

    @property
    def is_public(self) -> bool:
        """A transaction with this authorisation may have been sent: the chain then shows it, and its signature, to
        everybody."""
        return self.transfer is not None or self.state not in _BEFORE_SETTLEMENT
