"""What the transfer of an authorisation would do now; and what became of one that its token calls used: paid, by
whomever, or ended without paying.

A question to the chain and its answer, nothing more: no book is touched here.
"""

from dataclasses import dataclass

from tollway.chain.reader import AuthorizationFacts, ChainFacts, Quorum, SettlementChain
from tollway.chain.tokens import has_ended, has_settled
from tollway.identifiers import Address, TxHash
from tollway.ledger.authorization import Authorization, SettledTransfer
from tollway.payments.follower import is_deep
from tollway.payments.settlement_signing import encode_transfer_call

BACK_BLOCKS = 64
"""The block to look from was told by a node, and the node that tells of uses may have been behind it or on a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFound:
    """It moved its money there: the same from, to and value."""

    transfer: SettledTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Cancelled, or its nonce used for something else: it will never pay."""

    tx_hash: TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class UseNotFound:
    """No use is known yet, or not one that lies deep enough."""


AuthorizationUse = TransferFound | Cancelled | UseNotFound


async def simulate_transfer(
    chains: SettlementChain, authorization: Authorization, *, sender: Address, gas: int, quorum: Quorum
) -> AuthorizationFacts:
    """Its transfer, as `sender` would carry it with that gas at most. Raises ChainUnavailable."""
    return await chains.fetch_authorization(
        authorization.chain_id,
        token=authorization.token,
        payer=authorization.payer,
        nonce=authorization.nonce,
        sender=sender,
        calldata=encode_transfer_call(authorization),
        gas=gas,
        valid_after=authorization.valid_after,
        quorum=quorum,
    )


async def find_use(
    chains: SettlementChain,
    authorization: Authorization,
    *,
    from_block: int,
    depth: int,
    quorum: Quorum = Quorum.AGREED,
) -> AuthorizationUse:
    """Looks since `from_block`, and a little before. Raises ChainUnavailable."""
    tx_hash = await find_end(chains, authorization, from_block=from_block, quorum=quorum)
    if tx_hash is None:
        return UseNotFound()
    facts = await chains.fetch_facts(authorization.chain_id, tx_hash, quorum=quorum)
    if not is_deep(facts, depth=depth):
        return UseNotFound()
    transfer = find_transfer(facts, authorization, quorum=quorum)
    if transfer is not None:
        return TransferFound(transfer=transfer)
    # A receipt without any word of this nonce is no proof of anything: the node has told two stories.
    is_ended = facts.succeeded and has_ended(
        facts.logs, token=authorization.token, payer=authorization.payer, nonce=authorization.nonce
    )
    return Cancelled(tx_hash=tx_hash) if is_ended else UseNotFound()


async def find_end(
    chains: SettlementChain, authorization: Authorization, *, from_block: int, quorum: Quorum = Quorum.AGREED
) -> TxHash | None:
    """Whatever is said to have used or cancelled it, however shallow. Raises ChainUnavailable."""
    return await chains.find_authorization_use(
        authorization.chain_id,
        token=authorization.token,
        payer=authorization.payer,
        nonce=authorization.nonce,
        from_block=max(0, from_block - BACK_BLOCKS),
        quorum=quorum,
    )


def find_transfer(
    facts: ChainFacts, authorization: Authorization, *, quorum: Quorum
) -> SettledTransfer | None:
    """The transfer that this authorisation made in that transaction; None when it made none. One node's word makes none
    final: what is final is never looked at again."""
    is_settled = facts.succeeded and has_settled(
        facts.logs,
        token=authorization.token,
        payer=authorization.payer,
        payee=authorization.payee,
        base_units=authorization.base_units,
        nonce=authorization.nonce,
    )
    if not is_settled:
        return None
    return SettledTransfer(
        tx_hash=facts.tx_hash,
        block_number=facts.block_number,
        block_hash=facts.block_hash,
        block_time=facts.block_time,
        is_final=quorum is Quorum.AGREED and facts.finalized_number >= facts.block_number,
    )
