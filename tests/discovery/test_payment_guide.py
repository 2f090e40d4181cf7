"""Payment steps of the agent document and the payment guide: the gateway accepts the payments that their forms make."""

from typing import Any

import pytest
from eth_account import Account

from tests.clients import agent_reader as reader
from tests.kit.listings import LISTING_ID, PUBLIC_URL, sample_assets, show_listing
from tollway.discovery.agent_document import describe_for_agents
from tollway.discovery.payment_guide import describe_payment
from tollway.identity.signatures import paid_call_digest, recover
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.proof import Proof, parse_proof
from tollway.payments.x402 import parse_payment

KEY = "0x" + "11" * 32
PAYER = Address.parse(Account.from_key(KEY).address)
HASH = "0x" + "ab" * 32


ONLY_TX: dict[str, Any] = {"has_mpp": False, "is_offered": lambda asset, units, listing_id: False}
GUIDE = describe_payment(PUBLIC_URL, DEFAULT_LIMITS)


def agent_of(**changes: Any) -> dict[str, Any]:
    return describe_for_agents(show_listing(**changes), DEFAULT_LIMITS)[0]


def test_the_form_of_x402_makes_a_payment_that_the_gateway_reads() -> None:
    agent = agent_of()
    ((name, value),) = reader.pay_by_x402(agent, KEY).items()
    assert name == "PAYMENT-SIGNATURE"
    shown = parse_payment(value.encode(), limits=DEFAULT_LIMITS)
    assert shown.fault is None
    (asset,) = sample_assets(1)
    assert (shown.chain_id, shown.token) == (asset.chain_id, asset.token)
    assert (shown.payer, shown.base_units) == (PAYER, 10_000)


@pytest.mark.parametrize(
    ("agent", "guide"),
    [(agent_of(), GUIDE), (agent_of(**ONLY_TX), None)],
    ids=["of the guide", "of the document"],
)
def test_the_form_of_a_transaction_makes_a_proof_of_this_request(
    agent: dict[str, Any], guide: dict[str, Any] | None
) -> None:
    body = b'{"a":1}'
    url = f"{PUBLIC_URL}/api/v2/gateway/{LISTING_ID}/echo?x=1"
    headers = reader.show_transaction(agent, KEY, HASH, method="POST", url=url, body=body, guide=guide)
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
        ({**ONLY_TX, "has_channels": True}, ["channel", "tx"]),
        (ONLY_TX, ["tx"]),
    ],
)
def test_only_open_rails_are_listed_and_the_first_has_its_form(
    changes: dict[str, Any], rails: list[str]
) -> None:
    told = agent_of(**changes)["payment"]["rails"]
    assert [rail["rail"] for rail in told] == rails
    with_form = [rail for rail in rails if rail != "channel"]
    assert ["eip712" in rail for rail in told if rail["rail"] in with_form] == [
        number == 0 for number in range(len(with_form))
    ]


def test_the_guide_has_the_form_of_each_rail() -> None:
    assert [rail["rail"] for rail in GUIDE["rails"]] == ["x402", "mpp", "channel", "tx"]
    assert all(rail["steps"] for rail in GUIDE["rails"])
    assert reader.find_rail(GUIDE, "x402") == reader.find_rail(agent_of(), "x402")
    assert reader.find_rail(GUIDE, "tx") == reader.find_rail(agent_of(**ONLY_TX), "tx")


def test_the_document_says_where_the_plain_signature_is_refused() -> None:
    def rail(**changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = reader.find_rail(agent_of(**changes), "tx")
        return found

    assert "personal_sign" in " ".join(rail(**ONLY_TX)["steps"])
    assert "personal_sign" not in " ".join(rail(**ONLY_TX, is_bound_only=True)["steps"])
    assert "signature" not in rail()
    assert (
        rail(is_bound_only=True)["signature"] == rail(**ONLY_TX, is_bound_only=True)["signature"] == "bound"
    )
    assert "signature bound" in GUIDE["boundOnly"]


@pytest.mark.parametrize(
    ("agent", "rail"),
    [
        (agent_of(), reader.find_rail(agent_of(), "x402")),
        (agent_of(**ONLY_TX), reader.find_rail(agent_of(**ONLY_TX), "tx")),
        (agent_of(), reader.find_rail(GUIDE, "x402")),
        (agent_of(), reader.find_rail(GUIDE, "tx")),
    ],
)
def test_every_blank_is_a_member_of_the_option_or_explained_in_the_steps(
    agent: dict[str, Any], rail: dict[str, Any]
) -> None:
    """Nothing to guess: a blank that is neither would stop a reader that knows only these documents."""
    option = {**reader.find_option(agent, rail["rail"]), "id": agent["id"], "origin": agent["origin"]}
    blanks = set(reader._BLANK.findall(str({**rail, "steps": ()})))
    known = {"signature", "message", "transaction"}
    told = set(reader._BLANK.findall(" ".join(rail["steps"])))
    for blank in blanks - known - told:
        reader.look_up(option, blank)
