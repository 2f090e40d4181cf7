"""Repeats: the same authorisation presented again, or any request under an idempotency key that named a call.

    find -> the authorisation is in the ledger? -> its proof, its secret, its body -> stored, running, used, or runs again
         -> the key has named a call of a wallet that the proof opens? -> its body -> the same

Every path on which a request meets an earlier call is here, before the listing, money or a chain is looked at.

An authorisation that the ledger knows is never answered with a quote, because its money may have moved. A stored response
costs nothing. Which call a key has named is decided in the ledger; nothing here claims, reopens or settles.
The age of a call or of its response is measured by the clock that all gateways share; the validity of a proof by this gateway's own.
"""

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import structlog

from tollway.chain.networks import ChainRules
from tollway.errors import Code, Problem, Refusal, StorageUnavailable
from tollway.gateway.body import ForwardBody, check_size, load_compared
from tollway.gateway.messages import Headers, ProxyRequest, ProxyResponse
from tollway.gateway.problems import (
    KEY_REUSED,
    OUTCOME_UNKNOWN,
    authorization_became_credit,
    authorization_public,
    authorization_used,
    check_idempotency_key,
    in_progress,
    key_used,
)
from tollway.gateway.receipts import ReceiptWriter
from tollway.gateway.target import GATEWAY_PREFIX
from tollway.identity.http_signatures import SignedRequest
from tollway.ids import Address, CallId, ChainId
from tollway.ledger.ledger import AuthorizationTaken, Ledger, StoredResponse, StoredResponses
from tollway.ledger.records import (
    SAFE_METHODS,
    UNKNOWN_DIGEST,
    Authorization,
    AuthorizationKey,
    AuthorizedCall,
    CallState,
    Dialect,
    KeyedCall,
)
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.authorization_check import to_authorization
from tollway.payments.eip3009 import recover_signer
from tollway.payments.wire import PresentedAuthorization
from tollway.rate_limits.limiter import client_bucket
from tollway.registry.listing import CatalogEntry, Listing

_log = structlog.get_logger(__name__)

ProveWallet = Callable[[SignedRequest], Awaitable[Address]]
"""The wallet that proves itself by a request. Raises `Refusal` where none does, `ChainUnavailable`, `StorageUnavailable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAuthorization:
    """A call that holds an authorisation, or whose money it moved. `is_proven`: its caller has shown the signature that
    was claimed, or one by the payer's own key. A caller that has not is not asked to pay either, and learns nothing."""

    call: AuthorizedCall
    is_proven: bool


class KeyReader(Protocol):
    """The part of a rail that idempotency keys need."""

    def find_key(self, request: ProxyRequest, proof: Any) -> str | None:
        """The idempotency key of the request: of its header, or of the proof itself."""
        ...

    async def load_body(self, request: ProxyRequest, proof: Any, listing: Listing) -> ForwardBody:
        """The body as the proof needs it: hashed where a signature or an idempotency key covers it, else streamed. A body that
        may be repeated under a key is read first (at most 1 MiB). Raises ClientGone and Refusal."""
        ...

    async def find_key_wallets(
        self, request: ProxyRequest, entry: CatalogEntry, proof: Any, body: ForwardBody | None
    ) -> tuple[Address, ...] | None:
        """The wallets whose idempotency keys the proof opens at this listing. Asks no chain. None: the signature covers the body,
        which is not read yet (`body` None). Raises StorageUnavailable."""
        ...


# The answer that was paid for is not there yet: asking again brings it.
_RUNNING_CODES = frozenset({Code.IDEMPOTENCY_IN_PROGRESS, Code.PAYMENT_OUTCOME_UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What the ledger holds of the same request: its stored response, why there is none, or the call that may run again.

    `response` and `call` are None where no call is named. `body`: read to be compared; None: it is not read. `key_wallets`: the
    wallets whose keys were looked up. `is_entitled`: the request shows more than the authorisation that a chain may show.
    """

    response: ProxyResponse | Problem | None = None
    call: KeyedCall | AuthorizedCall | None = None
    body: ForwardBody | None = None
    key_wallets: tuple[Address, ...] = ()
    is_entitled: bool = False

    @property
    def is_deliverable(self) -> bool:
        """The response that was paid for, or that it is on its way: delivered for a closed listing too."""
        if isinstance(self.response, Problem):
            return self.response.code in _RUNNING_CODES
        return self.response is not None


class ClientNetworks:
    """Keyed hashes of client networks (an IPv4 address, an IPv6 /64), to compare a repeat with the claim that it repeats.

    Each hash covers the authorisation's nonce too. So a copy of the database shows neither a network nor which calls
    came from one network; only the holder of the secret can test a guess, call by call.
    """

    _PURPOSE = b"tollway client network"
    _BYTES = 16

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def derive(cls, secrets: Sequence[bytes]) -> Self:
        """`secrets`: the secret keys, the one in use first; at least one."""
        return cls([hmac.digest(secret, cls._PURPOSE, "sha256") for secret in secrets])

    def hash(self, nonce: bytes, client_address: str) -> bytes:
        """16 bytes, with the key in use."""
        return self._hash(self._keys[0], nonce, client_address)

    def is_same(self, kept: bytes | None, nonce: bytes, client_address: str) -> bool:
        """Whether the claim came from the network of this address, by any of the keys. False where none was kept."""
        return kept is not None and any(
            hmac.compare_digest(kept, self._hash(key, nonce, client_address)) for key in self._keys
        )

    def _hash(self, key: bytes, nonce: bytes, client_address: str) -> bytes:
        network = client_bucket(client_address).encode()
        return hmac.digest(key, len(nonce).to_bytes(4, "big") + nonce + network, "sha256")[: self._BYTES]


class Idempotency:
    """One per process; safe to use from many tasks at once. Raises `StorageUnavailable`."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        stored_responses: StoredResponses,
        rules: Mapping[ChainId, ChainRules],
        limits: Limits,
        receipts: ReceiptWriter,
        public_url: str,
        now_ms: Callable[[], int],
        networks: ClientNetworks,
        prove_wallet: ProveWallet,
    ) -> None:
        self._ledger = ledger
        self._stored_responses = stored_responses
        self._rules = rules
        self._limits = limits
        self._receipts = receipts
        self._public_url = public_url
        self._now_ms = now_ms
        self._networks = networks
        self._prove_wallet = prove_wallet

    async def find(
        self, request: ProxyRequest, entry: CatalogEntry, reader: KeyReader, proof: object, *, is_free: bool
    ) -> Repeat | None:
        """What the ledger holds of this request; None: no call is named, and the body is not read.

        The body is read only where the ledger knows the authorisation, where the key has named a call of a wallet that the
        proof opens, or where the signature covers the body. `is_free`: the call costs nothing now; then only the call that its
        key names counts, or a response that can be delivered. Raises ClientGone, Refusal, ChainUnavailable."""
        known = None
        if isinstance(proof, PresentedAuthorization):
            known = await self.find_known(proof)
        if not isinstance(proof, PresentedAuthorization) or known is None or self._is_too_large(request):
            return await self._find_named(request, entry, reader, proof)
        key = reader.find_key(request, proof)
        repeat = await self._find_authorized(request, proof, known, key)
        is_named = key is not None and key == known.call.idempotency_key
        if repeat.is_deliverable or is_named or not is_free:
            return repeat
        named = await self._find_named(request, entry, reader, proof, repeat.body)
        return named or (None if repeat.body is None else Repeat(body=repeat.body))

    async def _find_authorized(
        self,
        request: ProxyRequest,
        presented: PresentedAuthorization,
        known: ClaimedAuthorization,
        key: str | None,
    ) -> Repeat:
        """The ledger knows the authorisation."""
        problem = self._find_unread_response(request, presented, known, key=key)
        if problem is not None:
            return Repeat(response=problem)
        body = await load_compared(request.body, limits=self._limits)
        is_entitled = await self._is_entitled(request, presented, known, body, key)
        response = await self._find_response(request, known.call, body, is_entitled=is_entitled)
        call = known.call if response is None else None
        return Repeat(response=response, call=call, body=body, is_entitled=is_entitled)

    async def _find_named(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        reader: KeyReader,
        proof: object,
        body: ForwardBody | None = None,
    ) -> Repeat | None:
        """The call that the request's key has named. `body`: where it is read already."""
        key = reader.find_key(request, proof)
        if key is None or self._is_too_large(request) or check_idempotency_key(request) is not None:
            return None
        wallets = await reader.find_key_wallets(request, entry, proof, body)
        if wallets is not None and await self._find_keyed_call(wallets, key) is None:
            # A body is not read for a key that the proof does not open, or that has named nothing.
            return Repeat(body=body, key_wallets=wallets) if wallets else None
        if body is None:
            try:
                body = await reader.load_body(request, proof, entry.listing)
            except Refusal as refusal:
                return Repeat(response=refusal.problem)
        if wallets is None:
            wallets = await reader.find_key_wallets(request, entry, proof, body) or ()
        found = await self.find_by_key(request, proof, body, wallets, key)
        if isinstance(found, KeyedCall | AuthorizedCall):
            return Repeat(call=found, body=body, key_wallets=wallets, is_entitled=True)
        return Repeat(response=found, body=body, key_wallets=wallets)

    def _is_too_large(self, request: ProxyRequest) -> bool:
        return check_size(request.body, self._limits) is not None

    # ---- The same proof.

    async def find_known(self, presented: PresentedAuthorization) -> ClaimedAuthorization | None:
        """What this authorisation pays or has paid; None when it may still pay for anything.

        Contract wallets may sign the same anew each time, and a nonce may be seen on the chain: so to be known it is
        enough to be shown, and to be told about it takes a proof."""
        for token in self._tokens_of(presented):
            key = AuthorizationKey(presented.chain_id, "0x" + token.hex(), presented.payer, presented.nonce)
            call = await self._ledger.find_authorized_call(key)
            if call is None or (call.state is CallState.RELEASED and call.transfer is None):
                continue
            is_proven = _is_signature_of(presented, call) or self._is_signed_anew_by_payer(presented, call)
            return ClaimedAuthorization(call=call, is_proven=is_proven)
        return None

    def is_signed_by_payer(self, presented: PresentedAuthorization) -> bool:
        """Signed by the payer's own key, and within its time: one that was settled long ago is for anybody to read."""
        if not presented.valid_after <= self._now_ms() / 1000 < presented.valid_before:
            return False
        authorized = (to_authorization(presented, token) for token in self._tokens_of(presented))
        return any(self._signer_of(one) == presented.payer for one in authorized)

    def _signer_of(self, authorization: Authorization) -> Address | None:
        asset = find_token_asset(self._rules, authorization)
        if asset is None or asset.domain is None:
            return None
        return recover_signer(authorization, asset.domain)

    def _is_signed_anew_by_payer(self, presented: PresentedAuthorization, known: AuthorizedCall) -> bool:
        """Signed anew by the payer's key: wallets do that where the protocol gives the nonce (MPP)."""
        authorized = replace(
            known.authorization,
            payee=presented.payee,
            base_units=presented.base_units,
            valid_after=presented.valid_after,
            valid_before=presented.valid_before,
            signature=presented.signature,
        )
        return self._signer_of(authorized) == presented.payer

    async def _find_response(
        self, request: ProxyRequest, known: AuthorizedCall, body: ForwardBody, *, is_entitled: bool
    ) -> ProxyResponse | Problem | None:
        """What a repeat gets from the record. None: it may run again under the claim that it has."""
        if known.is_public and not is_entitled:
            return authorization_public(known.call_id, known.state)
        payer, body_hash = known.authorization.payer, body.body_hash
        if body_hash is None or request.digest_for(payer, body_hash) != known.digest:
            return _explain_used(known)
        if known.state in (CallState.FORWARDING, CallState.SETTLING):
            return self.explain_running(known)
        if known.state is CallState.CONSUMED and known.has_stored_response:
            stored = await self._stored_responses.find(known.call_id, now_ms=self._ledger.shared_ms())
            if stored is not None:
                return _build_replay(request, stored, known.call_id, self._write_receipt(request, known))
        if known.idempotency_key is not None:  # the one that was shown, else it would not be the same proof
            keyed = await self._find_keyed(request, body, (payer,), known.idempotency_key)
            if keyed is not None:
                return None if isinstance(keyed, KeyedCall) else keyed
        is_open = known.state is CallState.UNKNOWN or (known.state is CallState.CONSUMED and known.is_lost)
        if is_open and known.method in SAFE_METHODS:
            return None
        return _explain_used(known)

    def _find_unread_response(
        self,
        request: ProxyRequest,
        presented: PresentedAuthorization,
        known: ClaimedAuthorization,
        *,
        key: str | None,
    ) -> Problem | None:
        """What an authorisation of the ledger gets without its proof, with another challenge or key than it was claimed with,
        or, once it is public, with nothing beside it: the same whatever the body is. None: the body decides."""
        if not known.is_proven:
            return self.explain_known(known)
        if not _is_same_proof(presented, known.call, key=key):
            return _explain_used(known.call)
        if known.call.is_public and not self._may_be_entitled(request, presented, known.call, key):
            return authorization_public(known.call.call_id, known.call.state)
        return None

    async def _is_entitled(
        self,
        request: ProxyRequest,
        presented: PresentedAuthorization,
        known: ClaimedAuthorization,
        body: ForwardBody,
        key: str | None,
    ) -> bool:
        """Whether the request shows something that no chain shows: the challenge or the idempotency key that the authorisation
        was claimed with, the client network of the claim, or a fresh proof of the paying wallet. Spends the nonce of such
        a proof, so it is called once a request. Raises `Refusal` (`rate_limited`), `ChainUnavailable`, `StorageUnavailable`."""
        if self._has_second_proof(request, presented, known.call, key):
            return True
        return await self._is_proved_by(known.call.authorization.payer, request, body)

    def _may_be_entitled(
        self, request: ProxyRequest, presented: PresentedAuthorization, known: AuthorizedCall, key: str | None
    ) -> bool:
        """False where no body makes `_is_entitled` true: there is no wallet proof, or the body is too long for one."""
        is_short = (request.body.length or 0) <= self._limits.bound_body_bytes_max
        has_proof = is_short and _has_wallet_proof(request)
        return self._has_second_proof(request, presented, known, key) or has_proof

    def _has_second_proof(
        self, request: ProxyRequest, presented: PresentedAuthorization, known: AuthorizedCall, key: str | None
    ) -> bool:
        """The challenge or the idempotency key of the claim, or its client network."""
        return _has_claim_secret(presented, known, key) or self._networks.is_same(
            known.client_network, known.authorization.nonce, request.client_address
        )

    async def _is_proved_by(self, payer: Address, request: ProxyRequest, body: ForwardBody) -> bool:
        """A proof that does not hold counts as none: the authorisation itself is good, and so is no reason for a 401."""
        signed = _build_signed_request(request, body)
        if signed is None:
            return False
        try:
            return await self._prove_wallet(signed) == payer
        except Refusal as refusal:
            if refusal.problem.code is Code.RATE_LIMITED:
                raise
            return False

    def explain_known(self, authorized: ClaimedAuthorization) -> Problem:
        """For a request that the same authorisation has overtaken. Never with terms: it may have paid."""
        if not authorized.is_proven:
            return authorization_used(None, authorized.call.state)
        return self.explain_running(authorized.call)

    def explain_running(self, known: AuthorizedCall) -> Problem:
        """For a request that the same authorisation has overtaken: a later request gets what the record says then."""
        if known.state is not CallState.SETTLING:
            return in_progress(known.call_id)
        return self._explain_undecided(known.call_id)

    async def explain_taken(self, taken: AuthorizationTaken, key: AuthorizationKey, digest: bytes) -> Problem:
        """The same authorisation was claimed first; mostly by the same request, sent twice at once."""
        known = await self._ledger.find_authorized_call(key)
        if known is not None and known.digest == digest != UNKNOWN_DIGEST:
            return self.explain_running(known)
        return authorization_used(taken.call_id, taken.state)

    def _explain_undecided(self, call_id: CallId) -> Problem:
        members = {"call": f"{self._public_url}/api/v2/history/{call_id}"}
        return replace(OUTCOME_UNKNOWN, call_id=call_id, members=members, payment_state="held")

    def _tokens_of(self, presented: PresentedAuthorization) -> tuple[Address, ...]:
        if presented.token is not None:
            return (presented.token,)
        rules = self._rules.get(presented.chain_id)
        assets = () if rules is None else rules.assets
        return tuple(asset.token for asset in assets if asset.token is not None and asset.domain is not None)

    def _write_receipt(self, request: ProxyRequest, known: AuthorizedCall) -> Headers:
        if known.transfer is None:
            return []
        authorization = known.authorization
        return [self._receipts.write_receipt(known.transfer, request=request, authorization=authorization)]

    # ---- The same idempotency key.

    async def find_by_key(
        self, request: ProxyRequest, proof: object, body: ForwardBody, wallets: Iterable[Address], key: str
    ) -> ProxyResponse | Problem | KeyedCall | AuthorizedCall | None:
        """What a wallet gets whose key has named a call: that call's response, free, and what is shown now stays unused.
        A call may run again under the claim that it has. None: the key has named none yet."""
        found = await self._find_keyed(request, body, wallets, key)
        if isinstance(found, KeyedCall) and isinstance(proof, PresentedAuthorization):
            return await self._find_authorized_by_key(found, proof)
        return found

    async def _find_keyed(
        self, request: ProxyRequest, body: ForwardBody, wallets: Iterable[Address], key: str
    ) -> ProxyResponse | Problem | KeyedCall | None:
        found = await self._find_keyed_call(wallets, key)
        if found is None:
            return None
        payer, earlier = found
        return await self.find_keyed_response(request, body, payer, earlier)

    async def _find_keyed_call(
        self, wallets: Iterable[Address], key: str
    ) -> tuple[Address, KeyedCall] | None:
        """The call that one of these wallets has named by the key, as long as its response may be stored."""
        since_ms = self._ledger.shared_ms() - self._limits.answer_ttl_s * 1000
        for payer in wallets:
            earlier = await self._ledger.find_keyed_call(payer, key, since_ms=since_ms)
            if earlier is not None:
                return payer, earlier
        return None

    async def _find_authorized_by_key(
        self, keyed: KeyedCall, presented: PresentedAuthorization
    ) -> AuthorizedCall | Problem:
        """A call that runs again is paid by the authorisation that was claimed for it; the one that is shown now stays unused."""
        known = None
        if keyed.authorization is not None:
            known = await self._ledger.find_authorized_call(keyed.authorization)
        if known is None or known.call_id != keyed.call_id:
            return explain_key_used(keyed)
        if known.authorization.dialect != presented.dialect:  # in which the response would speak
            return explain_key_used(keyed)
        return known

    async def find_keyed_response(
        self, request: ProxyRequest, body: ForwardBody, payer: Address, earlier: KeyedCall
    ) -> ProxyResponse | Problem | KeyedCall:
        """The same, once it is known which call the key has named."""
        body_hash = body.body_hash
        if body_hash is None or request.digest_for(payer, body_hash) != earlier.digest:
            return replace(KEY_REUSED, call_id=earlier.call_id)
        if earlier.state is CallState.FORWARDING:
            return in_progress(earlier.call_id)
        if earlier.state is CallState.SETTLING:
            return self._explain_undecided(earlier.call_id)
        if earlier.state is CallState.CONSUMED:
            stored = await self._stored_responses.find(earlier.call_id, now_ms=self._ledger.shared_ms())
            if stored is not None:
                return _build_replay(request, stored, earlier.call_id, [])
            if self._is_response_being_read(earlier):
                return in_progress(earlier.call_id, payment_state="charged")
        return earlier if _may_run_again(earlier, request.method) else explain_key_used(earlier)

    async def find_overtaken_response(
        self,
        request: ProxyRequest,
        body: ForwardBody,
        payer: Address | None,
        key: str | None,
        earlier: KeyedCall,
    ) -> ProxyResponse | Problem:
        """For a request that was about to run a call again when another one did: mostly that it is running."""
        recorded = None
        if key is not None and payer is not None:
            recorded = await self._find_keyed(request, body, (payer,), key)
        return explain_key_used(earlier) if recorded is None or isinstance(recorded, KeyedCall) else recorded

    async def find_overtaken_authorization(
        self, request: ProxyRequest, body: ForwardBody, key: str | None, earlier: AuthorizedCall
    ) -> ProxyResponse | Problem:
        """The same, for a call that an authorisation pays."""
        if key is not None:
            recorded = await self._find_keyed(request, body, (earlier.authorization.payer,), key)
            if isinstance(recorded, ProxyResponse | Problem):
                return recorded
        now = await self._ledger.find_authorized_call(earlier.authorization.key)
        if now is not None and now.state in (CallState.FORWARDING, CallState.SETTLING):
            return self.explain_running(now)
        return authorization_used(earlier.call_id, earlier.state)

    def _is_response_being_read(self, earlier: KeyedCall) -> bool:
        """Its answer is stored when it has been read to its end. Not one that is known to be lost; and not for ever: its
        gateway may have died over it."""
        if earlier.is_lost:
            return False
        age_ms = abs(self._ledger.shared_ms() - earlier.moved_ms)
        return not earlier.is_delivered and age_ms < self._limits.answer_reading_s * 1000

    async def store_response(self, call_id: CallId, payer: Address, find_response: StoredResponse) -> None:
        """Losing an answer costs a repeat, never money: it must not break the answer that is on its way."""
        try:
            await self._stored_responses.keep(call_id, payer, find_response, now_ms=self._ledger.shared_ms())
        except StorageUnavailable:
            _log.warning("answer_not_kept", call_id=call_id)


def explain_key_used(earlier: KeyedCall) -> Problem:
    """There is no stored response, and what is shown now cannot run the call again."""
    return key_used(earlier.call_id, earlier.state)


def _explain_used(known: AuthorizedCall) -> Problem:
    if known.state is CallState.RELEASED and known.transfer is not None:
        return authorization_became_credit(known.call_id, known.transfer)
    return authorization_used(known.call_id, known.state)


def _may_run_again(earlier: KeyedCall, method: str) -> bool:
    """Whoever names a call by a key says that the same again is the same call, whatever its method. What an upstream has
    answered in part is another matter: it has done what it was asked."""
    if earlier.state is CallState.UNKNOWN:
        return True
    return earlier.is_lost and method in SAFE_METHODS


def _is_signature_of(presented: PresentedAuthorization, known: AuthorizedCall) -> bool:
    return presented.signature == known.authorization.signature


def _is_same_proof(presented: PresentedAuthorization, known: AuthorizedCall, *, key: str | None) -> bool:
    """Once it is settled, anybody can read an authorisation and its signature on the chain. An MPP challenge's id and an
    idempotency key are not there: what came with one is given out with the same one only."""
    claimed = known.authorization
    return (
        (presented.dialect, presented.challenge_id) == (claimed.dialect, claimed.challenge_id)
        and (known.idempotency_key is None or key == known.idempotency_key)
        and _is_signature_of(presented, known)
    )


def _has_claim_secret(presented: PresentedAuthorization, known: AuthorizedCall, key: str | None) -> bool:
    claimed = known.authorization
    if claimed.dialect is Dialect.MPP and presented.challenge_id == claimed.challenge_id:
        return True
    return known.idempotency_key is not None and key == known.idempotency_key


def _has_wallet_proof(request: ProxyRequest) -> bool:
    return any(request.find_header(name) is not None for name in _WALLET_PROOFS)


def _build_signed_request(request: ProxyRequest, body: ForwardBody) -> SignedRequest | None:
    """The call as its caller may have signed it. None where it carries no wallet proof, or its body was too long to keep:
    then its digest cannot be compared."""
    if not _has_wallet_proof(request) or not isinstance(body.content, bytes | None) or body.is_discarded:
        return None
    return SignedRequest(
        method=request.method,
        raw_path=f"{GATEWAY_PREFIX}{request.listing_id}{request.target.rest}".encode(),
        query=request.target.query.encode(),
        headers=request.headers,
        body=body.content or b"",
        client_address=request.client_address,
    )


_WALLET_PROOFS = (b"signature-input", b"sign-in-with-x")


def _build_replay(
    request: ProxyRequest, stored: StoredResponse, call_id: CallId, receipt: Headers
) -> ProxyResponse:
    """`receipt`: of a payment that was not decided when the answer was stored; else it is stored with it."""
    stored_names = {name for name, _ in stored.headers}
    own: Headers = [
        (b"idempotency-replayed", b"true"),
        (b"tollway-call-id", call_id.encode()),
        (b"tollway-payment-state", b"charged"),
        *(header for header in receipt if header[0] not in stored_names),
    ]
    body = b"" if request.method == "HEAD" else stored.body
    return ProxyResponse(status=stored.status, headers=[*stored.headers, *own], first=body)


def find_token_asset(rules: Mapping[ChainId, ChainRules], authorization: Authorization) -> Asset | None:
    here = rules.get(authorization.chain_id)
    assets = () if here is None else here.assets
    return next((asset for asset in assets if asset.token == authorization.token), None)
