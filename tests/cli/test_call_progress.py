"""The progress of a payment: one line on a terminal, nothing elsewhere."""

import io

import pytest

from tests.kit.call_io import build_authorization, build_transfer
from tollway.cli.call import ProgressLine
from tollway.client import PaymentProgress
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

USDC = Asset(chain_id=ChainId(8453), token=Address(b"\x44" * 20), symbol="USDC", decimals=6)
WALLET, PAYEE = Address(b"\x11" * 20), Address(b"\x22" * 20)
PAYMENT = {"asset": USDC, "payer": WALLET, "pay_to": PAYEE, "gateway": "https://gw.test", "amount": 50_000}
TRANSFER = build_transfer(**PAYMENT, tx_hash=TxHash(b"\xab" * 32), rest=50_000, confirmations=10)
AUTHORIZATION = build_authorization(0xCD, **PAYMENT, proof="secret")


def confirmed(number: int) -> PaymentProgress:
    return PaymentProgress(payment=TRANSFER, confirmations=number, confirmations_needed=10)


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def print_states(*states: PaymentProgress, is_terminal: bool = True) -> str:
    stream = Stream(is_terminal=is_terminal)
    with ProgressLine(stream) as line:
        for state in states:
            line.show(state)
    return stream.getvalue()


def test_the_words_of_each_state() -> None:
    assert confirmed(2).describe() == f"paid 0.05 USDC by 0x{'ab' * 32}, 2 of 10 confirmations"
    sending = PaymentProgress(payment=AUTHORIZATION)
    settling = PaymentProgress(payment=AUTHORIZATION, is_accepted=True)
    paid = PaymentProgress(payment=AUTHORIZATION, is_charged=True)
    name = f"0x{'cd' * 32}"
    assert sending.describe() == "sending the call with an authorisation of 0.05 USDC"
    assert settling.describe() == f"settling 0.05 USDC by the authorisation {name}"
    assert paid.describe() == f"paid 0.05 USDC by the authorisation {name}"


def test_each_new_state_replaces_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    printed = print_states(confirmed(0), confirmed(0), confirmed(1))
    assert printed.count("\r") == 2
    assert printed.endswith("1 of 10 confirmations\x1b[K\n")


def test_a_terminal_without_cursor_movement_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    lines = print_states(confirmed(0), confirmed(1)).splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["0 of 10 confirmations", "1 of 10 confirmations"]


def test_what_the_gateway_waits_for_is_a_line_of_its_own_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    away = PaymentProgress(payment=AUTHORIZATION, notice="The gateway responds chain_unavailable: Away.")
    printed = print_states(PaymentProgress(payment=AUTHORIZATION), away, away)
    assert printed.endswith("\x1b[K\nThe gateway responds chain_unavailable: Away.\n")
    assert printed.count("Away") == 1


@pytest.mark.parametrize("states", [(), (confirmed(1),)])
def test_a_stream_that_is_no_terminal_gets_nothing(states: tuple[PaymentProgress, ...]) -> None:
    assert print_states(*states, is_terminal=False) == ""
