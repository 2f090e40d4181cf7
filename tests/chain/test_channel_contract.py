"""Constants of the settlement contract, as published and as the stock package has them."""

import pytest
from x402.mechanisms.evm.batch_settlement import constants

from tollway.chain.channel_contract import (
    DEPOSIT_COLLECTOR,
    SETTLEMENT_CONTRACT,
    WITHDRAW_DELAYS_S,
    ContractError,
    parse_contract_error,
)


def test_the_contracts_and_delays_are_those_of_the_package() -> None:
    assert str(SETTLEMENT_CONTRACT) == constants.BATCH_SETTLEMENT_ADDRESS
    assert str(DEPOSIT_COLLECTOR) == constants.ERC3009_DEPOSIT_COLLECTOR_ADDRESS
    assert WITHDRAW_DELAYS_S[0] == constants.MIN_WITHDRAW_DELAY
    assert WITHDRAW_DELAYS_S[-1] == constants.MAX_WITHDRAW_DELAY


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("7d8242b6", ContractError.CLAIM_EXCEEDS_BALANCE),
        ("8baa579f", ContractError.INVALID_SIGNATURE),
        ("f645eedf", ContractError.ECDSA_INVALID_SIGNATURE),
        ("fce698f7" + "00" * 31 + "40", ContractError.ECDSA_INVALID_LENGTH),
        ("d78bce0c" + "ff" * 32, ContractError.ECDSA_INVALID_S),
        ("", None),
        ("7d8242", None),
        ("08c379a0" + "00" * 64, None),  # Error(string), of a token
    ],
)
def test_an_error_has_the_name_that_its_contract_declares(payload: str, error: ContractError | None) -> None:
    assert parse_contract_error(bytes.fromhex(payload)) is error
