"""Moderation by the operator: suspended listings and blocked wallets, the port of the blocks, and the sentences of their refusals.

Each change has an audit entry with its reason (`audit_log.py`). The reason is plain text, and the refusal repeats it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from tollway.audit_log import REASON_LENGTH_MAX, AuditAction, AuditEntry, AuditOrigin
from tollway.errors import Code, Problem
from tollway.ids import Address, ListingId
from tollway.registry.catalog import Catalog, Revised
from tollway.registry.listing import Listing
from tollway.registry.text import find_refused_character

REVISE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedWallet:
    """A refusal repeats `reason`."""

    wallet: Address
    reason: str
    since_ms: int


class Moderation(Protocol):
    """The store of blocked wallets. `find_block` reads memory only."""

    def find_block(self, wallet: Address) -> BlockedWallet | None:
        """Cheap: every call reads it. A block by this process counts at once, a block by another process after `refresh`."""
        ...

    async def refresh(self) -> None:
        """Reads the blocks again. The gateway runs it every half second."""
        ...

    async def block(self, wallet: Address, *, origin: AuditOrigin) -> bool:
        """False when the wallet is blocked already; its reason and time stay, and the audit log is empty."""
        ...

    async def unblock(self, wallet: Address, *, origin: AuditOrigin) -> bool:
        """False when the wallet is not blocked; the audit log is empty."""
        ...

    async def list_blocked(self) -> tuple[BlockedWallet, ...]:
        """The oldest block comes first."""
        ...


@dataclass(frozen=True, slots=True)
class NoActiveListing:
    """There is no such listing, or it is retired."""


@dataclass(frozen=True, slots=True)
class AlwaysEdited:
    """Another edit came first in each attempt."""


async def suspend_listing(
    catalog: Catalog, listing_id: ListingId, *, origin: AuditOrigin
) -> Listing | NoActiveListing | AlwaysEdited:
    """Hides a listing and refuses its calls. A suspended listing stays as it is, and the audit log is empty."""
    return await _set_suspension(catalog, listing_id, AuditAction.SUSPEND_LISTING, origin)


async def restore_listing(
    catalog: Catalog, listing_id: ListingId, *, origin: AuditOrigin
) -> Listing | NoActiveListing | AlwaysEdited:
    """Ends the suspension of a listing. A listing that is not suspended stays as it is, and the audit log is empty."""
    return await _set_suspension(catalog, listing_id, AuditAction.RESTORE_LISTING, origin)


async def _set_suspension(
    catalog: Catalog, listing_id: ListingId, kind: AuditAction, origin: AuditOrigin
) -> Listing | NoActiveListing | AlwaysEdited:
    audit_entry = AuditEntry(kind=kind, target=listing_id, origin=origin)
    suspended_ms = origin.at_ms if kind is AuditAction.SUSPEND_LISTING else None
    for _ in range(REVISE_ATTEMPTS):
        entry = await catalog.find(listing_id)
        if entry is None or entry.listing.retired_ms is not None:
            return NoActiveListing()
        if (entry.listing.suspended_ms is None) == (suspended_ms is None):
            return entry.listing
        # A version of the terms ends here, at this time: a suspended listing sells nothing.
        changed = replace(
            entry.listing,
            suspended_ms=suspended_ms,
            suspended_reason="" if suspended_ms is None else origin.reason,
            updated_ms=origin.at_ms,
        )
        outcome = await catalog.revise(
            changed, expected_revision=entry.listing.revision, audit_entry=audit_entry
        )
        if isinstance(outcome, Revised):
            return outcome.listing
    return AlwaysEdited()


def parse_reason(text: str) -> str:
    """One line of plain text. Raises ValueError."""
    text = text.strip()
    if len(text) > REASON_LENGTH_MAX:
        raise ValueError(f"the reason has {len(text)} characters; at most {REASON_LENGTH_MAX} are allowed")
    refused = find_refused_character(text, is_multiline=False)
    if refused is not None:
        raise ValueError(f"the reason contains {refused}; give one line of plain text")
    return text


def describe_block(block: BlockedWallet) -> str:
    return f"The operator of this gateway has blocked this wallet.{_format_reason(block.reason)}"


def describe_suspension(listing: Listing) -> str:
    return f"The operator has suspended this API.{_format_reason(listing.suspended_reason)}"


def _format_reason(reason: str) -> str:
    return f' The reason of the operator: "{reason}".' if reason else ""


def explain_block(block: BlockedWallet) -> Problem:
    return Problem(code=Code.WALLET_BLOCKED, detail=describe_block(block))


def check_registration(
    provider: Address,
    *,
    allowlist: Collection[Address] | None,
    block: BlockedWallet | None,
) -> Problem | None:
    """The reason why this wallet must not publish; None when it may. `allowlist` None: every wallet that is not blocked may."""
    if block is not None:
        return explain_block(block)
    if allowlist is not None and provider not in allowlist:
        return Problem(
            code=Code.NOT_PROVIDER,
            detail="Only wallets on the operator's allowlist may publish here. Ask the operator to add this wallet.",
            reason="not_on_allowlist",
        )
    return None
