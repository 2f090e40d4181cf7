"""Entries of the operator: each change that a command or an operator's page makes, with its author, its target, its time and its reason.

An entry is written in the transaction of its change (`storage/operator/operator_writes.py`), so no change is without its row, and no row is without its
change. Rows are never changed or deleted.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

REASON_LENGTH_MAX = 200
"""The characters of a reason, which a refusal repeats to every caller."""


class AuditAction(StrEnum):
    """What the operator did. The values are stored."""

    SUSPEND_LISTING = "suspend_listing"
    RESTORE_LISTING = "restore_listing"
    BLOCK_WALLET = "block_wallet"
    UNBLOCK_WALLET = "unblock_wallet"
    UNBIND_WALLET = "unbind_wallet"
    ADMIT_TRANSACTION = "admit_transaction"
    HOLD_BALANCES = "hold_balances"
    RELEASE_BALANCES = "release_balances"
    REENCRYPT_SECRETS = "reencrypt_secrets"
    RESTORE_BACKUP = "restore_backup"
    REWRITE_PERIODS = "rewrite_periods"
    ABANDON_CHANNELS = "abandon_channels"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOrigin:
    """Author, time and reason of an entry. `actor`: the operating system's user and host for a command, the session for a page."""

    actor: str
    at_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry. `target`: the listing, wallet, transaction, file or authorizer of channels; `ledger`, `sales` or `secrets` for all of them."""

    kind: AuditAction
    target: str
    origin: AuditOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAuditEntry:
    """A stored entry. `id` grows with time. `kind` is a text: a later version may have kinds that this one does not know."""

    id: int
    kind: str
    target: str
    origin: AuditOrigin


class AuditLog(Protocol):
    """The record of entries. Methods raise `StorageUnavailable`."""

    async def list_audit_entries(
        self, *, limit: int, before_id: int | None = None, target: str | None = None
    ) -> tuple[RecordedAuditEntry, ...]:
        """Entries, newest first: those with a smaller id than `before_id`, and only those on `target`, where given. Empty on tables of a release
        that did not record entries."""
        ...
