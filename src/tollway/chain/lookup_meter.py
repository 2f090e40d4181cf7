"""What a chain look-up costs its asker: a port. Chains are asked on behalf of strangers, so somebody counts."""

from typing import Protocol


class LookupQuota(Protocol):
    """Counts look-ups on chains, per client address and per signer. Nothing about money depends on it."""

    @property
    def lookups_per_minute(self) -> int: ...

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        """One more. None when it is allowed, else the seconds to wait."""
        ...

    def give_back(self, *, client_address: str, signer: str) -> None:
        """Takes back one that was allowed: it found a valid payment."""
        ...

    def count_unresolved(self, *, client_address: str, signer: str) -> None:
        """One that was allowed had no answer: it counts for a shorter time."""
        ...
