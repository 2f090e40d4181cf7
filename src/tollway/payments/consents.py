"""Who has to agree beside the token before a call is carried: a wallet that has code, and a facilitator where there is one.

They are asked after the verdict, about what would pay by all that the token says. Nothing is sent or taken here, and the
facilitator's yes decides nothing but that the call may be carried.
"""

from collections.abc import Mapping

from tollway.chain.reader import AuthorizationFacts, ChainReader
from tollway.chain.tokens import encode_is_valid_signature, is_signature_valid
from tollway.errors import Code, Problem
from tollway.identifiers import Address, ChainId
from tollway.ledger.authorization import Authorization
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.authorization_reasons import AuthorizationReason, explain_authorization
from tollway.payments.eip3009 import authorization_digest
from tollway.payments.remote_facilitator import FacilitatorClient
from tollway.payments.requirement import PaymentRequirement

_KEY_SIGNATURE_BYTES = 65


class AuthorizationPrecheck:
    """Safe to use from many tasks at once."""

    def __init__(
        self, chains: ChainReader, facilitators: Mapping[ChainId, FacilitatorClient], *, limits: Limits
    ) -> None:
        self._chains = chains
        self._facilitators = facilitators
        self._limits = limits

    async def find_refusal(
        self,
        authorization: Authorization,
        requirement: PaymentRequirement,
        facts: AuthorizationFacts,
        *,
        signer: Address | None,
    ) -> Problem | None:
        """Who does not agree; None when all do. `signer`: whose key made the signature. Raises `ChainUnavailable`."""
        if self._is_wallet_to_be_asked(authorization, facts, signer) and not await self._is_signed(
            authorization, requirement.asset
        ):
            return explain_authorization(AuthorizationReason.SIGNATURE, _WALLET_REFUSES)
        return await self._ask_facilitator(authorization, requirement)

    def _is_wallet_to_be_asked(
        self, authorization: Authorization, facts: AuthorizationFacts, signer: Address | None
    ) -> bool:
        """An account that delegates (EIP-7702) has code and a key. Where the key signed, and the whole transfer takes no
        more gas than a wallet may take for its answer, nothing is left to be found out."""
        if facts.code_size == 0:
            return False
        is_cheap = facts.gas_estimate is not None and facts.gas_estimate <= self._limits.erc1271_gas
        return not (signer == authorization.payer and is_cheap)

    async def _is_signed(self, authorization: Authorization, asset: Asset) -> bool:
        """ERC-1271. In the simulation the token asks the same, but with all the gas that a transfer may take; of a wallet
        that needs so much for a yes no transaction is paid for."""
        assert asset.domain is not None  # the check has refused the others
        answer = await self._chains.call_contract(
            authorization.chain_id,
            to=authorization.payer,
            calldata=encode_is_valid_signature(
                digest=authorization_digest(authorization, asset.domain),
                signature=_as_shown_by_token(authorization.signature),
            ),
            gas=self._limits.erc1271_gas,
            bytes_max=self._limits.erc1271_bytes_max + 1,
            deadline_s=self._limits.erc1271_deadline_s,
        )
        is_short = len(answer.payload) <= self._limits.erc1271_bytes_max
        return not answer.reverted and is_short and is_signature_valid(answer.payload)

    async def _ask_facilitator(
        self, authorization: Authorization, requirement: PaymentRequirement
    ) -> Problem | None:
        facilitator = self._facilitators.get(authorization.chain_id)
        if facilitator is None:
            return None
        reason = await facilitator.verify(
            authorization, requirement.asset, timeout_s=requirement.max_timeout_s
        )
        if reason is None:
            return None
        detail = "The facilitator of this network would not settle the authorisation."
        return Problem(
            code=Code.PAYMENT_VERIFICATION_FAILED, detail=detail, reason=reason, payment_state="none"
        )


_WALLET_REFUSES = (
    "The paying wallet does not say yes to the signature, within the limits for its answer (ERC-1271)."
)


def _as_shown_by_token(signature: bytes) -> bytes:
    """v of 0 or 1 is shown as 27 or 28, as in the transfer (`tokens.encode_transfer_with_authorization`)."""
    is_old = len(signature) == _KEY_SIGNATURE_BYTES and signature[64] < 2
    return signature[:64] + bytes([signature[64] + 27]) if is_old else signature
