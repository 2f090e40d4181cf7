"""Free calls of a listing: the client asks for one before it pays."""

import pytest

from tests.kit.call_io import OFFER, FakeCallIo
from tollway.client.call_io import GatewayResponse, NoResponse
from tollway.client.errors import GatewayUnreachable

SIGNED = (("Signature-Input", "sig"),)
CREDIT = {"tollway-payment-state": "charged", "tollway-credit-remaining": "0 USDC"}
FREE = GatewayResponse(status=200, headers={"tollway-payment-state": "none"})
PAID = GatewayResponse(status=200, headers=CREDIT)


def priced(free_calls: object = None) -> GatewayResponse:
    members = {} if free_calls is None else {"freeCalls": free_calls}
    problem = {"code": "payment_required", "payment": {"options": [OFFER]}, **members}
    return GatewayResponse(status=402, headers={}, problem=problem)


def refused(status: int, code: str) -> GatewayResponse:
    return GatewayResponse(status=status, headers={}, problem={"code": code})


def test_an_offered_free_call_is_signed_and_nothing_is_paid() -> None:
    io = FakeCallIo(priced({"count": 2}), FREE)
    assert io.call().response == FREE
    assert io.sent[1:] == [SIGNED]
    assert (io.transfers, io.signed, io.free_ended) == ([], [], [])


@pytest.mark.parametrize(
    ("offer", "answer", "noted"),
    [
        ({"count": 2}, priced({"count": 2}), [None]),
        ({"count": 2, "perSeconds": 60}, priced({"count": 2, "perSeconds": 60}), [60]),
        ({"count": 2, "perSeconds": "60"}, priced(), [None]),
        ({"count": 2}, refused(401, "signature_expired"), [None]),
    ],
    ids=["used", "used until the period ends", "a period that is no number", "a proof that is refused"],
)
def test_without_one_left_the_call_is_paid(
    offer: object, answer: GatewayResponse, noted: list[int | None]
) -> None:
    io = FakeCallIo(priced(offer), answer, PAID)
    assert io.call().response == PAID
    assert (len(io.transfers), io.free_ended) == (1, noted)


def test_a_listing_that_has_none_left_is_not_asked_again() -> None:
    io = FakeCallIo(priced({"count": 2}), PAID)
    io.free_ended.append(None)
    assert io.call().response == PAID
    assert SIGNED not in io.sent


@pytest.mark.parametrize("offer", [None, "2", ["count"]])
def test_nothing_is_signed_without_an_offer(offer: object) -> None:
    io = FakeCallIo(priced(offer), PAID)
    assert io.call().response == PAID
    assert SIGNED not in io.sent


def test_a_free_call_without_a_response_pays_nothing() -> None:
    io = FakeCallIo(priced({"count": 2}), NoResponse(detail="cut", is_sent=True))
    with pytest.raises(GatewayUnreachable):
        io.call()
    assert (io.transfers, io.signed) == ([], [])
