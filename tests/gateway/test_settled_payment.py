"""What the rails of authorisations and channels share: the key of a request, and a streamed body that would end too late."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS
from tests.kit.listings import sample_listing
from tests.kit.payer import CHAIN, PAY_TO
from tests.kit.proxy_requests import GivenBody, sample_request
from tollway.errors import Refusal
from tollway.gateway.rail import ClockAndEntropy
from tollway.gateway.settled_payment import SettledRail, SignedProof
from tollway.ids import ChannelId
from tollway.ledger.channels import ChannelConfig
from tollway.ledger.records import Dialect
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.authorization_check import SETTLE_WITHIN_S
from tollway.payments.channel_wire import PresentedChannelPayment, SignedDeposit, SignedVoucher
from tollway.payments.wire import PresentedAuthorization

LISTING = sample_listing(provider=PAY_TO)
ENOUGH = NOW_MS // 1000 + LISTING.timeout_s + SETTLE_WITHIN_S + 1
BODY = (b"abcd", b"efgh")
HEADER, IDENTIFIER = "0123456789abcdef", "pay_0123456789abcdef"


def authorization(valid_before: int) -> SignedProof:
    return PresentedAuthorization(
        dialect=Dialect.X402_V2,
        chain_id=CHAIN,
        token=PAY_TO,
        payer=PAY_TO,
        payee=PAY_TO,
        base_units=1,
        valid_after=0,
        valid_before=valid_before,
        nonce=bytes(32),
        signature=bytes(65),
    )


def voucher(valid_before: int | None) -> SignedProof:
    """With a deposit that is valid so long; None: alone."""
    config = ChannelConfig(
        payer=PAY_TO,
        payer_authorizer=PAY_TO,
        receiver=PAY_TO,
        receiver_authorizer=PAY_TO,
        token=PAY_TO,
        withdraw_delay=1,
        salt=bytes(32),
    )
    deposit = None
    if valid_before is not None:
        deposit = SignedDeposit(
            base_units=1, valid_after=0, valid_before=valid_before, salt=bytes(32), signature=bytes(65)
        )
    signed = SignedVoucher(
        chain_id=CHAIN, config=config, channel_id=ChannelId(bytes(32)), ceiling=1, signature=bytes(65)
    )
    return PresentedChannelPayment(voucher=signed, request=deposit)


@pytest.fixture
def rail() -> SettledRail:
    nothing: Any = None
    return SettledRail(
        ledger=nothing,
        settlement=nothing,
        idempotency=nothing,
        limits=replace(DEFAULT_LIMITS, buffer_bytes=4),
        clock=ClockAndEntropy(now_ms=lambda: NOW_MS, entropy=bytes),
    )


@pytest.mark.parametrize("proof", [authorization(ENOUGH), voucher(None)], ids=["authorisation", "voucher"])
@pytest.mark.parametrize(
    ("header", "identifier", "key"),
    [
        (None, None, None),
        (None, IDENTIFIER, IDENTIFIER),
        (HEADER, None, HEADER),
        (HEADER, IDENTIFIER, HEADER),
    ],
)
def test_the_key_of_the_header_comes_before_the_identifier_of_the_payment(
    rail: SettledRail, proof: SignedProof, header: str | None, identifier: str | None, key: str | None
) -> None:
    headers = {} if header is None else {"idempotency_key": header}
    assert rail.find_key(sample_request(**headers), replace(proof, identifier=identifier)) == key


@pytest.mark.parametrize(
    ("proof", "is_sent"),
    [
        (authorization(ENOUGH), True),
        (authorization(ENOUGH - 2), False),
        (voucher(ENOUGH), True),
        (voucher(ENOUGH - 2), False),
        (voucher(None), True),
    ],
    ids=["authorisation", "late authorisation", "deposit", "late deposit", "voucher alone"],
)
async def test_a_body_ends_only_while_the_authorisation_can_still_be_settled(
    rail: SettledRail, proof: SignedProof, is_sent: bool
) -> None:
    body = await rail.load_body(sample_request("POST", body=GivenBody(*BODY)), proof, LISTING)
    assert isinstance(body.content, AsyncIterator)
    if is_sent:
        assert b"".join([chunk async for chunk in body.content]) == b"".join(BODY)
        return
    with pytest.raises(Refusal):
        await anext(body.content)
