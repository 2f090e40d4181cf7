"""The quota of chain look-ups, for tests: it counts, and refuses only when a test has set `left` to 0."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class LookupCounter:
    """A `LookupQuota`. `left`: the look-ups that it still grants; `wait_s`: its answer to others. The lists hold the client address and
    signer of each look-up that was granted, uncounted, or without a response."""

    left: int = 1_000
    wait_s: int = 17
    charged: list[tuple[str, str]] = field(default_factory=list)
    given_back: list[tuple[str, str]] = field(default_factory=list)
    unresolved: list[tuple[str, str]] = field(default_factory=list)
    lookups_per_minute: int = 30

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        if self.left <= 0:
            return self.wait_s
        self.left -= 1
        self.charged.append((client_address, signer))
        return None

    def give_back(self, *, client_address: str, signer: str) -> None:
        self.left += 1
        self.given_back.append((client_address, signer))

    def count_unresolved(self, *, client_address: str, signer: str) -> None:
        self.unresolved.append((client_address, signer))
