"""What the rail of signed authorisations and the rail of channels share: the key and the body of their requests, and the settlement after the response head."""

from functools import partial

from tollway.errors import ChainUnavailable
from tollway.gateway.body import ForwardBody, load_hashed
from tollway.gateway.idempotency import Idempotency
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.problems import find_idempotency_key
from tollway.gateway.rail import CallPayment, ClockAndEntropy, CollectResponse
from tollway.ids import ChainId, format_network
from tollway.ledger.ledger import Close, Ledger
from tollway.ledger.records import Authorization
from tollway.limits import Limits
from tollway.payments.authorization_check import is_late
from tollway.payments.channel_wire import PresentedChannelPayment, SignedDeposit
from tollway.payments.settlement import Settlement, SettlementOrder, SettlementOutcome, Undecided
from tollway.payments.wire import PresentedAuthorization
from tollway.registry.listing import Listing

SignedProof = PresentedAuthorization | PresentedChannelPayment


class SettledRail:
    """A rail whose payments the gateway settles itself."""

    is_settled_here = True

    def __init__(
        self,
        *,
        ledger: Ledger,
        settlement: Settlement,
        idempotency: Idempotency,
        limits: Limits,
        clock: ClockAndEntropy,
    ) -> None:
        self.ledger = ledger
        self.settlement = settlement
        self.idempotency = idempotency
        self.limits = limits
        self.clock = clock

    def find_key(self, request: ProxyRequest, proof: SignedProof) -> str | None:
        """The key of the header, or of the `payment-identifier` extension of x402."""
        key = find_idempotency_key(request)
        return proof.identifier if key is None else key

    def check_reachable(self, chain_id: ChainId) -> None:
        """Raises ChainUnavailable during an outage of the nodes, which must not ask for another payment."""
        if not self.settlement.is_reachable(chain_id):
            raise ChainUnavailable(
                f"The nodes of {format_network(chain_id)} are unavailable. Send the same request again after Retry-After."
            )

    async def load_body(self, request: ProxyRequest, proof: SignedProof, listing: Listing) -> ForwardBody:
        return await load_hashed(
            request.body,
            is_whole=self.find_key(request, proof) is not None,
            limits=self.limits,
            is_late=partial(self._is_late, proof, listing),
        )

    def _is_late(self, proof: SignedProof, listing: Listing) -> bool:
        signed = proof if isinstance(proof, PresentedAuthorization) else proof.request
        return isinstance(signed, PresentedAuthorization | SignedDeposit) and is_late(
            signed.valid_before, now_s=self.clock.now_ms() / 1000, timeout_s=listing.timeout_s
        )


class SettledPayment(CallPayment):
    """The payment of one call that holds an authorisation until the response head."""

    __slots__ = ()

    async def settle(
        self, rail: SettledRail, authorization: Authorization, close: Close, collect: CollectResponse
    ) -> SettlementOutcome:
        """Settles the authorisation. Leaves an undecided settlement to recovery, and stores the response for a repeat of the request, unless the ledger has no
        digest of the body (a streamed body that had not ended at the head): then no repeat can be recognised, and recovery turns the money into credit."""
        body_hash, listing = self.body.final_hash, self.route.entry.listing
        assert self.asset is not None  # claimed
        digest = None if body_hash is None else self.request.digest_for(authorization.payer, body_hash)
        order = SettlementOrder(
            authorization=authorization,
            asset=self.asset,
            close=close,
            listing_id=listing.id,
            digest=digest,
        )
        outcome = await rail.settlement.settle(order, trace=self.request.trace)
        if isinstance(outcome, Undecided):
            response, usage = await collect()
            if response is not None and digest is not None:
                await rail.idempotency.store_response(
                    close.call_id, response, payer=authorization.payer, provider=listing.provider
                )
            await rail.ledger.mark_orphaned(close.call_id, epoch=close.epoch, usage=usage)
        return outcome
