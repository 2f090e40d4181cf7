"""Authorisations on their chain: the simulation of a transfer, the use of a nonce, a contract wallet's signature, a
facilitator's check, and the quota of such look-ups.

The module only reads: it changes no ledger. A wallet with code and the facilitator are called last, for an authorisation that the
token would accept; the facilitator's response decides only whether the call may be forwarded.

Every look-up counts per client address and per signer, unless its call was charged. A look-up of a running call counts only
up to the number of recent look-ups of the same address or signer that found no payment, so a payer can have any number of
calls at once. No money depends on this quota.
"""

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from limits import RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.chain.multicall import parse_returns
from tollway.chain.port import (
    AuthorizationFacts,
    ChainFacts,
    ChainReader,
    ContractResult,
    Quorum,
    SettlementChain,
)
from tollway.chain.tokens import encode_is_valid_signature, has_ended, has_settled, is_signature_valid
from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable, describe_rate
from tollway.ids import ZERO_ADDRESS, Address, TxHash
from tollway.ledger.records import Authorization, SettledTransfer
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.deployment import (
    Deployment,
    choose_deployment,
    choose_signature,
    encode_deployed_check,
)
from tollway.payments.eip3009 import authorization_digest
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.nonces import NonceSequence
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.receipts import is_deep
from tollway.payments.transactions import encode_settlement
from tollway.payments.wire import AuthorizationReason, explain_authorization
from tollway.rate_limits.limiter import RateLimiter, client_bucket
from tollway.rate_limits.windows import LocalWindows

BACK_BLOCKS = 64
"""How far the search goes back: one node named the first block, and the node that lists uses can be behind it or on a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFound:
    """The authorisation moved its money in this transfer."""

    transfer: SettledTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The authorisation was cancelled, or another transfer used its nonce: it can never pay."""

    tx_hash: TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class UseNotFound:
    """No use is known yet, or none has enough confirmations."""


AuthorizationUse = TransferFound | Cancelled | UseNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTransfer:
    """`deployment`: of the payer's wallet, where the transaction contains it. `gas_max`: the most gas that the transaction may use."""

    facts: AuthorizationFacts
    deployment: Deployment | None
    gas_max: int

    @property
    def code_hash(self) -> bytes | None:
        """What the gas of a payer with code counts under (`GasBudget.is_wallet_served`); None: a plain wallet."""
        return self.facts.code_hash if self.deployment is None else self.deployment.code_hash


async def simulate_transfer(
    chains: SettlementChain,
    authorization: Authorization,
    *,
    sequence: NonceSequence | None,
    factories: Collection[Address],
    limits: Limits,
    quorum: Quorum,
) -> SimulatedTransfer:
    """Simulates the transfer of the authorisation. The sender is the key of `sequence`, or the zero address where no key can send.

    A wrapped signature (ERC-6492) of a wallet without code needs a second round trip: the transfer within the transaction that deploys the wallet,
    where its factory is in `factories`. A wallet that has code by then is simulated without its deployment again.
    """

    async def simulate(deployment: Deployment | None) -> SimulatedTransfer:
        to, calldata = encode_settlement(authorization, deployment)
        gas_max = limits.settlement_gas_max if deployment is None else limits.deployment_gas_max
        facts = await chains.fetch_authorization(
            authorization.chain_id,
            token=authorization.token,
            payer=authorization.payer,
            nonce=authorization.nonce,
            sender=ZERO_ADDRESS if sequence is None else sequence.key.address,
            to=to,
            calldata=calldata,
            gas=gas_max,
            valid_after=authorization.valid_after,
            quorum=quorum,
        )
        return SimulatedTransfer(facts=facts, deployment=deployment, gas_max=gas_max)

    simulated = await simulate(None)
    deployment = choose_deployment(
        authorization.signature, code_size=simulated.facts.code_size, factories=factories
    )
    if deployment is None:
        return simulated
    simulated = await simulate(deployment)
    if simulated.facts.code_size > 0:
        return await simulate(None)
    return simulated if _has_made_calls(simulated.facts.simulation) else without_pass(simulated)


_DEPLOYING_CALLS = 2


def _has_made_calls(simulation: ContractResult) -> bool:
    """Whether the deployment and the transfer were made. An address without code, such as that of Multicall3 on a chain that lacks it,
    accepts every call and returns nothing."""
    try:
        returns = parse_returns(simulation.payload)
    except ValueError:
        return False
    return len(returns) == _DEPLOYING_CALLS and all(one.succeeded for one in returns)


def without_pass(simulated: SimulatedTransfer) -> SimulatedTransfer:
    reverted = ContractResult(reverted=True, payload=b"")
    return replace(simulated, facts=replace(simulated.facts, simulation=reverted, gas_estimate=None))


async def find_use(
    chains: SettlementChain,
    authorization: Authorization,
    *,
    from_block: int,
    depth: int,
    quorum: Quorum = Quorum.AGREED,
) -> AuthorizationUse:
    """Finds the use of the nonce since `BACK_BLOCKS` before `from_block`, `depth` confirmations deep."""
    tx_hash = await find_end(chains, authorization, from_block=from_block, quorum=quorum)
    if tx_hash is None:
        return UseNotFound()
    facts = await chains.fetch_facts(authorization.chain_id, tx_hash, quorum=quorum)
    if not is_deep(facts, depth=depth):
        return UseNotFound()
    transfer = find_transfer(facts, authorization, quorum=quorum)
    if transfer is not None:
        return TransferFound(transfer=transfer)
    # A receipt without this nonce proves nothing: the node's two responses contradict each other.
    is_ended = facts.succeeded and has_ended(
        facts.logs, token=authorization.token, payer=authorization.payer, nonce=authorization.nonce
    )
    return Cancelled(tx_hash=tx_hash) if is_ended else UseNotFound()


async def find_end(
    chains: SettlementChain, authorization: Authorization, *, from_block: int, quorum: Quorum = Quorum.AGREED
) -> TxHash | None:
    """The transaction that used or cancelled the nonce, at any depth."""
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
    """The transfer of this authorisation in that transaction. One node's response makes no transfer final: a final payment is never checked again."""
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


_KEY_SIGNATURE_BYTES = 65


async def find_precheck_refusal(
    authorization: Authorization,
    requirement: PaymentRequirement,
    simulated: SimulatedTransfer,
    *,
    signer: Address | None,
    chains: ChainReader,
    facilitator: FacilitatorClient | None,
    limits: Limits,
) -> Problem | None:
    """The refusal of the paying wallet (ERC-1271) or the facilitator. `signer`: the address of the key that made the signature."""
    deployment = simulated.deployment
    if deployment is not None:
        if not await is_signed_when_deployed(chains, authorization, requirement.asset, deployment, limits):
            return explain_authorization(AuthorizationReason.SIGNATURE, _DEPLOYED_WALLET_REFUSES)
    elif _needs_wallet_check(
        authorization, simulated.facts, signer, limits
    ) and not await _is_signed_by_wallet(chains, authorization, requirement.asset, limits):
        return explain_authorization(AuthorizationReason.SIGNATURE, _WALLET_REFUSES)
    if facilitator is None:
        return None
    reason = await facilitator.verify(authorization, requirement.asset, timeout_s=requirement.max_timeout_s)
    if reason is None:
        return None
    detail = "The facilitator of this network would not settle the authorisation."
    return Problem(code=Code.PAYMENT_VERIFICATION_FAILED, detail=detail, reason=reason, payment_state="none")


async def explain_failed_simulation(
    authorization: Authorization,
    asset: Asset,
    facts: AuthorizationFacts,
    *,
    chains: ChainReader,
    limits: Limits,
) -> str | None:
    """Why a simulation fails for a wallet with code: its own code refuses the signature. None for every other cause, also where no node
    returns the wallet's result: the transfer is refused already."""
    if facts.code_size == 0:
        return None
    with contextlib.suppress(ChainUnavailable):
        if not await _is_signed_by_wallet(chains, authorization, asset, limits):
            return _OWN_CODE_REFUSES
    return None


def _needs_wallet_check(
    authorization: Authorization, facts: AuthorizationFacts, signer: Address | None, limits: Limits
) -> bool:
    """A delegated account (EIP-7702) has code and a key. Where the key signed, and the whole transfer needs no more gas
    than a wallet may use for its check, the wallet's own check decides nothing."""
    if facts.code_size == 0:
        return False
    is_cheap = facts.gas_estimate is not None and facts.gas_estimate <= limits.erc1271_gas
    return not (signer == authorization.payer and is_cheap)


async def _is_signed_by_wallet(
    chains: ChainReader, authorization: Authorization, asset: Asset, limits: Limits
) -> bool:
    """Calls ERC-1271 `isValidSignature` within limits. The token makes the same call in the simulation, but with all the gas of a
    transfer; the gateway pays no transaction of a wallet that needs more gas than the limit."""
    result = await chains.call_contract(
        authorization.chain_id,
        to=authorization.payer,
        calldata=encode_is_valid_signature(
            digest=_digest(authorization, asset), signature=_wallet_signature(authorization)
        ),
        gas=limits.erc1271_gas,
        bytes_max=limits.erc1271_bytes_max + 1,
        deadline_s=limits.erc1271_deadline_s,
    )
    is_short = len(result.payload) <= limits.erc1271_bytes_max
    return not result.reverted and is_short and is_signature_valid(result.payload)


async def is_signed_when_deployed(
    chains: ChainReader,
    authorization: Authorization,
    asset: Asset,
    deployment: Deployment,
    limits: Limits,
) -> bool:
    """Calls the factory and then ERC-1271 `isValidSignature` of the payer, in one `eth_call`. The payer must have code then: otherwise a plain wallet
    could have any wallet deployed at the gateway's cost.

    It is called before the claim and again before each signature: a delegated account (EIP-7702) can end its delegation in between, and its transfer
    then passes beside a deployment of another wallet.
    """
    if asset.domain is None:
        return False  # the settings have changed since the claim
    to, calldata = encode_deployed_check(
        deployment,
        wallet=authorization.payer,
        digest=_digest(authorization, asset),
        signature=_wallet_signature(authorization),
    )
    result = await chains.call_contract(
        authorization.chain_id,
        to=to,
        calldata=calldata,
        gas=limits.deployment_gas_max,
        bytes_max=limits.erc1271_bytes_max + 1,
        deadline_s=limits.erc1271_deadline_s,
    )
    if result.reverted or len(result.payload) > limits.erc1271_bytes_max:
        return False
    try:
        deployed, checked = parse_returns(result.payload)
    except ValueError:
        return False
    return deployed.succeeded and checked.succeeded and is_signature_valid(checked.payload)


def _digest(authorization: Authorization, asset: Asset) -> bytes:
    assert asset.domain is not None  # `check_authorization` has refused the others
    return authorization_digest(authorization, asset.domain)


_WALLET_REFUSES = (
    "The paying wallet does not confirm the signature within the limits of gas, size and time (ERC-1271)."
)
_DEPLOYED_WALLET_REFUSES = (
    "The call of the factory does not deploy the paying wallet, or the wallet does not confirm the signature within the limits of gas, "
    "size and time (ERC-6492, ERC-1271); deploy the wallet first."
)
_OWN_CODE_REFUSES = (
    "The paying wallet's own code refuses the signature (ERC-1271): the token asks this code, and not the wallet's key. Sign as the code "
    "requires, remove the delegation of a delegated account (EIP-7702), or pay by transaction."
)


def _wallet_signature(authorization: Authorization) -> bytes:
    return _normalize_v(choose_signature(authorization.signature))


def _normalize_v(signature: bytes) -> bytes:
    """Replaces v of 0 or 1 by 27 or 28, as the transfer does (`tokens.encode_transfer_with_authorization`)."""
    is_old = len(signature) == _KEY_SIGNATURE_BYTES and signature[64] < 2
    return signature[:64] + bytes([signature[64] + 27]) if is_old else signature


UNRESOLVED_S = 10
"""A look-up that no chain resolved is not the caller's fault, so it counts for a shorter time than a worthless authorisation. It
counts at all because an overloaded node would otherwise get even more requests."""
REMEMBERED_MINUTES = 10
"""Failed look-ups limit the running calls of their caller for this long."""


def quota_keys(client_address: str, signer: str) -> tuple[str, str]:
    return f"address:{client_bucket(client_address)}", f"signer:{signer}"


class UnresolvedQuota:
    """Limits look-ups without a response of the chain, per process: in ten seconds as many as worthless authorisations in a minute."""

    def __init__(self, limits: Limits) -> None:
        self._item = RateLimitItemPerSecond(limits.lookups_per_minute, UNRESOLVED_S, namespace="unresolved")
        self._windows = LocalWindows()

    def find_wait(self, keys: Sequence[str]) -> int | None:
        """Seconds to wait; None where a look-up is allowed. Counts nothing."""
        windows = [self._windows.peek(self._item, key) for key in keys]
        waits = [max(1, math.ceil(wait_s)) for left, wait_s in windows if left <= 0]
        return max(waits, default=None)

    def note(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._windows.hit(self._item, key)


class AuthorizationQuota:
    """Limits the look-ups of authorisations per client address and signer."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self._per_minute = limits.lookups_per_minute
        self._rate_limiter = rate_limiter
        self._item = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="junk_authorization")
        self._lately = RateLimitItemPerMinute(
            limits.lookups_per_minute * REMEMBERED_MINUTES, REMEMBERED_MINUTES
        )
        self._failed = LocalWindows()
        self._unresolved = UnresolvedQuota(limits)
        self._running: dict[str, int] = {}

    def open(self, client_address: str) -> "AuthorizationLookup":
        """The look-up that one request may need; a context, which ends it."""
        return AuthorizationLookup(self, client_address)

    async def enter(self, keys: Sequence[str]) -> Problem | None:
        """The refusal of a look-up; None: one look-up runs under these keys until `leave`."""
        ahead = {key: self._running.get(key, 0) for key in keys}
        for key in keys:
            self._running[key] = ahead[key] + 1
        wait_s: int | None = 1
        try:
            wait_s = await self._find_wait(keys, ahead)
        finally:
            if wait_s is not None:  # refused, or cancelled
                self.leave(keys)
        if wait_s is None:
            return None
        return Problem(
            code=Code.RATE_LIMITED,
            detail="Too many authorisations of this address or wallet were looked up on the chain and paid nothing.",
            retry_after_s=wait_s,
            payment_state="none",
            members=describe_rate("lookups", limit=self._per_minute, window_s=60),
        )

    def leave(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def count_unpaid(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._rate_limiter.count_hit(self._item, key)
            self._failed.hit(self._lately, key)

    def count_unresolved(self, keys: Sequence[str]) -> None:
        self._unresolved.note(keys)

    async def _find_wait(self, keys: Sequence[str], ahead: dict[str, int]) -> int | None:
        waits = [self._unresolved.find_wait(keys)]
        for key in keys:
            allowance = await self._rate_limiter.peek(self._item, key)
            failed_left, _ = self._failed.peek(self._lately, key)
            failed = self._lately.amount - failed_left
            is_full = allowance.left <= min(ahead[key], failed)
            waits.append(allowance.wait_s or 1 if is_full else None)
        return max((wait_s for wait_s in waits if wait_s is not None), default=None)


class AuthorizationLookup:
    """A context manager. The look-up is taken at the first request to a chain, and counted at the end unless `give_back` was called."""

    __slots__ = ("_is_given_back", "_is_unresolved", "_keys", "_quota", "client_address")

    def __init__(self, quota: AuthorizationQuota, client_address: str) -> None:
        self._quota = quota
        self.client_address = client_address
        self._keys: tuple[str, str] | None = None
        self._is_given_back = False
        self._is_unresolved = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        keys, self._keys = self._keys, None
        if keys is None:
            return
        self._quota.leave(keys)
        if self._is_unresolved or isinstance(exc, ChainUnavailable | StorageUnavailable):
            self._quota.count_unresolved(keys)
        elif not self._is_given_back:
            self._quota.count_unpaid(keys)

    async def take(self, signer: str) -> Problem | None:
        """Takes the look-up for this signer; returns the refusal, or None. Further look-ups of the same call are free."""
        if self._keys is not None:
            return None
        keys = quota_keys(self.client_address, signer)
        problem = await self._quota.enter(keys)
        if problem is None:
            self._keys = keys
        return problem

    def give_back(self) -> None:
        """Records that the call was charged: the look-up does not count."""
        self._is_given_back = True

    def leave_unresolved(self) -> None:
        """Records that the chain or the ledger did not respond."""
        self._is_unresolved = True
