"""Whether a token takes authorisations (EIP-3009) under the domain that the settings claim for it: asked of the token.

A wrong name or version would let every payer sign something that no token accepts. It decides nothing: whoever asks
withdraws the rail, or tells the operator.
"""

from enum import StrEnum

from tollway.chain.reader import ChainReader
from tollway.chain.tokens import (
    compute_domain_separator,
    encode_authorization_state,
    encode_domain_separator,
    encode_name,
    encode_version,
    parse_bool,
    parse_text,
)
from tollway.identifiers import ZERO_ADDRESS
from tollway.money import Asset

_GETTER_GAS = 100_000
_GETTER_BYTES_MAX = 512


class DomainFault(StrEnum):
    NO_AUTHORIZATIONS = "no_authorizations"  # no code there, or a token without EIP-3009
    OTHER_DOMAIN = "other_domain"


async def find_domain_fault(chains: ChainReader, asset: Asset, *, deadline_s: float) -> DomainFault | None:
    """What is wrong with `asset.domain`; None when nothing is, or when the asset has none.

    A token that does not tell its separator is judged by its name and version, and where it does not tell these either
    it is taken at the settings' word. Raises `ChainUnavailable`.
    """
    if asset.token is None or asset.domain is None:
        return None
    token = asset.token

    async def read_getter(calldata: bytes) -> bytes | None:
        answer = await chains.call_contract(
            asset.chain_id,
            to=token,
            calldata=calldata,
            gas=_GETTER_GAS,
            bytes_max=_GETTER_BYTES_MAX,
            deadline_s=deadline_s,
        )
        return None if answer.reverted else answer.payload

    if not _is_bool(await read_getter(encode_authorization_state(payer=ZERO_ADDRESS, nonce=bytes(32)))):
        return DomainFault.NO_AUTHORIZATIONS
    separator = await read_getter(encode_domain_separator())
    if separator is not None and len(separator) == 32:
        expected = compute_domain_separator(asset.domain, chain_id=asset.chain_id, token=token)
        return None if separator == expected else DomainFault.OTHER_DOMAIN
    getters = [(encode_name(), asset.domain.name), (encode_version(), asset.domain.version)]
    for getter, claimed in getters:
        text = _read_text(await read_getter(getter))
        if text is not None and text != claimed:
            return DomainFault.OTHER_DOMAIN
    return None


def _is_bool(payload: bytes | None) -> bool:
    try:
        parse_bool(payload or b"")
    except ValueError:
        return False
    return True


def _read_text(payload: bytes | None) -> str | None:
    try:
        return parse_text(payload or b"")
    except ValueError:
        return None
