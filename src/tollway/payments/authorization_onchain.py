"""Authorisations on their chain: the simulation of a transfer, the use of a nonce, a contract wallet's signature, and a facilitator's check.

The module changes nothing. A wallet with code and the facilitator are called after the simulation: for an authorisation that the token would accept, and a
wallet also to explain why the token refuses. The facilitator's response decides only whether the call may be forwarded.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace

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
from tollway.errors import ChainUnavailable, Code, Problem
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

BACK_BLOCKS = 64
"""How far the search goes back before the given block: one node named that block, and the node that lists uses may be behind it or on a fork."""

_KEY_SIGNATURE_BYTES = 65
_DEPLOYING_CALLS = 2
"""The factory, then the transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFound:
    """This transfer is that of the authorisation."""

    transfer: SettledTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The nonce of the authorisation was cancelled, or another transfer used it: the authorisation can never pay."""

    tx_hash: TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class UseNotFound:
    """No use is known yet, or none has enough confirmations."""


AuthorizationUse = TransferFound | Cancelled | UseNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTransfer:
    """`to`, `calldata`: the transaction. `deployment`: of the payer's wallet, where the transaction contains it. `gas_max`: the most gas that the transaction may use."""

    facts: AuthorizationFacts
    to: Address
    calldata: bytes
    deployment: Deployment | None
    gas_max: int

    @property
    def code_hash(self) -> bytes | None:
        """The key under which the gas budget counts the gas of a payer with code (`GasBudget.is_wallet_served`); None: a plain wallet."""
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
        return SimulatedTransfer(
            facts=facts, to=to, calldata=calldata, deployment=deployment, gas_max=gas_max
        )

    simulated = await simulate(None)
    deployment = choose_deployment(
        authorization.signature, code_size=simulated.facts.code_size, factories=factories
    )
    if deployment is None:
        return simulated
    simulated = await simulate(deployment)
    if simulated.facts.code_size > 0:
        return await simulate(None)
    return simulated if _has_made_calls(simulated.facts.simulation) else as_reverted(simulated)


def _has_made_calls(simulation: ContractResult) -> bool:
    """Whether the deployment and the transfer were made. An address without code, such as that of Multicall3 on a chain that lacks it,
    accepts every call and returns nothing."""
    try:
        returns = parse_returns(simulation.payload)
    except ValueError:
        return False
    return len(returns) == _DEPLOYING_CALLS and all(one.succeeded for one in returns)


def as_reverted(simulated: SimulatedTransfer) -> SimulatedTransfer:
    """The simulation of a transfer that must not be sent."""
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
    # A receipt without this nonce proves nothing: it contradicts the response that named its transaction.
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
    """Why a simulation fails for a wallet with code: its own code refuses the signature. None for every other cause, and where no node returns the wallet's
    result: the transfer is refused all the same."""
    if facts.code_size == 0:
        return None
    with contextlib.suppress(ChainUnavailable):
        if not await _is_signed_by_wallet(chains, authorization, asset, limits):
            return _OWN_CODE_REFUSES
    return None


def _needs_wallet_check(
    authorization: Authorization, facts: AuthorizationFacts, signer: Address | None, limits: Limits
) -> bool:
    """Whether the code of the wallet must confirm the signature within the limits. Not for a delegated account (EIP-7702) whose key signed, where the whole
    transfer needs no more gas than a wallet may use for its check: the simulation has made the same check within that gas."""
    if facts.code_size == 0:
        return False
    is_cheap = facts.gas_estimate is not None and facts.gas_estimate <= limits.erc1271_gas
    return not (signer == authorization.payer and is_cheap)


async def _is_signed_by_wallet(
    chains: ChainReader, authorization: Authorization, asset: Asset, limits: Limits
) -> bool:
    """Calls ERC-1271 `isValidSignature` of a deployed wallet within `erc1271_gas`. The token makes the same call in the simulation, but with all the gas of a
    transfer; the gateway pays no transaction of a wallet that needs more."""
    result = await chains.call_contract(
        authorization.chain_id,
        to=authorization.payer,
        calldata=encode_is_valid_signature(
            digest=_digest(authorization, asset), signature=_wallet_signature(authorization)
        ),
        gas=limits.erc1271_gas,
        bytes_max=limits.erc1271_bytes_max + 1,  # a longer response is cut there, and its length refuses it
        deadline_s=limits.erc1271_deadline_s,
    )
    is_within_size = len(result.payload) <= limits.erc1271_bytes_max
    return not result.reverted and is_within_size and is_signature_valid(result.payload)


async def is_signed_when_deployed(
    chains: ChainReader,
    authorization: Authorization,
    asset: Asset,
    deployment: Deployment,
    limits: Limits,
) -> bool:
    """Calls the factory and then ERC-1271 `isValidSignature` of the payer, in one `eth_call` with the gas of a deployment. The payer must have code then:
    otherwise a plain wallet could have any wallet deployed at the gateway's cost.

    It is called before the claim and again before each signature: a delegated account (EIP-7702) can end its delegation in between, and its transfer
    then passes beside a deployment of another wallet.
    """
    if asset.domain is None:
        return False  # before a signature: the settings of a recovered call have changed since its claim
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
    # `check_authorization` or `is_signed_when_deployed` has refused an asset without a domain.
    assert asset.domain is not None
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
    has_low_v = len(signature) == _KEY_SIGNATURE_BYTES and signature[64] < 2
    return signature[:64] + bytes([signature[64] + 27]) if has_low_v else signature
