"""Rules between settings that are each fine on their own, and would do harm or nothing together.

Each gives sentences that say what to change; none asks anything, and none repeats a secret.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from tollway.limits import Limits
from tollway.network_settings import NetworkSettings
from tollway.setting_values import Listen


def check_listeners(*, listen: Listen, admin_listen: Listen | None, public_url: str) -> Iterator[str]:
    """Where callers come in, and where the operator does."""
    if admin_listen is not None and _is_same_listener(listen, admin_listen):
        yield f"admin_listen: {admin_listen} is where callers are served; take another port, or off"
    if not listen.is_loopback and _is_local_only(urlsplit(public_url).hostname or ""):
        yield f"public_url: callers from outside cannot reach {public_url}; set it to the URL they use"


def _is_same_listener(one: Listen, other: Listen) -> bool:
    """Port 0 is whichever is free. On all addresses is on each of them."""
    hosts = {one.host, other.host}
    is_everywhere = not hosts.isdisjoint(("0.0.0.0", "::"))  # noqa: S104 - compared, not bound
    return one.port == other.port != 0 and (len(hosts) == 1 or is_everywhere)


def _is_local_only(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def check_networks(networks: Sequence[NetworkSettings], *, allow_mixed_networks: bool) -> Iterator[str]:
    chains = [network.rules.chain_id for network in networks]
    for chain_id in sorted({chain for chain in chains if chains.count(chain) > 1}):
        yield f"networks: chain id {chain_id} stands twice"
    if len({network.rules.kind for network in networks}) > 1 and not allow_mixed_networks:
        yield (
            "networks: main and test networks together let test money buy real calls; drop one kind, or set "
            "allow_mixed_networks"
        )


def check_maxima(maxima: Mapping[str, int], networks: Sequence[NetworkSettings]) -> Iterator[str]:
    """A maximum under a misspelt currency would leave the right one without any."""
    known = {asset.symbol for network in networks for asset in network.rules.assets}
    for symbol in sorted(maxima.keys() - known if networks else ()):
        yield f"unfinal_spend_max: {symbol[:40]} is no currency of a configured network"


def check_registration(*, is_open: bool, has_allowlist: bool) -> Iterator[str]:
    if is_open and has_allowlist:
        yield "allowlist: keeps nobody out while registration is open; set registration = allowlist, or drop it"
    if not is_open and not has_allowlist:
        yield "allowlist: registration = allowlist needs at least one wallet"


def check_limits(limits: Limits) -> Iterator[str]:
    """A lease that is renewed too late lapses between two renewals, and the others take over what is alive."""
    if limits.owner_renew_s * 2 > limits.owner_lease_s:
        yield "limits: owner_renew_s must be at most half of owner_lease_s, or a living gateway counts as dead"
    if limits.leader_poll_s >= limits.leader_lease_s:
        yield "limits: leader_poll_s must be less than leader_lease_s, or nobody leads for long"
