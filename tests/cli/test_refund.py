"""`tollway history refund`: the amount is shown before it is sent, by the key of the provider, and a transfer is posted until it is deep enough."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CHAIN, PROBLEM, USDC
from tollway.cli.refund import _post
from tollway.client import Wallet
from tollway.client.errors import GatewayRefused
from tollway.client.refund_transfer import read_refund_due
from tollway.client.store import PaymentStore
from tollway.ids import Address

WAIT_S = 60
CALL_ID, OTHER_ID, TX = "call_1", "call_2", "0x" + "12" * 32
PAYER = "0x" + "33" * 20
REFUNDED = {
    "id": CALL_ID,
    "currency": "USDC",
    "refund": {"value": "0.01", "kind": "transfer", "transaction": TX},
}


def call_of(provider: str, **changed) -> dict:
    payment = {
        "state": "charged",
        "asset": f"eip155:{CHAIN}/erc20:{USDC.lower()}",
        "amount": "10000",
        "payTo": provider,
    }
    call = {"id": CALL_ID, "payer": PAYER, "provider": provider, "price": "0.01", "currency": "USDC"}
    return {**call, "payment": {**payment, **changed.pop("payment", {})}, **changed}


@pytest.fixture
def provider(environment) -> Address:
    return Wallet.from_file(Path(environment["TOLLWAY_KEY_FILE"])).address


def test_a_transfer_that_is_sent_is_named(run, gateway):
    gateway.call = {"calls": [REFUNDED]}
    done = run("history", "refund", CALL_ID, OTHER_ID, "--transaction", TX)
    assert done.exit_code == 0, done.output
    method, path, _, body = gateway.seen[-1]
    assert (method, path) == ("POST", f"/api/v2/history/{CALL_ID}/refund")
    assert json.loads(body) == {"transaction": TX, "calls": [OTHER_ID]}
    assert json.loads(done.stdout) == {"calls": [REFUNDED]}


def test_credit_needs_no_transfer(run, gateway):
    gateway.call = {"calls": [REFUNDED]}
    assert run("history", "refund", CALL_ID, "--credit").exit_code == 0
    assert json.loads(gateway.seen[-1][3]) == {"credit": True}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["refund"], "name the calls"),
        (["refund", CALL_ID], "say how"),
        (["refund", CALL_ID, "--credit", "--send"], "say how"),
        (["refund", CALL_ID, OTHER_ID, "--credit"], "one call at a time"),
        ([CALL_ID, "--credit"], "tollway history refund"),
        (["resolve", CALL_ID, OTHER_ID, "--release"], "one call at a time"),
    ],
)
def test_options_that_contradict_each_other_are_a_usage_error(run, gateway, words, told):
    done = run("history", *words)
    assert (done.exit_code, told in done.output) == (2, True), done.output
    assert gateway.seen == []


def test_nothing_is_sent_by_a_program_that_does_not_say_yes(run, gateway, provider):
    gateway.call = call_of(str(provider))
    done = run("history", "refund", CALL_ID, "--send", "--rpc", f"{CHAIN}={gateway.url}/node")
    assert (done.exit_code, "add --yes" in done.output) == (2, True), done.output
    assert f"Sends 0.01 USDC (token {USDC})" in done.output
    assert f"to {Address.parse(PAYER)}" in done.output
    assert gateway.mined == set()
    assert [one[0] for one in gateway.seen] == ["GET"]


def test_send_transfers_the_price_and_posts_its_hash(run, gateway, provider):
    gateway.call = call_of(str(provider))
    done = run("history", "refund", CALL_ID, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node")
    assert done.exit_code == 0, done.output
    assert json.loads(gateway.seen[-1][3])["transaction"] in done.output
    assert len(gateway.mined) == 1


KILLED_AT = {
    "before it is signed": "eth_getTransactionCount",
    "before it is sent": "eth_sendRawTransaction",
    "before the node answers": "after eth_sendRawTransaction",
    "before the gateway has its hash": f"/api/v2/history/{CALL_ID}/refund",
}


def posted(gateway) -> list[str]:
    return [json.loads(body)["transaction"] for method, *_, body in gateway.seen if method == "POST"]


@pytest.mark.process
@pytest.mark.parametrize("place", KILLED_AT)
def test_a_command_that_was_killed_sends_the_same_transfer_again(run, gateway, environment, provider, place):
    gateway.call = call_of(str(provider))
    words = ["history", "refund", CALL_ID, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node"]
    with subprocess.Popen(
        [sys.executable, "-c", "from tollway.cli import main; main()", *words],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as killed:
        gateway.on_request = lambda name: killed.kill() if name == KILLED_AT[place] else None
        assert killed.wait(WAIT_S) == -signal.SIGKILL
    gateway.on_request = lambda _: None
    gateway.seen.clear()
    for _ in range(2):
        done = run(*words)
        assert done.exit_code == 0, done.output
    assert posted(gateway) == [*gateway.mined] * 2


def test_a_repeat_sends_the_same_transfer_and_signs_no_second_one(run, gateway, provider):
    """Also while the node does not mine it, and where the record of the call shows the refund by then."""
    gateway.call, gateway.is_mining = call_of(str(provider)), False
    words = ["history", "refund", CALL_ID, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node"]
    first = run(*words)
    assert "Sends 0.01 USDC" in first.output
    gateway.call, gateway.is_mining = REFUNDED, True
    again = run(*words)
    assert (again.exit_code, "no second one" in again.output) == (0, True), again.output
    assert posted(gateway) == [*gateway.mined] * 2


@pytest.mark.parametrize("other", [[CALL_ID], [CALL_ID, OTHER_ID, "call_3"], ["call_3", OTHER_ID]])
def test_calls_of_a_signed_transfer_are_in_no_second_one(run, gateway, provider, other):
    gateway.call = call_of(str(provider))
    node = ["--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node"]
    gateway.on_request = lambda path: gateway.call.update(id=path.rpartition("/")[2])
    assert run("history", "refund", CALL_ID, OTHER_ID, *node).exit_code == 0
    done = run("history", "refund", *other, *node)
    assert (done.exit_code, "name exactly these calls" in done.output) == (2, True), done.output
    assert len(gateway.mined) == 1
    assert run("history", "refund", OTHER_ID, CALL_ID, *node).exit_code == 0
    assert len(gateway.mined) == 1
    assert [json.loads(body)["calls"] for method, *_, body in gateway.seen if method == "POST"] == [
        [OTHER_ID]
    ] * 2, "in the order of the first command"


def test_a_transfer_that_can_never_be_mined_is_followed_by_another(run, gateway, provider):
    gateway.call, gateway.is_mining = call_of(str(provider)), False
    words = ["history", "refund", CALL_ID, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node"]
    run(*words)
    other = "0x" + "99" * 32
    gateway.mined.add(other)
    gateway.replaced_below, gateway.is_mining = 1, True
    done = run(*words)
    assert (done.exit_code, "Sends 0.01 USDC" in done.output) == (0, True), done.output
    first, second = posted(gateway)
    assert first != second
    assert gateway.mined == {other, second}


def test_a_refund_and_a_payment_never_have_one_nonce(run, gateway, environment, provider):
    """A transfer that the node does not know yet keeps its nonce, and is sent before the next one."""
    gateway.call, gateway.is_mining = call_of(str(provider)), False
    node = ["--rpc", f"{CHAIN}={gateway.url}/node"]
    problem = (
        503,
        PROBLEM,
        json.dumps({"code": "chain_unavailable", "status": 503, "retryable": True}).encode(),
    )
    gateway.on_request = lambda path: (
        setattr(gateway, "next_answer", problem) if path.endswith("refund") else None
    )
    assert run("history", "refund", CALL_ID, "--send", "--yes", *node).exit_code == 3
    gateway.on_request, gateway.next_answer = lambda _: None, None
    store = PaymentStore(Path(environment["TOLLWAY_STORE"]), now_ms=lambda: 0)
    (refund,) = store.unresolved(provider)
    assert (refund.nonce, refund.refunds, store.list_transfers(provider)) == (0, (CALL_ID,), ())
    gateway.is_mining = True
    assert run("call", "api_1", *node).exit_code == 0
    (payment,) = store.list_transfers(provider)
    assert payment.nonce == 1
    assert gateway.mined == {str(refund.tx_hash), str(payment.tx_hash)}


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([CALL_ID, OTHER_ID, CALL_ID], "call_1 is named twice"),
        ([f"call_{number}" for number in range(101)], "at most 100"),
    ],
)
def test_calls_that_one_transfer_cannot_refund_send_nothing(run, gateway, calls, told):
    done = run("history", "refund", *calls, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node")
    assert (done.exit_code, told in done.output) == (2, True), done.output
    assert (gateway.seen, gateway.mined) == ([], set())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"currency": "EURC"}, "is USDC with 6 decimals"),
        ({"payment": {"amount": "100000"}}, "is USDC with 6 decimals"),
        ({"payment": {"asset": f"eip155:{CHAIN}/erc20:{PAYER}"}}, "no token that can be read"),
    ],
)
def test_an_asset_that_the_gateway_describes_wrongly_sends_nothing(run, gateway, provider, changed, told):
    gateway.call = call_of(str(provider), **changed)
    done = run("history", "refund", CALL_ID, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node")
    assert (done.exit_code, told in done.output) == (1, True), done.output
    assert gateway.mined == set()


def test_a_fee_above_the_limit_sends_nothing(run, gateway, provider):
    gateway.call = call_of(str(provider))
    gateway.base_fee_wei = 10**15
    done = run("history", "refund", CALL_ID, "--send", "--yes", "--rpc", f"{CHAIN}={gateway.url}/node")
    assert (done.exit_code, "the limit is" in done.output) == (1, True), done.output
    assert gateway.mined == set()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"payment": {"state": "held"}}, "is not charged"),
        ({"refund": {"kind": "credit"}}, "refunded already"),
        ({"payment": {"payTo": PAYER}, "provider": PAYER}, "only that wallet"),
        ({"payment": {"amount": "10001"}}, "differ"),
        ({"payment": {"amount": "0"}, "price": "0"}, "was free"),
        ({"payment": {"asset": "x"}}, "cannot be read"),
    ],
)
def test_a_record_that_cannot_be_refunded_sends_nothing(changed, told):
    provider = "0x" + "44" * 20
    with pytest.raises(ValueError, match=told):
        read_refund_due([call_of(**{"provider": provider, **changed})], sender=Address.parse(provider))


def test_calls_of_one_payer_are_one_transfer():
    provider = "0x" + "44" * 20
    calls = [call_of(provider), call_of(provider, id=OTHER_ID, price="0.02", payment={"amount": "20000"})]
    due = read_refund_due(calls, sender=Address.parse(provider))
    assert (due.amount, due.asset.decimals, str(due.asset.token)) == (30_000, 6, USDC)
    with pytest.raises(ValueError, match="another payer"):
        read_refund_due(
            [calls[0], call_of(provider, id=OTHER_ID, payer=USDC)], sender=Address.parse(provider)
        )


def test_a_transfer_is_posted_until_it_is_deep_enough(capsys):
    """After the last pause the command that repeats the request is printed."""
    pauses: list[float] = []
    pending = {"code": "payment_pending", "retryable": True}
    answers = [GatewayRefused(409, pending) for _ in range(3)]

    def post():
        if answers:
            raise answers.pop()
        return {"calls": []}

    assert _post(post, wait_s=10, command="again", sleep=pauses.append) == {"calls": []}
    assert pauses == [2.0] * 3
    answers += [GatewayRefused(409, pending) for _ in range(9)]
    with pytest.raises(GatewayRefused):
        _post(post, wait_s=4, command="repeat this", sleep=pauses.append)
    assert "repeat this" in capsys.readouterr().err


def test_a_refusal_of_the_gateway_is_explained(run, gateway):
    problem = {"code": "refund_transfer_used", "detail": "Each transfer refunds once.", "status": 409}
    gateway.next_answer = (409, PROBLEM, json.dumps(problem).encode())
    done = run("history", "refund", CALL_ID, "--transaction", TX)
    assert (done.exit_code, "refunds once" in done.output) == (1, True)
