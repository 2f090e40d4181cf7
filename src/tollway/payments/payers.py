"""Which payers of a transaction stand behind the signature that a request shows: keys first, then contract wallets.

A key costs nothing to ask, so a chain is asked only when no key says yes, about four wallets at most. It never turns
"the chain did not answer" into "not signed".
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tollway.chain.lookup_meter import LookupQuota
from tollway.identifiers import ZERO_ADDRESS, Address, ChainId, ListingId
from tollway.identity.signatures import SignatureVerifier, paid_call_digest, recover, transaction_digests
from tollway.payments.lookups import LookupCharge
from tollway.payments.proof import Proof

CONTRACT_PAYERS_MAX = 4
WALLETS_MAX = 10_000
UNCLAIMED_MAX = 300
"""So many questions to one contract wallet beyond those of its claims cost no look-up. More than one client address may have
in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRequest:
    """The parts of a request that a bound signature covers. `body_hash` is keccak-256."""

    gateway: str
    method: str
    target: bytes
    body_hash: bytes
    client_address: str


class PresentedProof:
    """One proof as it is shown with one request. Remembers who was asked, so that nobody is asked twice for it."""

    def __init__(
        self,
        proof: Proof,
        request: BoundRequest,
        listing_id: ListingId,
        *,
        chain_id: ChainId,
        quota: LookupQuota,
    ) -> None:
        """`chain_id`: the likeliest network; only the meter's name for the signer rests on it."""
        self.proof = proof
        self.request = request
        self.listing_id = listing_id
        self.answers: dict[tuple[ChainId, Address], bool] = {}
        self._keys: dict[ChainId, frozenset[Address]] = {}
        self.charge = LookupCharge(
            quota, client_address=request.client_address, signer=self._name_signer(chain_id)
        )

    def digests(self, chain_id: ChainId) -> tuple[bytes, ...]:
        return _digests(self.proof, self.request, self.listing_id, chain_id)

    def keys(self, chain_id: ChainId) -> frozenset[Address]:
        """The wallets whose keys may have made the signature. One of two plain spellings names a stranger."""
        known = self._keys.get(chain_id)
        if known is None:
            recovered = _recover_all(self.proof, self.digests(chain_id))
            known = self._keys[chain_id] = frozenset(recovered)
        return known

    def _name_signer(self, chain_id: ChainId) -> str:
        """For the meter, before the payer is known. Contract wallets must not all share one name, and a stranger who
        shows a public hash with junk must not use up the look-ups of its payer."""
        signer = recover(self.digests(chain_id)[0], self.proof.signature)
        if signer is not None:
            return str(signer)
        return f"transaction {self.proof.tx_hash} from {self.request.client_address}"


class SignerCheck:
    """Safe to use from many tasks at once."""

    def __init__(self, verifier: SignatureVerifier) -> None:
        self._verifier = verifier
        # Contract wallets that said yes lately pay no look-up charge: their calls would all cost one.
        self._wallets: OrderedDict[tuple[ChainId, Address], None] = OrderedDict()
        # How often each was asked, less two for each claim. A wallet that only says yes, and buys nothing, would have its
        # chain asked without a limit.
        self._unclaimed: OrderedDict[tuple[ChainId, Address], int] = OrderedDict()

    async def find_signers(
        self, presented: PresentedProof, chain_id: ChainId, payers: Iterable[Address]
    ) -> tuple[Address, ...]:
        """Those of `payers` that signed. Raises ChainUnavailable, and Refusal (`rate_limited`)."""
        known = tuple(dict.fromkeys(payer for payer in payers if payer != ZERO_ADDRESS))
        signed = tuple(payer for payer in known if payer in presented.keys(chain_id))
        if signed:
            return signed
        for payer in known:
            if await self._is_contract_signer(presented, chain_id, payer):
                return (payer,)
        return ()

    def mark_spent(self, chain_id: ChainId, payer: Address) -> None:
        """A payment of this wallet has bought something."""
        count = self._unclaimed.get((chain_id, payer))
        if count is not None:
            self._unclaimed[(chain_id, payer)] = max(0, count - 2)

    def _count_unclaimed(self, key: tuple[ChainId, Address]) -> int:
        """One more. At the maximum it stays one above, so that a claim ends it."""
        count = self._unclaimed[key] = min(self._unclaimed.get(key, 0), UNCLAIMED_MAX) + 1
        self._unclaimed.move_to_end(key)
        if len(self._unclaimed) > WALLETS_MAX:
            self._unclaimed.popitem(last=False)
        return count

    async def _is_contract_signer(self, presented: PresentedProof, chain_id: ChainId, payer: Address) -> bool:
        key = (chain_id, payer)
        if key in presented.answers:
            return presented.answers[key]
        if sum(asked == chain_id for asked, _ in presented.answers) >= CONTRACT_PAYERS_MAX:
            return False
        presented.answers[key] = answer = await self._ask(presented, chain_id, payer)
        if answer:
            if self._count_unclaimed(key) > UNCLAIMED_MAX:
                presented.charge.keep()
            self._wallets[key] = None
            self._wallets.move_to_end(key)
            if len(self._wallets) > WALLETS_MAX:
                self._wallets.popitem(last=False)
        else:
            self._wallets.pop(key, None)
        return answer

    async def _ask(self, presented: PresentedProof, chain_id: ChainId, payer: Address) -> bool:
        signature = presented.proof.signature
        for digest in presented.digests(chain_id):
            key = (chain_id, payer)
            if key not in self._wallets or self._unclaimed.get(key, 0) >= UNCLAIMED_MAX:
                await presented.charge.take()
            if await self._verifier.is_signed_by(payer, digest, signature, (chain_id,)):
                return True
        return False


def recover_wallets(
    proof: Proof, request: BoundRequest, listing_id: ListingId, chain_ids: Iterable[ChainId]
) -> tuple[Address, ...]:
    """The wallets whose keys may have made the signature, on whichever of these networks. Asks nobody: no contract's
    wallet is among them, and one of two plain spellings names a stranger."""
    digests = (digest for chain_id in chain_ids for digest in _digests(proof, request, listing_id, chain_id))
    return tuple(dict.fromkeys(_recover_all(proof, dict.fromkeys(digests))))


def _recover_all(proof: Proof, digests: Iterable[bytes]) -> Iterator[Address]:
    recovered = (recover(digest, proof.signature) for digest in digests)
    return (address for address in recovered if address is not None)


def _digests(
    proof: Proof, request: BoundRequest, listing_id: ListingId, chain_id: ChainId
) -> tuple[bytes, ...]:
    """What the payer may have signed: one digest in the bound form, two spellings in the plain one."""
    if proof.binding is None:
        return transaction_digests(proof.tx_hash)
    return (
        paid_call_digest(
            chain_id=chain_id,
            gateway=request.gateway,
            api_id=listing_id,
            method=request.method,
            target=request.target,
            body_hash=request.body_hash,
            transaction=proof.tx_hash,
            valid_until=proof.binding.valid_until,
            nonce=proof.binding.nonce,
        ),
    )
