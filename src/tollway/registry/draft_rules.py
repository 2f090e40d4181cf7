"""What this gateway accepts from its providers: the part of its settings that the rules of a listing depend on. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from tollway.identifiers import ChainId
from tollway.money import Asset

ENDPOINT_POLICY = "endpoint_not_allowed"
"""The code of the one error that is about the outbound policy and not about the form of the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFault:
    """Why an endpoint cannot be listed. `is_policy`: well written, but this gateway may not dial it."""

    detail: str
    is_policy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRules:
    """What this gateway accepts. A currency is the symbol of an accepted asset; `assets` stand in the operator's order
    of preference. `main_networks` are a new listing's default where it has any of them."""

    assets: tuple[Asset, ...]
    main_networks: frozenset[ChainId]
    allow_private_endpoints: bool
    check_endpoint: Callable[[str], EndpointFault | None]

    def networks_of(self, currency: str) -> tuple[ChainId, ...]:
        """Where a currency is accepted."""
        return tuple(dict.fromkeys(asset.chain_id for asset in self.assets if asset.symbol == currency))

    def default_networks(self, currency: str) -> tuple[ChainId, ...]:
        """All of the main ones; on a gateway that has only test networks for that currency, those."""
        accepted = self.networks_of(currency)
        return tuple(chain_id for chain_id in accepted if chain_id in self.main_networks) or accepted
