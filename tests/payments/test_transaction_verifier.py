"""Verification from a proof to a spendable payment or a refusal: stolen hashes, outages, concurrency, edits."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import Transaction, authorization_log
from tests.kit.ledger_records import operator_origin
from tests.kit.waits import until
from tollway.chain.port import ContractResult, Quorum
from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable
from tollway.gateway.call_rates import CallRateLimits
from tollway.ids import Address, ChainId, keccak256
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import PaymentState
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.payments.transaction_verifier import SpendablePayment
from tollway.rate_limits.limiter import RateLimiter

MAIN, SECOND, TEST = ChainId(8453), ChainId(10), ChainId(84532)
DAY = 86_400


def values(outcome: Any) -> list[int]:
    assert isinstance(outcome, tuple), outcome
    assert outcome
    assert all(isinstance(one, SpendablePayment) for one in outcome)
    return [one.payment.value_units for one in outcome]


async def refusal(harness: Any, proof: Any, *args: Any, **fields: Any) -> tuple[Code, str | None]:
    """The code and reason of a refusal that wrote nothing to the ledger."""
    before = await harness.ledger.find_payments(proof.tx_hash)
    outcome = await harness.find_spendable(proof, *args, **fields)
    assert isinstance(outcome, Problem), outcome
    assert await harness.ledger.find_payments(proof.tx_hash) == before
    return outcome.code, outcome.reason


FAILED = Code.PAYMENT_VERIFICATION_FAILED
MISMATCH = (Code.PAYER_MISMATCH, None)
NOT_MINED = (Code.PAYMENT_PENDING, "not_mined")


async def spend(harness: Any, payment: Any, units: int = 1) -> None:
    assert isinstance(await harness.ledger.claim(harness.claim(payment, units)), Claimed)


# ---- The first presentation.


class TestFirstPresentation:
    @pytest.mark.parametrize("is_raw", [False, True], ids=["hash as text", "hash as bytes"])
    async def test_a_transfer_is_a_payment_of_its_payer(self, harness, is_raw) -> None:
        (one,) = await harness.present(harness.pay(units=25_000), is_raw=is_raw)
        assert (one.payment.value_units, one.asset.symbol) == (25_000, "USDC")
        assert one.is_first
        assert harness.chain.requests == {("fetch_facts", MAIN): 1}

    async def test_a_recorded_payment_reads_no_chain(self, harness) -> None:
        tx_hash = harness.pay()
        await harness.present(tx_hash)
        asked = harness.chain.request_count
        harness.chain.disconnect(MAIN, SECOND, TEST)
        for transaction_verifier in (harness.transaction_verifier, harness.make_till()):
            harness.transaction_verifier = transaction_verifier
            assert values(await harness.present(tx_hash)) == [10_000]
        assert harness.chain.request_count == asked
        assert len(harness.quota.charged) == 1

    async def test_each_look_up_is_counted_once_by_its_outcome(self, harness) -> None:
        proof = harness.proof(harness.pay())
        await harness.find_spendable(proof)
        await harness.find_spendable(proof)
        await harness.present(harness.hash())
        await harness.present(harness.pay(succeeded=False))
        assert harness.shown == [
            ("eip155:8453", "accepted"),
            ("none", "payment_pending"),
            ("none", "payment_verification_failed"),
        ]

    async def test_native_currency_is_exact(self, harness) -> None:
        entry = harness.entry(harness.version(currency="ETH"))
        tx_hash = harness.mine(recipient=harness.provider.address, value=10**16)
        (one,) = await harness.present(tx_hash, entry=entry)
        assert (one.payment.asset, one.payment.value_units) == ("native", 10**7)

    async def test_two_assets_in_one_transaction_are_two_payments(self, harness) -> None:
        log = harness.transfer(harness.caller.address, 70)
        tx_hash = harness.mine(log, recipient=harness.provider.address, value=10**16)
        entry = harness.entry(
            harness.version(harness.now_s - 50), harness.version(0, harness.now_s - 50, currency="ETH")
        )
        assert sorted(values(await harness.present(tx_hash, entry=entry))) == [70, 10**7]

    async def test_an_unknown_hash_is_pending(self, harness) -> None:
        outcome = await harness.present(harness.hash())
        assert (outcome.code, outcome.reason) == NOT_MINED
        assert outcome.retry_after_s
        assert outcome.payment_state == "none"

    async def test_a_shallow_transaction_is_pending_and_then_accepted(self, harness) -> None:
        tx_hash = harness.pay(depth=1)
        assert await refusal(harness, harness.proof(tx_hash)) == (Code.PAYMENT_PENDING, "confirmations")
        harness.chain.bury(MAIN, 1)
        assert values(await harness.present(tx_hash)) == [10_000]

    async def test_a_failed_transaction_in_a_shallow_block_is_pending(self, harness) -> None:
        tx_hash = harness.pay(depth=1, succeeded=False)
        assert (await refusal(harness, harness.proof(tx_hash)))[0] is Code.PAYMENT_PENDING
        harness.chain.bury(MAIN, 1)
        assert await refusal(harness, harness.proof(tx_hash)) == (FAILED, "transaction_failed")

    async def test_a_block_in_the_future_is_pending(self, harness) -> None:
        tx_hash = harness.pay(age_s=-61)
        assert await refusal(harness, harness.proof(tx_hash)) == (Code.PAYMENT_PENDING, "block_in_future")
        harness.now_s += 1
        assert values(await harness.present(tx_hash)) == [10_000]

    async def test_an_underpayment_is_recorded(self, harness) -> None:
        assert values(await harness.present(harness.pay(units=1))) == [1]

    @pytest.mark.parametrize(
        ("case", "expected"),
        [
            ("recipient", (FAILED, "wrong_recipient")),
            ("token", (FAILED, "wrong_token")),
            ("spoof", (FAILED, "wrong_token")),
            ("returned", (FAILED, "returned")),
            ("authorised", (FAILED, "authorization_transfer")),
            ("empty", (FAILED, "no_transfer")),
            ("old", (Code.PAYMENT_TOO_OLD, None)),
            ("before the listing", (Code.PAYMENT_TOO_OLD, "before_listing")),
            ("too large", (FAILED, "amount_too_large")),
        ],
    )
    async def test_refuses_other_transactions(self, harness, case, expected) -> None:
        me, payee = harness.caller.address, harness.provider.address
        transactions: dict[str, Any] = {
            "recipient": lambda: harness.pay(to=harness.thief.address),
            "token": lambda: harness.mine(_of(harness.transfer(me), Address(b"\xdd" * 20))),
            "spoof": lambda: harness.mine(_of(harness.transfer(me), me), harness.transfer(me, to=me)),
            "returned": lambda: harness.mine(harness.transfer(me), harness.transfer(payee, to=me)),
            "authorised": lambda: harness.mine(harness.transfer(me), authorization_log(_token(harness), me)),
            "empty": lambda: harness.mine(),
            "old": lambda: harness.pay(age_s=DAY + 1),
            "before the listing": lambda: harness.pay(),
            "too large": lambda: harness.pay(units=2**63),
        }
        if case == "spoof":
            expected = (FAILED, "wrong_recipient")  # the one real transfer went to himself
        entry = harness.entry(harness.version(harness.now_s)) if case == "before the listing" else None
        assert await refusal(harness, harness.proof(transactions[case]()), entry) == expected

    @pytest.mark.parametrize("has_code", [True, False])
    async def test_native_value_through_a_contract_has_its_own_reason(self, harness, has_code) -> None:
        contract = Address(b"\x0f" * 20)
        if has_code:
            harness.chain.deploy(MAIN, contract)
        tx_hash = harness.mine(recipient=contract, value=10**16)
        entry = harness.entry(harness.version(currency="ETH"))
        reason = "internal_transfer" if has_code else "wrong_recipient"
        assert await refusal(harness, harness.proof(tx_hash), entry) == (FAILED, reason)


def _token(harness: Any) -> Address:
    token = harness.rules[MAIN].assets[0].token
    assert token is not None
    return token


def _of(log: Any, token: Address) -> Any:
    return type(log)(address=token, topics=log.topics, payload=log.payload, removed=False)


# ---- Thieves.


class TestThieves:
    @pytest.mark.parametrize("is_known", [False, True], ids=["first shown", "known"])
    async def test_a_stolen_hash_buys_nothing(self, harness, is_known) -> None:
        tx_hash = harness.pay()
        if is_known:
            await harness.present(tx_hash)
        assert await refusal(harness, harness.proof(tx_hash, harness.thief)) == MISMATCH
        assert await refusal(harness, harness.bound(tx_hash, harness.thief)) == MISMATCH

    async def test_the_sender_of_another_wallets_tokens_is_not_the_payer(self, harness) -> None:
        tx_hash = harness.mine(harness.transfer(harness.caller.address), sender=harness.thief.address)
        assert await refusal(harness, harness.proof(tx_hash, harness.thief)) == MISMATCH
        assert values(await harness.present(tx_hash)) == [10_000]

    async def test_a_signature_over_another_hash_does_not_count(self, harness) -> None:
        first, second = harness.pay(), harness.pay()
        signature = harness.proof(first).signature
        assert await refusal(harness, harness.proof(second, signature=signature)) == MISMATCH

    @pytest.mark.parametrize(
        "changed",
        [
            {"gateway": "https://other.example.com"},
            {"method": "POST"},
            {"target": b"/quote/ETH"},
            {"target": b"/quote/ETH?full=2"},
            {"body_hash": keccak256(b"x")},
        ],
        ids=["gateway", "method", "query gone", "query", "body"],
    )
    async def test_a_bound_signature_is_for_one_request(self, harness, changed) -> None:
        tx_hash = harness.pay()
        proof = harness.bound(tx_hash)
        assert await refusal(harness, proof, **changed) == MISMATCH
        assert values(await harness.find_spendable(proof)) == [10_000]
        assert await refusal(harness, proof, **changed) == MISMATCH

    async def test_a_bound_signature_is_for_one_listing_and_one_network(self, harness) -> None:
        tx_hash = harness.pay()
        assert await refusal(harness, harness.bound(tx_hash), harness.entry(listing_id="api_2")) == MISMATCH
        assert await refusal(harness, harness.bound(tx_hash, chain_id=SECOND)) == MISMATCH

    async def test_two_payers_of_one_transaction_never_spend_each_others_payment(self, harness) -> None:
        other = harness.wallet("other")
        tx_hash = harness.mine(
            harness.transfer(harness.caller.address, 10), harness.transfer(other.address, 99)
        )
        assert values(await harness.present(tx_hash)) == [10]
        assert values(await harness.present(tx_hash, other)) == [99]
        harness.chain.disconnect(MAIN)
        assert values(await harness.present(tx_hash)) == [10]
        assert values(await harness.present(tx_hash, other)) == [99]

    async def test_four_transfers_are_worth_four_calls_and_one_row(self, harness) -> None:
        tx_hash = harness.mine(*[harness.transfer(harness.caller.address)] * 4)
        (one,) = await harness.present(tx_hash)
        assert one.payment.remaining_units == 40_000
        assert len(await harness.ledger.find_payments(tx_hash)) == 1

    async def test_presenting_a_transaction_again_adds_nothing(self, harness) -> None:
        tx_hash = harness.pay()
        for transaction_verifier in (harness.transaction_verifier, harness.make_till(), harness.make_till()):
            harness.transaction_verifier = transaction_verifier
            (one,) = await harness.present(tx_hash)
        assert (one.payment.id, one.payment.value_units) == (1, 10_000)

    async def test_a_payment_to_one_provider_buys_nothing_of_another(self, harness) -> None:
        tx_hash = harness.pay()
        foreign = harness.entry(harness.version(pay_to=harness.thief.address), listing_id="api_2")
        await harness.present(tx_hash)
        assert await refusal(harness, harness.proof(tx_hash), foreign) == (FAILED, "wrong_recipient")

    async def test_test_money_never_buys_calls_of_a_main_network(self, harness) -> None:
        tx_hash = harness.pay(chain_id=TEST)
        assert values(
            await harness.find_spendable(
                harness.proof(tx_hash), harness.entry(harness.version(networks=(TEST,)))
            )
        )
        gone_live = harness.entry(
            harness.version(harness.now_s - 5), harness.version(0, harness.now_s - 5, networks=(TEST,))
        )
        assert await refusal(harness, harness.proof(tx_hash), gone_live) == NOT_MINED
        assert (await refusal(harness, harness.proof(tx_hash, chain_id=TEST), gone_live)) == (
            FAILED,
            "wrong_chain",
        )
        assert await refusal(harness, harness.proof(tx_hash), harness.entry()) == NOT_MINED

    async def test_a_gone_payment_is_verified_again(self, harness) -> None:
        tx_hash = harness.pay()
        (one,) = await harness.present(tx_hash)
        await harness.ledger.mark_gone(one.payment.id, now_ms=harness.now_ms())
        harness.chain.reorg(MAIN, 2)
        assert await refusal(harness, harness.proof(tx_hash)) == NOT_MINED
        harness.pay(tx_hash=tx_hash, depth=1)
        assert (await refusal(harness, harness.proof(tx_hash)))[1] == "confirmations"
        harness.chain.bury(MAIN, 1)
        (one,) = await harness.present(tx_hash)
        assert (one.payment.state, one.payment.value_units) == (
            PaymentState.UNFINAL,
            10_000,
        )

    async def test_a_displaced_block_of_a_node_is_pending(self, harness) -> None:
        tx_hash = harness.pay()
        harness.chain.lies[tx_hash] = lambda told: replace(told, canonical_hash=bytes(32))
        assert (await refusal(harness, harness.proof(tx_hash)))[0] is Code.PAYMENT_PENDING


# ---- Contract wallets.


class TestContractPayers:
    @pytest.mark.parametrize("form", ["plain", "raw", "bound"])
    async def test_a_contract_wallet_signs_by_its_owner(self, harness, form) -> None:
        wallet = harness.deploy_wallet(harness.caller)
        tx_hash = harness.mine(harness.transfer(wallet))
        proof = harness.bound(tx_hash) if form == "bound" else harness.proof(tx_hash, is_raw=form == "raw")
        (one,) = await harness.find_spendable(proof)
        assert one.payment.payer == wallet
        assert await harness.find_spendable(proof) == (one,)

    async def test_a_contract_that_refuses_the_signature_is_not_the_payer(self, harness) -> None:
        wallet = harness.deploy_wallet(harness.caller)
        tx_hash = harness.mine(harness.transfer(wallet))
        assert await refusal(harness, harness.proof(tx_hash, harness.thief)) == MISMATCH
        await harness.present(tx_hash)
        assert await refusal(harness, harness.proof(tx_hash, harness.thief)) == MISMATCH
        assert await refusal(harness, harness.proof(tx_hash, signature=b"\x01" * 200)) == MISMATCH

    async def test_an_unavailable_wallet_check_is_not_a_refusal(self, harness) -> None:
        wallet = harness.deploy_wallet(harness.caller)
        tx_hash = harness.mine(harness.transfer(wallet))
        await harness.present(tx_hash)
        harness.chain.disconnect(MAIN)
        with pytest.raises(ChainUnavailable):
            await harness.present(tx_hash)

    async def test_a_key_signature_counts_while_the_chain_is_unavailable(self, harness) -> None:
        wallet = harness.deploy_wallet(harness.wallet("other"))
        tx_hash = harness.mine(harness.transfer(wallet, 7), harness.transfer(harness.caller.address, 10))
        assert values(await harness.present(tx_hash, harness.wallet("other"))) == [7]
        assert values(await harness.present(tx_hash)) == [10]
        harness.chain.disconnect(MAIN)
        assert values(await harness.present(tx_hash)) == [10]

    async def test_a_key_on_one_network_needs_no_wallet_call_on_another(self, harness) -> None:
        wallet, tx_hash = harness.deploy_wallet(harness.wallet("other")), harness.hash()
        entry = harness.entry(harness.version(networks=(MAIN, SECOND)))
        harness.mine(harness.transfer(wallet, 7), tx_hash=tx_hash)
        harness.pay(units=10, tx_hash=tx_hash, chain_id=SECOND)
        assert values(await harness.present(tx_hash, harness.wallet("other"), entry=entry)) == [7]
        assert values(await harness.present(tx_hash, entry=entry)) == [10]
        harness.chain.disconnect(MAIN)
        assert values(await harness.present(tx_hash, entry=entry)) == [10]

    @pytest.mark.parametrize(("place", "is_found"), [(3, True), (4, False)])
    async def test_at_most_four_contract_wallets_are_called(self, harness, place, is_found) -> None:
        wallet = harness.deploy_wallet(harness.caller)
        payers = [Address(bytes([n]) * 20) for n in range(1, 9)]
        payers.insert(place, wallet)
        tx_hash = harness.mine(*(harness.transfer(payer) for payer in payers))
        outcome = await harness.present(tx_hash)
        assert isinstance(outcome, tuple) is is_found
        assert harness.chain.requests["call_contract", MAIN] <= 8

    async def test_mints_do_not_count_among_the_four(self, harness) -> None:
        wallet = harness.deploy_wallet(harness.caller)
        payers = [Address(20), *(Address(bytes([n]) * 20) for n in range(1, 4)), wallet]
        tx_hash = harness.mine(*(harness.transfer(payer) for payer in payers))
        assert values(await harness.present(tx_hash)) == [10_000]

    async def test_a_worthless_signature_for_a_known_payment_is_charged_and_checked_once(
        self, harness
    ) -> None:
        wallet = harness.deploy_wallet(harness.caller)
        tx_hash = harness.mine(harness.transfer(wallet))
        await harness.present(tx_hash)
        harness.transaction_verifier = harness.make_till()  # no wallet is cached yet
        harness.chain.requests.clear()
        harness.quota.charged.clear()
        assert await refusal(harness, harness.proof(tx_hash, harness.thief)) == MISMATCH
        assert harness.chain.requests["call_contract", MAIN] == 2  # one for each spelling of the hash
        assert len(harness.quota.charged) == 1
        harness.quota.left = 0
        assert (await refusal(harness, harness.proof(tx_hash, harness.thief)))[0] is Code.RATE_LIMITED

    async def test_a_wallet_that_accepted_a_signature_is_not_charged_for_each_call(self, harness) -> None:
        tx_hash = harness.mine(harness.transfer(harness.deploy_wallet(harness.caller)))
        await harness.present(tx_hash)
        harness.quota.left = 0
        for _ in range(3):
            assert values(await harness.present(tx_hash)) == [10_000]
        assert (await refusal(harness, harness.proof(tx_hash, harness.thief)))[0] in (
            Code.PAYER_MISMATCH,
            Code.RATE_LIMITED,
        )
        assert (await refusal(harness, harness.proof(tx_hash, harness.thief)))[0] is Code.RATE_LIMITED

    async def test_a_wallet_that_reverts_or_returns_too_much_is_not_the_payer(self, harness) -> None:
        for number, answer in enumerate(
            (
                ContractResult(reverted=True, payload=bytes.fromhex("1626ba7e").ljust(32, b"\0")),
                ContractResult(reverted=False, payload=b"\x16\x26\xba\x7e"),
                ContractResult(reverted=False, payload=b"\xff" * 100_000),
            )
        ):
            address = Address(bytes([0x40 + number]) * 20)
            harness.chain.deploy(MAIN, address, lambda calldata, answer=answer: answer)
            assert await refusal(harness, harness.proof(harness.mine(harness.transfer(address)))) == MISMATCH


# ---- Networks.


class TestNetworks:
    @pytest.fixture
    def two(self, harness):
        return harness.entry(harness.version(networks=(MAIN, SECOND)))

    async def test_an_accepted_payment_on_any_network_decides(self, harness, two) -> None:
        tx_hash = harness.pay(chain_id=SECOND)
        (one,) = await harness.present(tx_hash, entry=two)
        assert one.payment.chain_id == SECOND
        assert len(harness.quota.charged) == 1

    async def test_an_accepted_payment_decides_while_the_other_network_is_unavailable(
        self, harness, two
    ) -> None:
        tx_hash = harness.pay(chain_id=SECOND)
        harness.chain.disconnect(MAIN)
        assert values(await harness.present(tx_hash, entry=two)) == [10_000]

    async def test_an_accepted_payment_does_not_wait_for_a_hanging_network(
        self, harness, two, make_harness
    ) -> None:
        tx_hash = harness.pay(chain_id=SECOND)
        hanging = _Hanging(harness.chain, MAIN)
        harness.transaction_verifier.lookup._chains = hanging
        assert values(await harness.present(tx_hash, entry=two)) == [10_000]
        assert hanging.cancelled == 1

    @pytest.mark.parametrize("elsewhere", ["nothing", "a refusal"])
    async def test_a_refusal_needs_every_network(self, harness, two, elsewhere) -> None:
        tx_hash = harness.hash()
        if elsewhere == "a refusal":
            harness.pay(chain_id=SECOND, tx_hash=tx_hash, to=harness.thief.address)
        harness.chain.disconnect(MAIN)
        with pytest.raises(ChainUnavailable):
            await harness.present(tx_hash, entry=two)
        harness.chain.reconnect(MAIN)
        expected = NOT_MINED if elsewhere == "nothing" else (FAILED, "wrong_recipient")
        assert await refusal(harness, harness.proof(tx_hash), two) == expected

    async def test_a_pending_result_comes_before_a_refusal(self, harness, two) -> None:
        tx_hash = harness.hash()
        harness.pay(tx_hash=tx_hash, to=harness.thief.address)
        transaction = Transaction(tx_hash=tx_hash, sender=harness.caller.address, recipient=None)
        harness.chain.pend(SECOND, transaction)
        assert await refusal(harness, harness.proof(tx_hash), two) == NOT_MINED
        harness.pay(tx_hash=tx_hash, chain_id=SECOND, depth=1)
        assert (await refusal(harness, harness.proof(tx_hash), two))[1] == "confirmations"

    async def test_only_the_named_network_is_read(self, harness, two) -> None:
        tx_hash = harness.pay(chain_id=SECOND)
        assert await refusal(harness, harness.proof(tx_hash, chain_id=MAIN), two) == NOT_MINED
        assert harness.chain.requests == {("fetch_facts", MAIN): 1}
        assert values(await harness.present(tx_hash, chain_id=SECOND, entry=two)) == [10_000]
        assert await refusal(harness, harness.proof(tx_hash, chain_id=MAIN), two) == NOT_MINED

    async def test_a_network_outside_the_terms_is_refused_without_a_read(self, harness) -> None:
        tx_hash = harness.pay(chain_id=SECOND)
        proof = harness.proof(tx_hash, chain_id=SECOND)
        assert await refusal(harness, proof) == (FAILED, "wrong_chain")
        assert harness.chain.request_count == 0
        assert harness.quota.charged == []

    async def test_a_known_payment_with_a_wrong_network_name_is_an_invalid_request(
        self, harness, two
    ) -> None:
        tx_hash = harness.pay(to=harness.thief.address)
        harness.pay(tx_hash=tx_hash, chain_id=SECOND)
        assert values(await harness.present(tx_hash, chain_id=SECOND, entry=two)) == [10_000]
        for wrong in (MAIN, TEST):
            proof = harness.proof(tx_hash, chain_id=wrong)
            assert await refusal(harness, proof, two) == (Code.INVALID_REQUEST, "wrong_chain")

    async def test_a_network_that_is_not_configured_is_unavailable(self, harness) -> None:
        entry = harness.entry(harness.version(networks=(ChainId(5),)))
        with pytest.raises(ChainUnavailable):
            await harness.present(harness.hash(), entry=entry)

    async def test_one_hash_on_two_networks_is_two_payments(self, harness, two) -> None:
        """Any account can replay a transaction without a chain id; it pays on both networks."""
        tx_hash = harness.pay(units=10)
        harness.pay(units=99, tx_hash=tx_hash, chain_id=SECOND)
        assert values(await harness.present(tx_hash, chain_id=MAIN, entry=two)) == [10]
        assert values(await harness.present(tx_hash, chain_id=SECOND, entry=two)) == [99]


class _Hanging:
    """A reader with one chain that never responds."""

    def __init__(self, chain: Any, hanging: ChainId) -> None:
        self._chain, self._hanging, self.cancelled = chain, hanging, 0

    async def fetch_facts(self, chain_id: ChainId, tx_hash: Any, **asked: Any) -> Any:
        if chain_id == self._hanging:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await self._chain.fetch_facts(chain_id, tx_hash, **asked)


# ---- Crowds and outages.


class TestCrowds:
    async def test_fifty_callers_share_one_look_up_and_one_charge(self, harness) -> None:
        tx_hash = harness.pay()
        harness.quota.left = 1
        harness.chain.barrier = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(harness.present(tx_hash)) for _ in range(50)]
            await until(lambda: harness.chain.request_count > 0)
            harness.chain.barrier.set()
        assert [values(task.result()) for task in tasks] == [[10_000]] * 50
        assert harness.chain.requests == {("fetch_facts", MAIN): 1}
        assert len(await harness.ledger.find_payments(tx_hash)) == 1

    async def test_a_cancelled_first_caller_does_not_fail_the_others(self, harness) -> None:
        tx_hash = harness.pay()
        harness.chain.barrier = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(harness.present(tx_hash))
            await until(lambda: harness.chain.request_count == 1)
            others = [group.create_task(harness.present(tx_hash)) for _ in range(5)]
            await _turns()
            first.cancel()
            await until(lambda: harness.chain.request_count == 2)
            harness.chain.barrier.set()
        assert first.cancelled()
        assert [values(task.result()) for task in others] == [[10_000]] * 5
        assert harness.chain.request_count == 2

    async def test_a_cancelled_waiting_caller_does_not_affect_the_others(self, harness) -> None:
        tx_hash = harness.pay()
        harness.chain.barrier = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(harness.present(tx_hash))
            await until(lambda: harness.chain.request_count == 1)
            second = group.create_task(harness.present(tx_hash))
            await _turns()
            second.cancel()
            await _turns()
            harness.chain.barrier.set()
        assert second.cancelled()
        assert values(first.result()) == [10_000]
        assert harness.chain.request_count == 1

    async def test_an_outage_reaches_all_waiting_callers_and_is_not_cached(self, harness) -> None:
        tx_hash = harness.pay()
        harness.chain.disconnect(MAIN)
        harness.chain.barrier = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_raised(harness.present(tx_hash))) for _ in range(5)]
            await until(lambda: harness.chain.request_count > 0)
            harness.chain.barrier.set()
        assert [type(task.result()) for task in tasks] == [ChainUnavailable] * 5
        harness.chain.reconnect(MAIN)
        assert values(await harness.present(tx_hash)) == [10_000]

    async def test_a_caller_with_a_stolen_hash_gets_a_separate_result(self, harness) -> None:
        tx_hash = harness.pay()
        harness.chain.barrier = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            honest = group.create_task(harness.present(tx_hash))
            thief = group.create_task(harness.present(tx_hash, harness.thief))
            await until(lambda: harness.chain.request_count > 0)
            harness.chain.barrier.set()
        assert values(honest.result()) == [10_000]
        assert thief.result().code is Code.PAYER_MISMATCH

    @pytest.mark.parametrize("networks", [(MAIN,), (MAIN, SECOND)], ids=["one network", "two"])
    async def test_books_that_are_away_are_named_plainly(self, harness, networks, monkeypatch) -> None:
        entry = harness.entry(harness.version(networks=networks))
        tx_hash = harness.pay()
        harness.chain.barrier = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_raised(harness.present(tx_hash, entry=entry)))
            await until(lambda: harness.chain.request_count > 0)
            harness.ledger.away = True
            harness.chain.barrier.set()
        assert type(task.result()) is StorageUnavailable
        assert type(await _raised(harness.present(tx_hash, entry=entry))) is StorageUnavailable

    @pytest.mark.parametrize("networks", [(MAIN,), (MAIN, SECOND)], ids=["one network", "two"])
    async def test_an_internal_error_is_not_raised_as_a_group(self, harness, networks) -> None:
        def lie(facts: Any) -> Any:
            raise ZeroDivisionError

        tx_hash = harness.pay()
        harness.chain.lies[tx_hash] = lie
        entry = harness.entry(harness.version(networks=networks))
        assert type(await _raised(harness.present(tx_hash, entry=entry))) is ZeroDivisionError


async def _raised(work: Any) -> BaseException | None:
    try:
        await work
    except Exception as exc:
        return exc
    return None


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- The meter.


class TestMeter:
    async def test_only_a_chain_request_is_charged(self, harness) -> None:
        tx_hash = harness.pay()
        await harness.present(tx_hash)
        assert harness.quota.charged == [("192.0.2.7", str(harness.caller.address))]
        for _ in range(3):
            await harness.present(tx_hash)
        assert len(harness.quota.charged) == 1

    async def test_a_look_up_with_a_valid_payment_does_not_count(self, harness) -> None:
        await harness.present(harness.pay())
        assert (
            harness.quota.given_back == harness.quota.charged == [("192.0.2.7", str(harness.caller.address))]
        )

    async def test_a_look_up_without_a_payment_counts(self, harness) -> None:
        for tx_hash in (
            harness.hash(),
            harness.mine(harness.transfer(harness.caller.address, to=harness.thief.address)),
        ):
            assert not isinstance(await harness.present(tx_hash), tuple)
        await harness.present(harness.pay(), harness.thief)
        assert (len(harness.quota.charged), harness.quota.given_back, harness.quota.unresolved) == (3, [], [])

    async def test_a_look_up_without_a_response_counts_as_unresolved(self, harness) -> None:
        tx_hash = harness.pay()
        harness.chain.disconnect(*harness.chain.chain_ids)
        with pytest.raises(ChainUnavailable):
            await harness.present(tx_hash)
        assert harness.quota.unresolved == harness.quota.charged != []
        assert harness.quota.given_back == []

    async def test_forty_payers_behind_one_address_pay_and_worthless_look_ups_are_limited(
        self, harness
    ) -> None:
        harness.quota = CallRateLimits(limits=DEFAULT_LIMITS, rate_limiter=RateLimiter())
        harness.transaction_verifier = harness.make_till()
        for number in range(40):
            customer = harness.wallet(f"customer {number}")
            tx_hash = harness.mine(harness.transfer(customer.address))
            assert values(await harness.present(tx_hash, customer)) == [10_000]
        told = [
            await refusal(harness, harness.proof(harness.hash(), harness.wallet(f"junk {number}")))
            for number in range(31)
        ]
        assert [code for code, _ in told].count(Code.RATE_LIMITED) == 1

    async def test_calls_of_a_contract_wallet_that_buys_nothing_are_limited(self, harness) -> None:
        harness.quota = CallRateLimits(limits=DEFAULT_LIMITS, rate_limiter=RateLimiter())
        harness.transaction_verifier = harness.make_till()
        wallet = harness.deploy_wallet(harness.caller)
        proof = harness.proof(harness.mine(harness.transfer(wallet)))
        told = [await harness.find_spendable(proof) for _ in range(500)]
        assert harness.chain.requests["call_contract", MAIN] == 300 + DEFAULT_LIMITS.lookups_per_minute
        assert (told[-1].code, told[-1].payment_state) == (Code.RATE_LIMITED, "none")
        payment = told[0][0].payment
        harness.transaction_verifier.mark_spent(payment)
        assert [isinstance(await harness.find_spendable(proof), tuple) for _ in range(3)] == [
            True,
            False,
            False,
        ]

    async def test_a_contract_wallet_that_buys_is_never_limited(self, harness) -> None:
        harness.quota = CallRateLimits(limits=DEFAULT_LIMITS, rate_limiter=RateLimiter())
        harness.transaction_verifier = harness.make_till()
        wallet = harness.deploy_wallet(harness.caller)
        proof = harness.proof(harness.mine(harness.transfer(wallet)))
        for _ in range(10):
            found = [await harness.find_spendable(proof) for _ in range(200)]  # at once
            for (one,) in found:
                harness.transaction_verifier.mark_spent(one.payment)

    async def test_over_the_limit_no_chain_is_read_and_known_payments_still_count(self, harness) -> None:
        known, unknown = harness.pay(), harness.pay()
        await harness.present(known)
        harness.quota.left = 0
        harness.chain.requests.clear()
        outcome = await harness.present(unknown)
        assert (outcome.code, outcome.retry_after_s, outcome.payment_state) == (Code.RATE_LIMITED, 17, "none")
        assert harness.chain.request_count == 0
        assert values(await harness.present(known)) == [10_000]

    async def test_over_the_limit_two_networks_are_one_refusal(self, harness) -> None:
        harness.quota.left = 0
        entry = harness.entry(harness.version(networks=(MAIN, SECOND)))
        assert (await refusal(harness, harness.proof(harness.pay()), entry))[0] is Code.RATE_LIMITED
        assert harness.chain.request_count == 0

    async def test_a_bound_proof_is_charged_to_its_signer_and_others_to_the_transaction(
        self, harness
    ) -> None:
        tx_hash = harness.pay()
        await harness.find_spendable(harness.bound(tx_hash, harness.thief))
        await harness.present(tx_hash, signature=b"\x01" * 70)
        assert [signer for _, signer in harness.quota.charged] == [
            str(harness.thief.address),
            f"transaction {tx_hash} from 192.0.2.7",
        ]


# ---- Edits between quote and call, and payments of long ago.


class TestEdits:
    async def test_a_payee_that_was_replaced_still_counts(self, harness) -> None:
        new = harness.version(harness.now_s - 50, pay_to=harness.thief.address)
        entry = harness.entry(new, harness.version(0, harness.now_s - 50))
        assert values(await harness.present(harness.pay(), entry=entry)) == [10_000]

    async def test_a_network_and_a_currency_that_were_removed_still_count(self, harness) -> None:
        new = harness.version(harness.now_s - 50, networks=(SECOND,), currency="ETH")
        entry = harness.entry(new, harness.version(0, harness.now_s - 50))
        assert values(await harness.present(harness.pay(), entry=entry)) == [10_000]

    async def test_recorded_credit_counts_after_every_edit(self, harness) -> None:
        tx_hash = harness.pay()
        await harness.present(tx_hash)
        harness.now_s += 300 * DAY
        since_s = harness.now_s - 200 * DAY
        entry = harness.entry(harness.version(since_s, pay_to=harness.thief.address, networks=(SECOND,)))
        harness.older = [harness.version(0, since_s)]
        harness.chain.disconnect(MAIN, SECOND)
        assert values(await harness.present(tx_hash, entry=entry)) == [10_000]

    async def test_credit_buys_calls_of_a_listing_that_was_published_later(self, harness) -> None:
        tx_hash = harness.pay()
        await harness.present(tx_hash)
        later = harness.entry(harness.version(harness.now_s), listing_id="api_2")
        assert values(await harness.present(tx_hash, entry=later)) == [10_000]

    async def test_a_recent_payment_needs_no_older_terms(self, harness) -> None:
        await harness.present(harness.pay(age_s=DAY))
        await harness.present(harness.pay(to=harness.thief.address))
        assert harness.older_asked == 0

    async def test_an_admitted_payment_is_verified_by_the_terms_of_its_time(self, harness) -> None:
        tx_hash = harness.pay(age_s=30 * DAY)
        since_s = harness.now_s - 20 * DAY
        entry = harness.entry(harness.version(since_s, pay_to=harness.thief.address))
        harness.older = [harness.version(0, since_s)]
        assert (await refusal(harness, harness.proof(tx_hash), entry))[0] is Code.PAYMENT_TOO_OLD
        await harness.ledger.admit(tx_hash, origin=operator_origin(harness.now_ms()))
        assert values(await harness.present(tx_hash, entry=entry)) == [10_000]

    async def test_downtime_does_not_count_as_age(self, harness) -> None:
        tx_hash = harness.pay(age_s=10)
        await harness.ledger.mark_ready(now_ms=harness.now_ms())
        harness.now_s += 5 * DAY
        await harness.ledger.mark_ready(now_ms=harness.now_ms())
        assert values(await harness.present(tx_hash)) == [10_000]
        other = harness.pay(age_s=6 * DAY + 1)
        assert (await refusal(harness, harness.proof(other)))[0] is Code.PAYMENT_TOO_OLD

    async def test_after_a_restore_older_payments_are_held_until_admitted(self, harness) -> None:
        old, new = harness.pay(age_s=100), harness.pay(age_s=-10)
        await harness.ledger.mark_restored(origin=operator_origin(harness.now_ms()))
        assert (await refusal(harness, harness.proof(old)))[0] is Code.PAYMENT_HELD
        assert values(await harness.present(new)) == [10_000]
        await harness.ledger.admit(old, origin=operator_origin(harness.now_ms()))
        assert values(await harness.present(old)) == [10_000]

    async def test_a_restore_detected_during_the_chain_read_counts(self, harness) -> None:
        """The transaction may have been spent in the lost part of the ledger."""
        tx_hash = harness.pay(age_s=100)
        harness.chain.barrier = asyncio.Event()
        shown = asyncio.get_running_loop().create_task(harness.present(tx_hash))
        await until(lambda: harness.chain.request_count > 0)
        await harness.ledger.mark_restored(origin=operator_origin(harness.now_ms()))
        harness.chain.barrier.set()
        with pytest.raises(StorageUnavailable):
            await shown
        assert await harness.ledger.find_payments(tx_hash) == ()
        assert (await refusal(harness, harness.proof(tx_hash)))[0] is Code.PAYMENT_HELD

    async def test_the_ledger_is_read_once_before_a_chain(self, harness) -> None:
        asked: list[str] = []
        behind = harness.transaction_verifier._payments

        class Counting:
            def __getattr__(self, name: str) -> object:
                asked.append(name)
                return getattr(behind, name)

        harness.transaction_verifier._payments = Counting()
        await harness.present(harness.pay())
        assert asked == ["find_transaction", "record_payments"]


# ---- The first call, and what the till remembers.


class TestMemory:
    async def test_a_payment_is_at_its_first_call_until_it_has_bought_one(self, harness) -> None:
        tx_hash = harness.pay(units=5)
        for _ in range(3):  # calls that were never delivered change nothing
            (one,) = await harness.present(tx_hash)
            assert one.is_first
            harness.transaction_verifier.mark_spent(one.payment)
        await spend(harness, one.payment)
        for _ in range(3):
            (one,) = await harness.present(tx_hash)
            assert not one.is_first
            harness.transaction_verifier.mark_spent(one.payment)

    async def test_a_cached_payment_reads_neither_ledger_nor_chain(self, harness) -> None:
        tx_hash = harness.pay(units=5)
        (one,) = await harness.present(tx_hash)
        await spend(harness, one.payment)
        await harness.present(tx_hash)
        harness.ledger.away = True
        harness.chain.disconnect(MAIN)
        assert values(await harness.present(tx_hash)) == [5]

    @pytest.mark.parametrize("how", ["forget", "forget_payer"])
    async def test_a_dropped_payment_is_read_again(self, harness, how) -> None:
        tx_hash = harness.pay(units=5)
        (one,) = await harness.present(tx_hash)
        await spend(harness, one.payment)
        await harness.present(tx_hash)
        await spend(harness, one.payment)  # elsewhere
        (remembered,) = await harness.present(tx_hash)
        if how == "forget":
            harness.transaction_verifier.forget(tx_hash)
        else:
            harness.transaction_verifier.forget_payer(one.payment.payer)
        (one,) = await harness.present(tx_hash)
        assert (remembered.payment.taken_units, one.payment.taken_units) == (1, 2)

    async def test_a_cached_payment_is_its_payers_only(self, harness) -> None:
        tx_hash = harness.pay(units=5)
        (one,) = await harness.present(tx_hash)
        await spend(harness, one.payment)
        await harness.present(tx_hash)
        assert await refusal(harness, harness.proof(tx_hash, harness.thief)) == MISMATCH
        foreign = harness.entry(harness.version(pay_to=harness.thief.address), listing_id="api_2")
        assert await refusal(harness, harness.proof(tx_hash), foreign) == (FAILED, "wrong_recipient")

    async def test_the_ledger_refuses_a_payment_that_became_gone(self, harness) -> None:
        """The price and the payee still count: the payment is spendable, and the claim decides."""
        tx_hash = harness.pay(units=5)
        (one,) = await harness.present(tx_hash)
        await spend(harness, one.payment, 5)
        (one,) = await harness.find_spendable(
            harness.proof(tx_hash), harness.entry(harness.version(price=Price.parse("9")))
        )
        assert one.payment.remaining_units == 0


# ---- One node's word, and that of several.

SMALL = 10_000_000  # 10 USDC: the most for which one node is enough


class TestAgreementByValue:
    @pytest.fixture
    def harness(self, harness: Any) -> Any:
        harness.rules = {
            chain_id: replace(rules, agreement_above=(("USDC", 10 * 10**9),))
            for chain_id, rules in harness.rules.items()
        }
        harness.transaction_verifier = harness.make_till()
        return harness

    async def test_one_node_is_enough_for_a_small_payment(self, harness) -> None:
        harness.chain.leave_one_node(MAIN)
        assert values(await harness.present(harness.pay(units=SMALL))) == [SMALL]
        assert harness.chain.trusts == [Quorum.ONE]

    async def test_a_large_payment_is_read_again_from_more_nodes(self, harness) -> None:
        assert values(await harness.present(harness.pay(units=SMALL + 1))) == [SMALL + 1]
        assert harness.chain.trusts == [Quorum.ONE, Quorum.AGREED]
        assert len(harness.quota.charged) == 1

    async def test_an_unconfirmed_large_payment_is_not_refused(self, harness) -> None:
        harness.chain.leave_one_node(MAIN)
        tx_hash = harness.pay(units=SMALL + 1)
        with pytest.raises(ChainUnavailable):
            await harness.present(tx_hash)
        assert await harness.ledger.find_payments(tx_hash) == ()

    @pytest.mark.parametrize(
        ("units", "state"), [(SMALL, PaymentState.UNFINAL), (SMALL + 1, PaymentState.FINAL)]
    )
    async def test_one_nodes_response_makes_no_payment_final(
        self, harness, units: int, state: PaymentState
    ) -> None:
        """A final payment is never checked again: a false report would remain."""
        tx_hash = harness.pay(units=units)
        harness.chain.bury(MAIN, 30)
        (one,) = await harness.present(tx_hash)
        assert one.payment.state is state

    async def test_small_transfers_of_one_transaction_count_together(self, harness) -> None:
        second = Address(b"\x77" * 20)
        entry = harness.entry(harness.version(), harness.version(pay_to=second, until_s=harness.now_s))
        transfers = (
            harness.transfer(harness.caller.address, SMALL),
            harness.transfer(harness.caller.address, SMALL, second),
        )
        tx_hash = harness.mine(*transfers)
        harness.chain.leave_one_node(MAIN)
        with pytest.raises(ChainUnavailable):
            await harness.present(tx_hash, entry=entry)

    @pytest.mark.parametrize(
        "lie",
        [
            pytest.param(lambda facts: replace(facts, succeeded=False), id="it failed"),
            pytest.param(lambda facts: replace(facts, logs=()), id="it moved nothing"),
            pytest.param(lambda facts: replace(facts, block_time=0), id="it is old"),
        ],
    )
    async def test_one_node_alone_refuses_no_payment(self, harness, lie) -> None:
        tx_hash = harness.pay(units=SMALL + 1)
        harness.chain.unconfirmed[tx_hash] = lie
        harness.chain.leave_one_node(MAIN)
        with pytest.raises(ChainUnavailable):
            await harness.present(tx_hash)
        harness.chain.reconnect(MAIN)
        assert values(await harness.present(tx_hash)) == [SMALL + 1]

    async def test_a_large_payment_by_one_node_is_not_recorded(self, harness) -> None:
        """The node reports less or more than the others: the others count."""
        tx_hash = harness.pay(units=SMALL + 1)
        harness.chain.unconfirmed[tx_hash] = lambda facts: replace(facts, logs=facts.logs * 2)
        assert values(await harness.present(tx_hash)) == [SMALL + 1]


async def test_without_a_threshold_nodes_agree_on_every_value(harness) -> None:
    await harness.present(harness.pay())
    assert harness.chain.trusts == [Quorum.AGREED]
