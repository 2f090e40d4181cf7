"""Compares the configured EIP-712 domain with that of the token."""

import pytest
from eth_abi import encode

from tests.kit.chain import MemoryChain
from tollway.chain import tokens
from tollway.chain.port import ContractResult
from tollway.chain.tokens import DomainFault, find_domain_fault
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId
from tollway.money import Asset, TokenDomain

CHAIN = ChainId(84532)
TOKEN = Address(b"\xc3" * 20)
DOMAIN = TokenDomain(name="USDC", version="2")
ASSET = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6, domain=DOMAIN)
SEPARATOR = tokens.compute_domain_separator(DOMAIN, chain_id=CHAIN, token=TOKEN)
STATE = tokens.encode_authorization_state(payer=Address(20), nonce=bytes(32))
HONEST = {
    STATE: encode(["bool"], [False]),
    tokens.encode_domain_separator(): SEPARATOR,
    tokens.encode_name(): encode(["string"], ["USDC"]),
    tokens.encode_version(): encode(["string"], ["2"]),
}


def make_chain(**changes: bytes | None) -> MemoryChain:
    """`state`, `separator`, `name`, `version`: another result, or None for a function that the token lacks."""
    names = dict(zip(("state", "separator", "name", "version"), HONEST, strict=True))
    answers = {**HONEST, **{names[name]: answer for name, answer in changes.items()}}

    def token(calldata: bytes) -> ContractResult:
        answer = answers.get(calldata)
        return ContractResult(reverted=answer is None, payload=answer or b"")

    chain = MemoryChain(CHAIN)
    chain.deploy(CHAIN, TOKEN, token)
    return chain


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({}, None, id="as claimed"),
        pytest.param({"separator": b"\x01" * 32}, DomainFault.OTHER_DOMAIN, id="another separator"),
        pytest.param({"separator": None}, None, id="no separator, name and version as claimed"),
        pytest.param({"separator": b"short"}, None, id="an odd separator counts as none"),
        pytest.param(
            {"separator": None, "name": encode(["string"], ["USD Coin"])},
            DomainFault.OTHER_DOMAIN,
            id="another name",
        ),
        pytest.param(
            {"separator": None, "version": encode(["string"], ["1"])},
            DomainFault.OTHER_DOMAIN,
            id="another version",
        ),
        pytest.param({"separator": None, "name": None, "version": None}, None, id="it tells nothing"),
        pytest.param({"state": None}, DomainFault.NO_AUTHORIZATIONS, id="without EIP-3009"),
        pytest.param({"state": b""}, DomainFault.NO_AUTHORIZATIONS, id="a fallback that answers nothing"),
        pytest.param({"state": b"\x01" * 32}, DomainFault.NO_AUTHORIZATIONS, id="an answer that is no bool"),
    ],
)
async def test_the_configured_domain_is_compared_with_the_tokens(
    changes: dict[str, bytes | None], fault: DomainFault | None
) -> None:
    assert await find_domain_fault(make_chain(**changes), ASSET, deadline_s=1.0) is fault


async def test_an_address_without_code_takes_no_authorisations() -> None:
    fault = await find_domain_fault(MemoryChain(CHAIN), ASSET, deadline_s=1.0)
    assert fault is DomainFault.NO_AUTHORIZATIONS


@pytest.mark.parametrize(
    "asset",
    [
        Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18),
        Asset(chain_id=CHAIN, token=TOKEN, symbol="DAI", decimals=18),
    ],
)
async def test_an_asset_without_a_domain_is_not_checked(asset: Asset) -> None:
    chain = make_chain()
    assert await find_domain_fault(chain, asset, deadline_s=1.0) is None
    assert chain.request_count == 0


async def test_an_unavailable_chain_raises_for_the_token() -> None:
    chain = make_chain()
    chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await find_domain_fault(chain, ASSET, deadline_s=1.0)
