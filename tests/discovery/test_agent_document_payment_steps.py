"""Payment steps: text and a form for each open rail; the gateway accepts the payments that the form makes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from eth_account import Account

from tests.kit.listings import LISTING_ID, PUBLIC_URL, sample_assets, show_listing
from tollway.discovery.agent_document import list_rails
from tollway.identity.signatures import paid_call_digest, recover
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.x402 import parse_payment

KEY = "0x" + "11" * 32
PAYER = Address.parse(Account.from_key(KEY).address)
HASH = "0x" + "ab" * 32


def _load_reader() -> ModuleType:
    name, path = "tollway_agent_reader", Path(__file__).parent.parent / "clients" / "agent_reader.py"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


reader = _load_reader()


def agent_of(**changes: Any) -> dict[str, Any]:
    """The part of an agent document that tells how to pay."""
    shown = show_listing(**changes)
    options = shown.options[shown.quoted_price.nano]
    rails = list_rails(shown, frozenset(option["rail"] for option in options))
    return {
        "interfaces": {"http": {"url": shown.gateway_url}},
        "payment": {"options": options, "rails": rails},
    }


def test_the_form_of_x402_makes_a_payment_that_the_gateway_reads() -> None:
    agent = agent_of()
    ((name, value),) = reader.pay_by_x402(agent, KEY).items()
    assert name == "PAYMENT-SIGNATURE"
    shown = parse_payment(value.encode(), limits=DEFAULT_LIMITS)
    assert shown.fault is None
    (asset,) = sample_assets(1)
    assert (shown.chain_id, shown.token) == (asset.chain_id, asset.token)
    assert (shown.payer, shown.base_units) == (PAYER, 10_000)


def test_the_form_of_a_transaction_makes_a_proof_of_this_request() -> None:
    body = b'{"a":1}'
    url = f"{PUBLIC_URL}/api/v2/gateway/{LISTING_ID}/echo?x=1"
    headers = reader.show_transaction(agent_of(), KEY, HASH, method="POST", url=url, body=body)
    proof = parse_proof([(name.lower().encode(), value.encode()) for name, value in headers.items()])
    assert isinstance(proof, Proof)
    assert proof.binding is not None
    digest = paid_call_digest(
        chain_id=ChainId(8453),
        gateway=PUBLIC_URL,
        api_id=LISTING_ID,
        method="POST",
        target=b"/echo?x=1",
        body_hash=keccak256(body),
        transaction=TxHash.parse(HASH),
        valid_until=proof.binding.valid_until,
        nonce=proof.binding.nonce,
    )
    assert proof.binding.body_hash == keccak256(body)
    assert recover(digest, proof.signature) == PAYER


@pytest.mark.parametrize(
    ("changes", "rails"),
    [
        ({}, ["x402", "mpp", "tx"]),
        ({"has_mpp": False}, ["x402", "tx"]),
        ({"has_mpp": False, "is_offered": lambda asset, units, listing_id: False}, ["tx"]),
    ],
)
def test_only_open_rails_have_steps(changes: dict[str, Any], rails: list[str]) -> None:
    told = agent_of(**changes)["payment"]["rails"]
    assert [rail["rail"] for rail in told] == rails
    assert all(rail["steps"] for rail in told)


def test_the_plain_signature_is_described_where_it_is_accepted() -> None:
    def words(**changes: Any) -> str:
        return " ".join(reader.find_rail(agent_of(**changes), "tx")["steps"])

    assert "personal_sign" in words()
    assert "personal_sign" not in words(is_bound_only=True)


def test_every_blank_is_a_member_of_the_option_or_explained_in_the_steps() -> None:
    """Nothing to guess: a blank that is neither would stop a reader that knows only this document."""
    agent = agent_of()
    for rail in agent["payment"]["rails"]:
        if rail["rail"] == "mpp":
            continue
        option = reader.find_option(agent, rail["rail"])
        blanks = set(reader._BLANK.findall(str({**rail, "steps": ()})))
        known = {"signature", "message", "transaction"}
        told = set(reader._BLANK.findall(" ".join(rail["steps"])))
        for blank in blanks - known - told:
            reader.look_up(option, blank)
