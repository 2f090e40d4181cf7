"""The check of the keys that sign claims of channels: a gateway does not start without a key whose channels still have money to claim.

The key is part of every channel, and it is derived from a secret key, the origin of the public URL and the count of restores. So a secret key that leaves the settings, or
another public URL, ends the claims of the channels before, at the cost of their providers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from tollway.audit_log import REASON_LENGTH_MAX, AuditAction, AuditEntry, AuditOrigin
from tollway.chain.networks import ChainRules
from tollway.errors import SettingsInvalid
from tollway.identity.signatures import ChannelAuthorizer
from tollway.ids import Address, ChainId, format_network
from tollway.ledger.channel_totals import ChannelTotal
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.operator.operator_writes import AuditLogStore

ENTRIES_MAX = 20

_log = structlog.get_logger(__name__)


def derive_authorizers(
    keys: Sequence[bytes], *, origin: str, restores: int
) -> tuple[tuple[ChannelAuthorizer, ...], ...]:
    """The keys that sign for channels: those that a 402 may name first, then those of each count of restores before, the latest first. Each has the order of `keys`."""
    return tuple(
        tuple(ChannelAuthorizer.derive(key, origin=origin, restores=count) for key in keys)
        for count in range(restores, -1, -1)
    )


async def find_unsigned(
    totals: ChannelTotalsStore, audit_log: AuditLogStore, *, knows: Callable[[Address], bool]
) -> tuple[ChannelTotal, ...]:
    """The channels with money to claim whose key `knows` does not know. Those that an operator gave up after their last call are left out."""
    found = [
        total for total in await totals.list_totals() if total.unclaimed_units and not knows(total.authorizer)
    ]
    given_up = {
        authorizer
        for authorizer in {total.authorizer for total in found}
        if await _is_given_up(totals, audit_log, authorizer)
    }
    return tuple(total for total in found if total.authorizer not in given_up)


async def _is_given_up(totals: ChannelTotalsStore, audit_log: AuditLogStore, authorizer: Address) -> bool:
    entries = await audit_log.list_audit_entries(limit=ENTRIES_MAX, target=str(authorizer))
    moments = [one.origin.at_ms for one in entries if one.kind == AuditAction.ABANDON_CHANNELS]
    called_ms = await totals.find_called_ms(authorizer)
    return bool(moments) and max(moments) >= (called_ms or 0)


def describe_unclaimed(totals: Sequence[ChannelTotal], rules: Mapping[ChainId, ChainRules]) -> str:
    """`3 channels with 1.5 USDC on eip155:8453`, for each network and token."""
    sums: dict[tuple[ChainId, Address], tuple[int, int]] = {}
    for total in totals:
        channels, units = sums.get((total.chain_id, total.token), (0, 0))
        sums[total.chain_id, total.token] = (
            channels + total.unclaimed_channels,
            units + total.unclaimed_units,
        )
    return ", ".join(
        f"{channels} channel{'' if channels == 1 else 's'} with {format_token(chain_id, token, units, rules)} on {format_network(chain_id)}"
        for (chain_id, token), (channels, units) in sums.items()
    )


def format_token(chain_id: ChainId, token: Address, units: int, rules: Mapping[ChainId, ChainRules]) -> str:
    assets = rules[chain_id].assets if chain_id in rules else ()
    asset = next((one for one in assets if one.token == token), None)
    return f"{units} units of {token}" if asset is None else f"{asset.format_units(units)} {asset.symbol}"


async def check_channel_keys(
    totals: ChannelTotalsStore,
    audit_log: AuditLogStore,
    *,
    knows: Callable[[Address], bool],
    rules: Mapping[ChainId, ChainRules],
    abandon: AuditOrigin | None,
) -> None:
    """Refuses a start that would leave money of providers behind. `abandon`: of an operator who gives it up; an entry of the audit log for each key says what, and the next
    start needs no such word. Raises SettingsInvalid."""
    unsigned = await find_unsigned(totals, audit_log, knows=knows)
    if not unsigned:
        return
    if abandon is None:
        raise SettingsInvalid([explain_unsigned(unsigned, rules)])
    entries = []
    for authorizer in dict.fromkeys(total.authorizer for total in unsigned):
        lost = describe_unclaimed([one for one in unsigned if one.authorizer == authorizer], rules)
        _log.warning("channels_abandoned", authorizer=str(authorizer), unclaimed=lost)
        origin = replace(abandon, reason=f"unclaimed: {lost}"[:REASON_LENGTH_MAX])
        entries.append(AuditEntry(kind=AuditAction.ABANDON_CHANNELS, target=str(authorizer), origin=origin))
    await audit_log.record(entries)


def explain_unsigned(unsigned: Sequence[ChannelTotal], rules: Mapping[ChainId, ChainRules]) -> str:
    authorizers = ", ".join(dict.fromkeys(str(total.authorizer) for total in unsigned))
    return (
        f"secret_key: no key of the list, with this public_url, can claim {describe_unclaimed(unsigned, rules)} "
        f"(authorizer {authorizers}); put the key that was removed back behind the first one, or the public_url from before, until it is claimed, "
        "or start once with tollway gateway serve --abandon-channels: the providers then lose that money. What is less than the gas of its claim is never claimed"
    )
