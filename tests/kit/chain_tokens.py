"""A token's own word, for chains in memory: it takes authorisations, and says under which domain."""

from tests.kit.chain_blocks import REVERTED, Wallet
from tollway.chain.reader import ContractAnswer
from tollway.chain.tokens import (
    compute_domain_separator,
    encode_authorization_state,
    encode_domain_separator,
)
from tollway.identifiers import ZERO_ADDRESS
from tollway.money import Asset, TokenDomain

_STATE = encode_authorization_state(payer=ZERO_ADDRESS, nonce=bytes(32))[:4]


def authorizing_token(asset: Asset, domain: TokenDomain | None = None) -> Wallet:
    """Code to deploy at `asset.token`; under the asset's domain unless another is given. A token without any domain is
    one that takes no authorisations."""
    signed_under = domain or asset.domain

    def answer(calldata: bytes) -> ContractAnswer:
        if signed_under is None or asset.token is None:
            return REVERTED
        if calldata[:4] == _STATE:
            return ContractAnswer(reverted=False, payload=bytes(32))
        if calldata == encode_domain_separator():
            separator = compute_domain_separator(signed_under, chain_id=asset.chain_id, token=asset.token)
            return ContractAnswer(reverted=False, payload=separator)
        return REVERTED

    return answer
