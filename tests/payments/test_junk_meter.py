"""Only what came to nothing counts, for an address and for a wallet each."""

import pytest

from tollway.errors import Code
from tollway.limits import Limits
from tollway.payments.junk_meter import JunkMeter
from tollway.rates import Rates


@pytest.mark.parametrize(
    ("address", "signer", "is_refused"),
    [
        ("192.0.2.1", "0xa", True),
        ("192.0.2.1", "0xb", True),
        ("192.0.2.2", "0xa", True),
        ("192.0.2.2", "0xb", False),
    ],
)
async def test_counts_per_address_and_per_wallet(address: str, signer: str, is_refused: bool) -> None:
    meter = JunkMeter(limits=Limits(lookups_per_minute=2), rates=Rates())
    for _ in range(2):
        assert await meter.refuse(client_address="192.0.2.1", signer="0xa") is None
        meter.note(client_address="192.0.2.1", signer="0xa")
    refusal = await meter.refuse(client_address=address, signer=signer)
    assert (refusal is not None) is is_refused
    if refusal is not None:
        assert refusal.code is Code.RATE_LIMITED
        assert refusal.payment_state == "none"
        assert 0 < (refusal.retry_after_s or 0) <= 60


async def test_asking_alone_never_counts() -> None:
    meter = JunkMeter(limits=Limits(lookups_per_minute=1), rates=Rates())
    assert [await meter.refuse(client_address="a", signer="b") for _ in range(5)] == [None] * 5
