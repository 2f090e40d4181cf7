"""The settings of a control worker: no key that signs a transaction, and no workers of its own."""

import pytest

from tollway.app.control_app import drop_gas_keys
from tollway.config.settings import load_settings
from tollway.ids import Address, ChainId


def test_a_worker_keeps_the_address_of_a_gas_key_and_cannot_sign_with_it() -> None:
    environment = {
        "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
        "TOLLWAY_GAS_KEYS_SANDBOX": "0x" + "4d" * 32,
        "TOLLWAY_CONTROL_WORKERS": "1",
        "TOLLWAY_DATABASE_URL": "postgresql://db.example/tollway",
        "TOLLWAY_SECRET_KEY": "00112233445566778899aabbccddeeff" * 2,
    }
    settings = load_settings(environment)
    dropped = drop_gas_keys(settings)
    (kept,), (key,) = dropped.networks[0].settlement.gas_keys, settings.networks[0].settlement.gas_keys
    assert kept.address == key.address
    assert dropped.control_workers == 0
    transfer = {"to": Address(bytes(20)), "calldata": b"", "gas": 1, "max_fee_wei": 1, "tip_wei": 1}
    assert key.sign(chain_id=ChainId(1), nonce=0, **transfer).raw
    with pytest.raises(RuntimeError, match="no key"):
        kept.sign(chain_id=ChainId(1), nonce=0, **transfer)
    assert dropped.networks[0].settlement.has_rail
