"""Asks a token whether it signs under the EIP-712 domain that the settings believe. It changes nothing."""

from tollway.chain.reader import ChainReader
from tollway.chain.tokens import compute_domain_separator, encode_domain_separator
from tollway.money import Asset

_GAS = 100_000
_SEPARATOR_BYTES = 32


async def is_domain_known(chains: ChainReader, asset: Asset, *, deadline_s: float) -> bool:
    """False when the token says that it has another domain. One that does not tell is believed to have ours: then each
    simulation decides. Raises ChainUnavailable."""
    assert asset.domain is not None
    assert asset.token is not None
    answer = await chains.call_contract(
        asset.chain_id,
        to=asset.token,
        calldata=encode_domain_separator(),
        gas=_GAS,
        bytes_max=_SEPARATOR_BYTES,
        deadline_s=deadline_s,
    )
    if answer.reverted or len(answer.payload) != _SEPARATOR_BYTES:
        return True
    return answer.payload == compute_domain_separator(
        asset.domain, chain_id=asset.chain_id, token=asset.token
    )
