"""Repeats of a call: a request with the same authorisation, or any request with an idempotency key that names a call.

    find -> is the authorisation in the ledger? -> compare signature, secret and body -> stored, running, used, or runs again
         -> is the deposit of a channel in the ledger? -> compare the body -> stored
         -> does the key name a call of a wallet that the proof opens? -> compare the body -> the same outcomes

This module finds the earlier call of a request before the pipeline checks the listing, the payment or a chain. It only reads: the
rails claim, reopen and settle, and the ledger decides which call a key names.

An authorisation in the ledger never gets a quote, because its money may have moved. Delivering a stored response costs nothing.
The age of a call and of its response is measured by the clock that all gateways share, the validity of a proof by this gateway's clock.
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
"""Verifies the wallet proof of a request and returns the wallet. Raises `Refusal` without a valid proof, `ChainUnavailable`,
`StorageUnavailable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAuthorization:
    """A call that holds an authorisation, or that a settled authorisation has paid. `is_proven`: the request has the claimed signature,
    or another one by the payer's key. A request without either gets no details of the call, and no quote."""

    call: AuthorizedCall
    is_proven: bool


class KeyReader(Protocol):
    """The part of a rail that reads idempotency keys."""

    def find_key(self, request: ProxyRequest, proof: Any) -> str | None:
        """The idempotency key of the request: from its header, or from the proof."""
        ...

    def find_deposit(self, proof: Any) -> AuthorizationKey | None:
        """The deposit that the proof has beside its signature; None without one."""
        ...

    async def load_body(self, request: ProxyRequest, proof: Any, listing: Listing) -> ForwardBody:
        """Loads the body in the form that the proof needs: hashed where a signature or an idempotency key covers it, else streamed. A
        body with an idempotency key is read whole first (at most 1 MiB). Raises ClientGone and Refusal."""
        ...

    async def find_key_wallets(
        self, request: ProxyRequest, entry: CatalogEntry, proof: Any, body: ForwardBody | None
    ) -> tuple[Address, ...] | None:
        """The wallets whose idempotency keys the proof opens at this listing. Makes no chain request. None where the signature covers
        a body that is not read yet (`body` None). Raises StorageUnavailable."""
        ...


# The paid response is not stored yet; a later repeat gets it.
_RUNNING_CODES = frozenset({Code.IDEMPOTENCY_IN_PROGRESS, Code.PAYMENT_OUTCOME_UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The earlier call of a request: its stored response, the problem in place of one, or the call that may run again.

    `response` and `call` are None where there is no earlier call. `body`: the body, where the look-up has read it. `key_wallets`: the
    wallets whose keys were looked up. `is_entitled`: the request proves more than an authorisation that may be public on a chain.
    """

    response: ProxyResponse | Problem | None = None
    call: KeyedCall | AuthorizedCall | None = None
    body: ForwardBody | None = None
    key_wallets: tuple[Address, ...] = ()
    is_entitled: bool = False

    @property
    def is_deliverable(self) -> bool:
        """Whether `response` is the paid response, or reports that the call is running. Both are delivered for a closed listing too."""
        if isinstance(self.response, Problem):
            return self.response.code in _RUNNING_CODES
        return self.response is not None


class ClientNetworks:
    """Keyed hashes of client networks (an IPv4 address, an IPv6 /64), which compare the network of a repeat with that of its claim.

    Each hash covers the authorisation's nonce too. So a copy of the database reveals neither a network nor which calls came from one
    network; only the holder of the secret key can test a guess, call by call.
    """

    _PURPOSE = b"tollway client network"
    _BYTES = 16

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def derive(cls, secrets: Sequence[bytes]) -> Self:
        """`secrets`: at least one secret key, the current one first."""
        return cls([hmac.digest(secret, cls._PURPOSE, "sha256") for secret in secrets])

    def hash(self, nonce: bytes, client_address: str) -> bytes:
        """The 16-byte hash with the current key."""
        return self._hash(self._keys[0], nonce, client_address)

    def is_same(self, kept: bytes | None, nonce: bytes, client_address: str) -> bool:
        """Whether the claim came from the network of this address, by any of the keys. False without a stored hash (`kept` None)."""
        return kept is not None and any(
            hmac.compare_digest(kept, self._hash(key, nonce, client_address)) for key in self._keys
        )

    def _hash(self, key: bytes, nonce: bytes, client_address: str) -> bytes:
        network = client_bucket(client_address).encode()
        return hmac.digest(key, len(nonce).to_bytes(4, "big") + nonce + network, "sha256")[: self._BYTES]


class Idempotency:
    """Finds the earlier call of a repeated request. One per process; safe to use from many tasks at once. Raises `StorageUnavailable`."""

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
        """Finds the earlier call of a request. None where there is none and the body is not read.

        Reads the body only where the authorisation is in the ledger, where the key names a call of a wallet that the proof opens, or
        where the signature covers the body. `is_free`: the call costs nothing now; then only the call of its key counts, or a
        response that can be delivered. Raises ClientGone, Refusal, ChainUnavailable."""
        known = None
        if isinstance(proof, PresentedAuthorization):
            known = await self.find_known(proof)
        elif (deposit := reader.find_deposit(proof)) is not None:
            repeat = await self._find_deposited(request, entry, reader, proof, deposit)
            if repeat is not None:
                return repeat
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
        """The repeat of a request whose authorisation is in the ledger."""
        problem = self._find_unread_response(request, presented, known, key=key)
        if problem is not None:
            return Repeat(response=problem)
        request.body.prove()
        body = await load_compared(request.body, limits=self._limits)
        is_entitled = await self._is_entitled(request, presented, known, body, key)
        response = await self._find_response(request, known.call, body, is_entitled=is_entitled)
        call = known.call if response is None else None
        return Repeat(response=response, call=call, body=body, is_entitled=is_entitled)

    async def _find_deposited(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        reader: KeyReader,
        proof: object,
        key: AuthorizationKey,
    ) -> Repeat | None:
        """The stored response of the call whose deposit was undecided. The deposit is public by then, so the proof beside it opens the response (`find_key_wallets`)."""
        known = await self._ledger.find_authorized_call(key)
        if known is None or known.state is not CallState.CONSUMED or not known.has_stored_response:
            return None
        if self._is_too_large(request) or not await reader.find_key_wallets(request, entry, proof, None):
            return None
        request.body.prove()
        body = await load_compared(request.body, limits=self._limits)
        if body.body_hash is None or request.digest_for(key.payer, body.body_hash) != known.digest:
            return Repeat(body=body)
        stored = await self._stored_responses.find(known.call_id, now_ms=self._ledger.shared_ms())
        response = None if stored is None else _build_replay(request, stored, known.call_id, [])
        return Repeat(response=response, body=body)

    async def _find_named(
        self,
        request: ProxyRequest,
        entry: CatalogEntry,
        reader: KeyReader,
        proof: object,
        body: ForwardBody | None = None,
    ) -> Repeat | None:
        """The repeat of a request by its idempotency key. `body`: the body, where it is read already."""
        key = reader.find_key(request, proof)
        if key is None or self._is_too_large(request) or check_idempotency_key(request) is not None:
            return None
        wallets = await reader.find_key_wallets(request, entry, proof, body)
        if wallets is not None and await self._find_keyed_call(wallets, key) is None:
            # The body is not read for a key that the proof does not open, or that names no call.
            return Repeat(body=body, key_wallets=wallets) if wallets else None
        if body is None:
            if wallets is not None:
                request.body.prove()
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

    # ---- The same authorisation.

    async def find_known(self, presented: PresentedAuthorization) -> ClaimedAuthorization | None:
        """The call that this authorisation pays or has paid; None where it may still pay for a call.

        The look-up ignores the signature, because a contract wallet may sign the same authorisation differently each time. A nonce
        may be public on the chain, so details of the call need the claimed signature (`is_proven`)."""
        for token in self._tokens_of(presented):
            key = AuthorizationKey(presented.chain_id, "0x" + token.hex(), presented.payer, presented.nonce)
            call = await self._ledger.find_authorized_call(key)
            if call is None or (call.state is CallState.RELEASED and call.transfer is None):
                continue
            is_proven = _is_signature_of(presented, call) or self._is_signed_anew_by_payer(presented, call)
            return ClaimedAuthorization(call=call, is_proven=is_proven)
        return None

    def is_signed_by_payer(self, presented: PresentedAuthorization) -> bool:
        """Whether the payer's key signed, and the authorisation is within its validity. An old settled authorisation is public, so it
        proves nothing."""
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
        """Whether the payer's key signed the same nonce again: wallets do that where the protocol sets the nonce (MPP)."""
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
        """The response to a repeat. None where the call may run again under its own claim."""
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
        if known.idempotency_key is not None:  # equal to the key of this request (`_is_same_proof`)
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
        """The problem that does not depend on the body: the request lacks the claimed signature, has another challenge or key than the
        claim, or proves nothing beside a public authorisation. None: the body decides."""
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
        """Whether the request proves more than a chain publishes: the challenge or the idempotency key of the claim, the client network
        of the claim, or a fresh proof of the paying wallet. Uses up the nonce of such a proof, so it is called once per request.
        Raises `Refusal` (`rate_limited`), `ChainUnavailable`, `StorageUnavailable`."""
        if self._has_second_proof(request, presented, known.call, key):
            return True
        return await self._is_proved_by(known.call.authorization.payer, request, body)

    def _may_be_entitled(
        self, request: ProxyRequest, presented: PresentedAuthorization, known: AuthorizedCall, key: str | None
    ) -> bool:
        """False where `_is_entitled` is false for every body: there is no wallet proof, or the body is too long for one."""
        is_short = (request.body.length or 0) <= self._limits.bound_body_bytes_max
        has_proof = is_short and has_wallet_proof(request)
        return self._has_second_proof(request, presented, known, key) or has_proof

    def _has_second_proof(
        self, request: ProxyRequest, presented: PresentedAuthorization, known: AuthorizedCall, key: str | None
    ) -> bool:
        """Whether the request has the challenge, the idempotency key or the client network of the claim."""
        return _has_claim_secret(presented, known, key) or self._networks.is_same(
            known.client_network, known.authorization.nonce, request.client_address
        )

    async def _is_proved_by(self, payer: Address, request: ProxyRequest, body: ForwardBody) -> bool:
        """Whether the request has a proof of that wallet. An invalid proof counts as none: the authorisation is valid, so there is no 401."""
        signed = build_signed_request(request, body)
        if signed is None:
            return False
        try:
            return await self._prove_wallet(signed) == payer
        except Refusal as refusal:
            if refusal.problem.code is Code.RATE_LIMITED:
                raise
            return False

    def explain_known(self, authorized: ClaimedAuthorization) -> Problem:
        """The problem of a request whose authorisation another request has claimed first. Without a quote: it may be paid."""
        if not authorized.is_proven:
            return authorization_used(None, authorized.call.state)
        return self.explain_running(authorized.call)

    def explain_running(self, known: AuthorizedCall) -> Problem:
        """The problem of a request whose authorisation another request has claimed first and proved. A later repeat gets the outcome."""
        if known.state is not CallState.SETTLING:
            return in_progress(known.call_id)
        return self._explain_undecided(known.call_id)

    async def explain_taken(self, taken: AuthorizationTaken, key: AuthorizationKey, digest: bytes) -> Problem:
        """The problem of a claim that came second, mostly because the same request was sent twice at once."""
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
        return [
            self._receipts.write_receipt(
                known.transfer, request=request, authorization=authorization, moved_ms=known.moved_ms
            )
        ]

    # ---- The same idempotency key.

    async def find_by_key(
        self, request: ProxyRequest, proof: object, body: ForwardBody, wallets: Iterable[Address], key: str
    ) -> ProxyResponse | Problem | KeyedCall | AuthorizedCall | None:
        """The outcome of a key that names a call: its stored response without a charge, a problem, or the call that may run again under
        its own claim. The payment of this request stays unused. None where the key names no call."""
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
        """The call that the key of one of these wallets names, within the time for which a response is stored."""
        since_ms = self._ledger.shared_ms() - self._limits.response_ttl_s * 1000
        for payer in wallets:
            earlier = await self._ledger.find_keyed_call(payer, key, since_ms=since_ms)
            if earlier is not None:
                return payer, earlier
        return None

    async def _find_authorized_by_key(
        self, keyed: KeyedCall, presented: PresentedAuthorization
    ) -> AuthorizedCall | Problem:
        """The authorised call of a key, to run again. The claimed authorisation pays it; the authorisation of this request stays unused."""
        known = None
        if keyed.authorization is not None:
            known = await self._ledger.find_authorized_call(keyed.authorization)
        if known is None or known.call_id != keyed.call_id:
            return explain_key_used(keyed)
        if known.authorization.dialect != presented.dialect:  # the response would be in another dialect
            return explain_key_used(keyed)
        return known

    async def find_keyed_response(
        self, request: ProxyRequest, body: ForwardBody, payer: Address, earlier: KeyedCall
    ) -> ProxyResponse | Problem | KeyedCall:
        """`find_by_key` for a call that the ledger has found."""
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
        """The outcome of a request that lost the race to run a call again: mostly that the call is running."""
        recorded = None
        if key is not None and payer is not None:
            recorded = await self._find_keyed(request, body, (payer,), key)
        return explain_key_used(earlier) if recorded is None or isinstance(recorded, KeyedCall) else recorded

    async def find_overtaken_authorization(
        self, request: ProxyRequest, body: ForwardBody, key: str | None, earlier: AuthorizedCall
    ) -> ProxyResponse | Problem:
        """`find_overtaken_response` for a call that an authorisation pays."""
        if key is not None:
            recorded = await self._find_keyed(request, body, (earlier.authorization.payer,), key)
            if isinstance(recorded, ProxyResponse | Problem):
                return recorded
        now = await self._ledger.find_authorized_call(earlier.authorization.key)
        if now is not None and now.state in (CallState.FORWARDING, CallState.SETTLING):
            return self.explain_running(now)
        return authorization_used(earlier.call_id, earlier.state)

    def _is_response_being_read(self, earlier: KeyedCall) -> bool:
        """Whether another task may still be reading the response, which is stored at its end. False for a lost response, and after
        `response_reading_s`: its gateway may have died."""
        if earlier.is_lost:
            return False
        age_ms = abs(self._ledger.shared_ms() - earlier.moved_ms)
        return not earlier.is_delivered and age_ms < self._limits.response_reading_s * 1000

    async def store_response(
        self, call_id: CallId, response: StoredResponse, *, payer: Address, provider: Address
    ) -> None:
        """Stores a response for repeats. A storage failure is only logged: it costs a repeat, never money, and must not cut the response
        that streams to the caller."""
        try:
            await self._stored_responses.keep(
                call_id, response, payer=payer, provider=provider, now_ms=self._ledger.shared_ms()
            )
        except StorageUnavailable:
            _log.warning("response_not_kept", call_id=call_id)


def explain_key_used(earlier: KeyedCall) -> Problem:
    """The problem of a key whose call has no stored response and cannot run again."""
    return key_used(earlier.call_id, earlier.state)


def _explain_used(known: AuthorizedCall) -> Problem:
    if known.state is CallState.RELEASED and known.transfer is not None:
        return authorization_became_credit(known.call_id, known.transfer)
    return authorization_used(known.call_id, known.state)


def _may_run_again(earlier: KeyedCall, method: str) -> bool:
    """Whether a call with a key may run again. An idempotency key allows a repeat of any method whose outcome is unknown. After a cut
    response the upstream has processed the request, so only a safe method may run again."""
    if earlier.state is CallState.UNKNOWN:
        return True
    return earlier.is_lost and method in SAFE_METHODS


def _is_signature_of(presented: PresentedAuthorization, known: AuthorizedCall) -> bool:
    return presented.signature == known.authorization.signature


def _is_same_proof(presented: PresentedAuthorization, known: AuthorizedCall, *, key: str | None) -> bool:
    """Whether the request has the signature of the claim, and the same MPP challenge and idempotency key where the claim had one. A
    settled authorisation and its signature are public on the chain; the challenge and the key are not."""
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


def has_wallet_proof(request: ProxyRequest) -> bool:
    """Whether the request names a wallet beside its payment: by a signature of the request, or by `SIGN-IN-WITH-X`. Not verified."""
    return any(request.find_header(name) is not None for name in _WALLET_PROOFS)


def build_signed_request(request: ProxyRequest, body: ForwardBody) -> SignedRequest | None:
    """The request for the check of its wallet proof. None where it has no wallet proof, or its body was too long to keep, so that the
    digest cannot be compared."""
    if not has_wallet_proof(request) or not isinstance(body.content, bytes | None) or body.is_discarded:
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
    """Builds the response from a stored one. `receipt`: the receipt of a payment that was settled after the response was stored."""
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
