"""Reads one transaction again from every configured chain, beside what the ledger has of it: for an operator. It records nothing and decides nothing.

`TransactionInspector` uses the look-ups, the quota and the rules of the verifier, so an operator sees what the gateway would decide on. `recheck` and `list_transfers` are pure.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts, LookupQuota, NotMined, Quorum
from tollway.chain.tokens import parse_transfers
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.ledger import PaymentLedger
from tollway.ledger.records import Payment, RecordedTransaction
from tollway.money import Asset
from tollway.payments.transaction_lookup import LookupCharge, TransactionLookup
from tollway.payments.transaction_rules import NoLongerPays, NotCanonical, StillPays, recheck_payment

TransactionFinding = ChainFacts | NotMined | ChainUnavailable
"""`ChainUnavailable`: the chain gave no response that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedTransaction:
    tx_hash: TxHash
    answers: Mapping[ChainId, TransactionFinding]
    recorded: RecordedTransaction


class TransactionInspector:
    """`lookup`: of the verifier, so that both share the look-ups of a transaction."""

    def __init__(
        self,
        lookup: TransactionLookup,
        payments: PaymentLedger,
        *,
        rules: Mapping[ChainId, ChainRules],
        quota: LookupQuota,
    ) -> None:
        self._lookup = lookup
        self._payments = payments
        self._rules = rules
        self._quota = quota

    async def inspect(self, tx_hash: TxHash, *, reader: str) -> InspectedTransaction:
        """Reads all chains at once, each with the agreement of nodes that a large payment needs. `reader`: the name in the quota of look-ups.

        Raises Refusal (`rate_limited`) and `StorageUnavailable`. A chain that is away is an answer.
        """
        charge = LookupCharge(self._quota, client_address=reader, signer=reader)
        await charge.take()
        async with asyncio.TaskGroup() as group:
            reads = {
                chain_id: group.create_task(self._read(chain_id, tx_hash, charge)) for chain_id in self._rules
            }
        recorded = await self._payments.find_transaction(tx_hash)
        answers = {chain_id: read.result() for chain_id, read in reads.items()}
        return InspectedTransaction(tx_hash=tx_hash, answers=answers, recorded=recorded)

    async def _read(self, chain_id: ChainId, tx_hash: TxHash, charge: LookupCharge) -> TransactionFinding:
        try:
            return await self._lookup.fetch(chain_id, tx_hash, charge, quorum=Quorum.AGREED)
        except ChainUnavailable as away:
            return away


def recheck(
    found: InspectedTransaction, payment: Payment, rules: Mapping[ChainId, ChainRules]
) -> StillPays | NotCanonical | NoLongerPays | None:
    """The watcher's result for a recorded payment of the transaction now. None where its chain gave no response that counts."""
    match found.answers.get(payment.chain_id):
        case ChainFacts() as facts:
            return recheck_payment(facts, payment, rules[payment.chain_id])
        case NotMined():
            return NoLongerPays(reason="not_mined")
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTransfer:
    """A transfer of a mined transaction in an asset of the gateway. `base_units`: of the token or of the native currency."""

    asset: Asset
    sender: Address
    recipient: Address
    base_units: int


def list_transfers(facts: ChainFacts, rules: ChainRules) -> tuple[FoundTransfer, ...]:
    """All transfers in the assets of that network, in the order of the assets and of the receipt; none of a failed transaction."""
    if not facts.succeeded:
        return ()
    found: list[FoundTransfer] = []
    for asset in rules.assets:
        if asset.token is not None:
            found += (
                FoundTransfer(
                    asset=asset, sender=one.sender, recipient=one.recipient, base_units=one.base_units
                )
                for one in parse_transfers(facts.logs, token=asset.token)
            )
        elif facts.value > 0 and facts.recipient is not None:
            transfer = FoundTransfer(
                asset=asset, sender=facts.sender, recipient=facts.recipient, base_units=facts.value
            )
            found.append(transfer)
    return tuple(found)
