"""How often a client address or a wallet has lately shown authorisations that came to nothing once a chain was asked.

Only what failed counts: whoever pays is never slowed down. Nothing about money depends on it.
"""

from limits import RateLimitItemPerMinute

from tollway.errors import Code, Problem, describe_rate
from tollway.limits import Limits
from tollway.rates import Rates, name_crowd


class JunkMeter:
    """Safe to use from many tasks at once."""

    def __init__(self, *, limits: Limits, rates: Rates) -> None:
        self._per_minute = limits.lookups_per_minute
        self._rates = rates
        self._item = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="junk_authorization")

    async def refuse(self, *, client_address: str, signer: str) -> Problem | None:
        """Why no chain is asked for them now; None when it is."""
        waits = [
            (await self._rates.look(self._item, key)).wait_s
            for key in (f"address:{name_crowd(client_address)}", f"signer:{signer}")
        ]
        wait_s = max((wait_s for wait_s in waits if wait_s is not None), default=None)
        if wait_s is None:
            return None
        return Problem(
            code=Code.RATE_LIMITED,
            detail="Too many authorisations that do not count were shown from this address or for this wallet.",
            retry_after_s=wait_s,
            payment_state="none",
            members=describe_rate("lookups", limit=self._per_minute, window_s=60),
        )

    def note(self, *, client_address: str, signer: str) -> None:
        """A chain was asked, and it came to nothing."""
        self._rates.note(self._item, f"address:{name_crowd(client_address)}")
        self._rates.note(self._item, f"signer:{signer}")
