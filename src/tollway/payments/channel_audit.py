"""Compares the channels of the ledger with their chain: what each has claimed, and what was claimed for each receiver.

The ledger is read first, and the chain after it, in batches. A claim under way may be on the chain and not in the ledger yet. A channel that differs is read once more, by as many nodes
as the network requires: a node may lag, and a claim may have ended meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tollway.chain.channel_contract import (
    SETTLEMENT_CONTRACT,
    encode_channel_sums,
    encode_receiver_sums,
    parse_channel_sums,
    parse_receiver_sums,
)
from tollway.chain.port import SettlementChain
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, format_network
from tollway.ledger.channel_totals import ClaimedChannel, ClaimedChannels

T = TypeVar("T")
BATCH = 100
LINES_MAX = 1_000
_READ_GAS, _BYTES_MAX = 5_000_000, 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainComparison:
    """`channels`: how many were compared. `differences`: a sentence for each, at most `LINES_MAX` of channels."""

    channels: int
    differences: tuple[str, ...]


async def compare_with_chains(
    ledger: ClaimedChannels, chains: SettlementChain, chain_ids: Sequence[ChainId], *, deadline_s: float
) -> ChainComparison:
    """Compares every channel of these networks. Raises ChainUnavailable where one cannot be read, or is not in the settings: nothing of it is known to be equal."""
    missing = [format_network(one) for one in chain_ids if one not in chains.chain_ids]
    if missing:
        raise ChainUnavailable(
            f"The ledger has payment channels on {', '.join(missing)}, which the settings do not have, so they were not compared. "
            "Configure these networks, and run the audit again."
        )
    channels, differences = 0, list[str]()
    for chain_id in chain_ids:
        try:
            found = await compare_with_chain(ledger, chains, chain_id, deadline_s=deadline_s)
        except ChainUnavailable as exc:
            raise ChainUnavailable(
                f"The payment channels on {format_network(chain_id)} were not compared: {exc} Check its nodes with tollway gateway doctor, and run the audit again."
            ) from exc
        channels, differences = channels + found.channels, [*differences, *found.differences]
    return ChainComparison(channels=channels, differences=tuple(differences))


async def compare_with_chain(
    ledger: ClaimedChannels, chains: SettlementChain, chain_id: ChainId, *, deadline_s: float
) -> ChainComparison:
    """Reads every channel of a network. Raises ChainUnavailable."""
    sums: Counter[tuple[Address, Address]] = Counter()
    differing: list[ClaimedChannel] = []
    channels = after_key = 0
    while page := await ledger.list_claimed(chain_id, after_key=after_key, limit=BATCH):
        payload = await _read(
            chains, chain_id, encode_channel_sums([one.channel_id for one in page]), deadline_s
        )
        claimed = _parse(parse_channel_sums, payload, len(page))
        differing += [one for one, total in zip(page, claimed, strict=True) if not _is_equal(one, total)]
        for one in page:
            sums[one.receiver, one.token] += one.total_claimed
        channels, after_key = channels + len(page), page[-1].key
    differences = [
        difference
        for one in differing[:LINES_MAX]
        if (difference := await _look_again(ledger, chains, chain_id, one)) is not None
    ]
    differences += await _compare_receivers(chains, chain_id, sums, deadline_s)
    return ChainComparison(channels=channels, differences=tuple(differences))


def _is_equal(channel: ClaimedChannel, claimed: int) -> bool:
    return claimed in (channel.total_claimed, channel.open_total)


async def _look_again(
    ledger: ClaimedChannels, chains: SettlementChain, chain_id: ChainId, before: ClaimedChannel
) -> str | None:
    (now,) = await ledger.list_claimed(chain_id, after_key=before.key - 1, limit=1)
    claimed = (await chains.fetch_channel(chain_id, now.channel_id)).state.total_claimed
    if _is_equal(now, claimed):
        return None
    return f"channel 0x{now.channel_id.hex()} on {format_network(chain_id)} has claimed {claimed} there, and {now.total_claimed} in the ledger"


async def _compare_receivers(
    chains: SettlementChain,
    chain_id: ChainId,
    sums: Counter[tuple[Address, Address]],
    deadline_s: float,
) -> list[str]:
    """Other authorizers may have claimed for a receiver too, so the chain may have more."""
    differences, pairs = [], sorted(sums)
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        payload = await _read(chains, chain_id, encode_receiver_sums(batch), deadline_s)
        totals = _parse(parse_receiver_sums, payload, len(batch))
        for pair, (claimed, _) in zip(batch, totals, strict=True):
            if claimed < sums[pair]:
                differences.append(
                    f"for receiver {pair[0]} {claimed} of token {pair[1]} are claimed on {format_network(chain_id)}, and {sums[pair]} in the ledger"
                )
    return differences


async def _read(chains: SettlementChain, chain_id: ChainId, calldata: bytes, deadline_s: float) -> bytes:
    result = await chains.call_contract(
        chain_id,
        to=SETTLEMENT_CONTRACT,
        calldata=calldata,
        gas=_READ_GAS,
        bytes_max=_BYTES_MAX,
        deadline_s=deadline_s,
    )
    if result.reverted or not result.payload:
        raise ChainUnavailable("There is no contract of payment channels at its address.")
    return result.payload


def _parse(parse: Callable[[bytes, int], list[T]], payload: bytes, count: int) -> list[T]:
    try:
        return parse(payload, count)
    except ValueError as exc:
        raise ChainUnavailable("A node returned what cannot be read.") from exc
