"""From a shown proof to a payment that may be spent, or to the reason why not: thieves, outages, crowds, edits."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import Transaction, authorization_log
from tollway.chain.reader import ContractAnswer, Trust
from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable
from tollway.gateway.meters import Meters
from tollway.identifiers import Address, ChainId, keccak256
from tollway.ledger.book import Claimed
from tollway.ledger.call import PaymentState
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.payments.till import Tender
from tollway.rates import Rates

MAIN, SECOND, TEST = ChainId(8453), ChainId(10), ChainId(84532)
DAY = 86_400


def values(outcome: Any) -> list[int]:
    assert isinstance(outcome, tuple), outcome
    assert outcome
    assert all(isinstance(tender, Tender) for tender in outcome)
    return [tender.payment.value_units for tender in outcome]


async def refusal(stall: Any, proof: Any, *args: Any, **fields: Any) -> tuple[Code, str | None]:
    """The code and reason of a refusal; nothing of it is in the books."""
    before = await stall.book.find_payments(proof.tx_hash)
    outcome = await stall.tender(proof, *args, **fields)
    assert isinstance(outcome, Problem), outcome
    assert await stall.book.find_payments(proof.tx_hash) == before
    return outcome.code, outcome.reason


FAILED = Code.PAYMENT_VERIFICATION_FAILED
MISMATCH = (Code.PAYER_MISMATCH, None)
NOT_MINED = (Code.PAYMENT_PENDING, "not_mined")


async def spend(stall: Any, payment: Any, units: int = 1) -> None:
    assert isinstance(await stall.book.claim(stall.claim(payment, units)), Claimed)


# ---- The first presentation.


class TestFirstPresentation:
    @pytest.mark.parametrize("is_raw", [False, True], ids=["hash as text", "hash as bytes"])
    async def test_the_payer_is_told_what_it_is_worth(self, stall, is_raw) -> None:
        (tender,) = await stall.tender(stall.proof(stall.pay(units=25_000), is_raw=is_raw))
        assert (tender.payment.value_units, tender.asset.symbol) == (25_000, "USDC")
        assert tender.is_first
        assert stall.chain.asked == {("fetch_facts", MAIN): 1}

    async def test_what_was_recorded_needs_no_chain_ever_again(self, stall) -> None:
        tx_hash = stall.pay()
        await stall.tender(stall.proof(tx_hash))
        asked = stall.chain.questions
        stall.chain.take_away(MAIN, SECOND, TEST)
        for till in (stall.till, stall.make_till()):
            stall.till = till
            assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]
        assert stall.chain.questions == asked
        assert len(stall.meter.charged) == 1

    async def test_is_counted_once_by_its_outcome(self, stall) -> None:
        proof = stall.proof(stall.pay())
        await stall.tender(proof)
        await stall.tender(proof)
        await stall.tender(stall.proof(stall.hash()))
        await stall.tender(stall.proof(stall.pay(succeeded=False)))
        assert stall.shown == [
            ("eip155:8453", "accepted"),
            ("none", "payment_pending"),
            ("none", "payment_verification_failed"),
        ]

    async def test_native_currency_is_exact(self, stall) -> None:
        shelf = stall.shelf(stall.version(currency="ETH"))
        tx_hash = stall.mine(recipient=stall.provider.address, value=10**16)
        (tender,) = await stall.tender(stall.proof(tx_hash), shelf)
        assert (tender.payment.asset, tender.payment.value_units) == ("native", 10**7)

    async def test_two_assets_in_one_transaction_are_two_tenders(self, stall) -> None:
        log = stall.transfer(stall.caller.address, 70)
        tx_hash = stall.mine(log, recipient=stall.provider.address, value=10**16)
        shelf = stall.shelf(
            stall.version(stall.now_s - 50), stall.version(0, stall.now_s - 50, currency="ETH")
        )
        assert sorted(values(await stall.tender(stall.proof(tx_hash), shelf))) == [70, 10**7]

    async def test_an_unknown_hash_is_pending(self, stall) -> None:
        outcome = await stall.tender(stall.proof(stall.hash()))
        assert (outcome.code, outcome.reason) == NOT_MINED
        assert outcome.retry_after_s
        assert outcome.payment_state == "none"

    async def test_too_shallow_is_pending_and_then_accepted(self, stall) -> None:
        tx_hash = stall.pay(depth=1)
        assert await refusal(stall, stall.proof(tx_hash)) == (Code.PAYMENT_PENDING, "confirmations")
        stall.chain.bury(MAIN, 1)
        assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]

    async def test_a_failure_in_a_shallow_block_may_still_become_a_payment(self, stall) -> None:
        tx_hash = stall.pay(depth=1, succeeded=False)
        assert (await refusal(stall, stall.proof(tx_hash)))[0] is Code.PAYMENT_PENDING
        stall.chain.bury(MAIN, 1)
        assert await refusal(stall, stall.proof(tx_hash)) == (FAILED, "transaction_failed")

    async def test_a_block_of_the_future_is_asked_again_never_paid_again(self, stall) -> None:
        tx_hash = stall.pay(age_s=-61)
        assert await refusal(stall, stall.proof(tx_hash)) == (Code.PAYMENT_PENDING, "block_in_future")
        stall.now_s += 1
        assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]

    async def test_an_underpayment_is_recorded_all_the_same(self, stall) -> None:
        assert values(await stall.tender(stall.proof(stall.pay(units=1)))) == [1]

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
            ("before the listing", (FAILED, "before_listing")),
            ("too large", (FAILED, "amount_too_large")),
        ],
    )
    async def test_refuses_what_is_no_payment(self, stall, case, expected) -> None:
        me, payee = stall.caller.address, stall.provider.address
        transactions: dict[str, Any] = {
            "recipient": lambda: stall.pay(to=stall.thief.address),
            "token": lambda: stall.mine(_of(stall.transfer(me), Address(b"\xdd" * 20))),
            "spoof": lambda: stall.mine(_of(stall.transfer(me), me), stall.transfer(me, to=me)),
            "returned": lambda: stall.mine(stall.transfer(me), stall.transfer(payee, to=me)),
            "authorised": lambda: stall.mine(stall.transfer(me), authorization_log(_token(stall), me)),
            "empty": lambda: stall.mine(),
            "old": lambda: stall.pay(age_s=DAY + 1),
            "before the listing": lambda: stall.pay(),
            "too large": lambda: stall.pay(units=2**63),
        }
        if case == "spoof":
            expected = (FAILED, "wrong_recipient")  # the one real transfer went to himself
        shelf = stall.shelf(stall.version(stall.now_s)) if case == "before the listing" else None
        assert await refusal(stall, stall.proof(transactions[case]()), shelf) == expected

    @pytest.mark.parametrize("has_code", [True, False])
    async def test_native_value_through_a_contract_has_a_reason_of_its_own(self, stall, has_code) -> None:
        contract = Address(b"\x0f" * 20)
        if has_code:
            stall.chain.deploy(MAIN, contract)
        tx_hash = stall.mine(recipient=contract, value=10**16)
        shelf = stall.shelf(stall.version(currency="ETH"))
        reason = "internal_transfer" if has_code else "wrong_recipient"
        assert await refusal(stall, stall.proof(tx_hash), shelf) == (FAILED, reason)


def _token(stall: Any) -> Address:
    token = stall.rules[MAIN].assets[0].token
    assert token is not None
    return token


def _of(log: Any, token: Address) -> Any:
    return type(log)(address=token, topics=log.topics, payload=log.payload, removed=False)


# ---- Thieves.


class TestThieves:
    @pytest.mark.parametrize("is_known", [False, True], ids=["first shown", "known"])
    async def test_a_stolen_hash_buys_nothing(self, stall, is_known) -> None:
        tx_hash = stall.pay()
        if is_known:
            await stall.tender(stall.proof(tx_hash))
        assert await refusal(stall, stall.proof(tx_hash, stall.thief)) == MISMATCH
        assert await refusal(stall, stall.bound(tx_hash, stall.thief)) == MISMATCH

    async def test_the_sender_of_anothers_tokens_is_no_payer(self, stall) -> None:
        tx_hash = stall.mine(stall.transfer(stall.caller.address), sender=stall.thief.address)
        assert await refusal(stall, stall.proof(tx_hash, stall.thief)) == MISMATCH
        assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]

    async def test_a_signature_over_another_hash_does_not_count(self, stall) -> None:
        first, second = stall.pay(), stall.pay()
        signature = stall.proof(first).signature
        assert await refusal(stall, stall.proof(second, signature=signature)) == MISMATCH

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
    async def test_a_bound_signature_is_for_one_request(self, stall, changed) -> None:
        tx_hash = stall.pay()
        proof = stall.bound(tx_hash)
        assert await refusal(stall, proof, **changed) == MISMATCH
        assert values(await stall.tender(proof)) == [10_000]
        assert await refusal(stall, proof, **changed) == MISMATCH

    async def test_a_bound_signature_is_for_one_listing_and_one_network(self, stall) -> None:
        tx_hash = stall.pay()
        assert await refusal(stall, stall.bound(tx_hash), stall.shelf(listing_id="api_2")) == MISMATCH
        assert await refusal(stall, stall.bound(tx_hash, chain_id=SECOND)) == MISMATCH

    async def test_two_payers_of_one_bundle_never_see_each_others_money(self, stall) -> None:
        other = stall.wallet("other")
        tx_hash = stall.mine(stall.transfer(stall.caller.address, 10), stall.transfer(other.address, 99))
        assert values(await stall.tender(stall.proof(tx_hash))) == [10]
        assert values(await stall.tender(stall.proof(tx_hash, other))) == [99]
        stall.chain.take_away(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash))) == [10]
        assert values(await stall.tender(stall.proof(tx_hash, other))) == [99]

    async def test_four_transfers_are_worth_four_calls_and_one_row(self, stall) -> None:
        tx_hash = stall.mine(*[stall.transfer(stall.caller.address)] * 4)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        assert tender.payment.rest_units == 40_000
        assert len(await stall.book.find_payments(tx_hash)) == 1

    async def test_showing_it_again_and_again_adds_nothing(self, stall) -> None:
        tx_hash = stall.pay()
        for till in (stall.till, stall.make_till(), stall.make_till()):
            stall.till = till
            (tender,) = await stall.tender(stall.proof(tx_hash))
        assert (tender.payment.id, tender.payment.value_units) == (1, 10_000)

    async def test_a_payment_to_one_provider_buys_nothing_of_another(self, stall) -> None:
        tx_hash = stall.pay()
        foreign = stall.shelf(stall.version(pay_to=stall.thief.address), listing_id="api_2")
        await stall.tender(stall.proof(tx_hash))
        assert await refusal(stall, stall.proof(tx_hash), foreign) == (FAILED, "wrong_recipient")

    async def test_play_money_never_buys_what_is_sold_for_real_money(self, stall) -> None:
        tx_hash = stall.pay(chain_id=TEST)
        assert values(await stall.tender(stall.proof(tx_hash), stall.shelf(stall.version(networks=(TEST,)))))
        gone_live = stall.shelf(
            stall.version(stall.now_s - 5), stall.version(0, stall.now_s - 5, networks=(TEST,))
        )
        assert await refusal(stall, stall.proof(tx_hash), gone_live) == NOT_MINED
        assert (await refusal(stall, stall.proof(tx_hash, chain_id=TEST), gone_live)) == (
            FAILED,
            "wrong_chain",
        )
        assert await refusal(stall, stall.proof(tx_hash), stall.shelf()) == NOT_MINED

    async def test_a_removed_payment_is_not_known_until_the_verdict_is_run_again(self, stall) -> None:
        tx_hash = stall.pay()
        (tender,) = await stall.tender(stall.proof(tx_hash))
        await stall.book.mark_gone(tender.payment.id, now_ms=stall.now_ms())
        stall.chain.reorg(MAIN, 2)
        assert await refusal(stall, stall.proof(tx_hash)) == NOT_MINED
        stall.pay(tx_hash=tx_hash, depth=1)
        assert (await refusal(stall, stall.proof(tx_hash)))[1] == "confirmations"
        stall.chain.bury(MAIN, 1)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        assert (tender.payment.state, tender.payment.value_units) == (PaymentState.UNFINAL, 10_000)

    async def test_a_node_that_names_a_displaced_block_is_not_believed(self, stall) -> None:
        tx_hash = stall.pay()
        stall.chain.lies[tx_hash] = lambda told: replace(told, canonical_hash=bytes(32))
        assert (await refusal(stall, stall.proof(tx_hash)))[0] is Code.PAYMENT_PENDING


# ---- Contract wallets.


class TestContractPayers:
    @pytest.mark.parametrize("form", ["plain", "raw", "bound"])
    async def test_a_contract_wallet_signs_by_its_owner(self, stall, form) -> None:
        wallet = stall.deploy_wallet(stall.caller)
        tx_hash = stall.mine(stall.transfer(wallet))
        proof = stall.bound(tx_hash) if form == "bound" else stall.proof(tx_hash, is_raw=form == "raw")
        (tender,) = await stall.tender(proof)
        assert tender.payment.payer == wallet
        assert await stall.tender(proof) == (tender,)

    async def test_a_contract_that_says_no_is_no_payer(self, stall) -> None:
        wallet = stall.deploy_wallet(stall.caller)
        tx_hash = stall.mine(stall.transfer(wallet))
        assert await refusal(stall, stall.proof(tx_hash, stall.thief)) == MISMATCH
        await stall.tender(stall.proof(tx_hash))
        assert await refusal(stall, stall.proof(tx_hash, stall.thief)) == MISMATCH
        assert await refusal(stall, stall.proof(tx_hash, signature=b"\x01" * 200)) == MISMATCH

    async def test_a_chain_that_cannot_ask_the_wallet_refuses_nobody(self, stall) -> None:
        wallet = stall.deploy_wallet(stall.caller)
        tx_hash = stall.mine(stall.transfer(wallet))
        await stall.tender(stall.proof(tx_hash))
        stall.chain.take_away(MAIN)
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(tx_hash))

    async def test_a_key_is_believed_while_the_chain_is_away_whoever_else_paid(self, stall) -> None:
        wallet = stall.deploy_wallet(stall.wallet("other"))
        tx_hash = stall.mine(stall.transfer(wallet, 7), stall.transfer(stall.caller.address, 10))
        assert values(await stall.tender(stall.proof(tx_hash, stall.wallet("other")))) == [7]
        assert values(await stall.tender(stall.proof(tx_hash))) == [10]
        stall.chain.take_away(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash))) == [10]

    async def test_a_key_on_one_network_needs_no_wallet_on_another(self, stall) -> None:
        wallet, tx_hash = stall.deploy_wallet(stall.wallet("other")), stall.hash()
        shelf = stall.shelf(stall.version(networks=(MAIN, SECOND)))
        stall.mine(stall.transfer(wallet, 7), tx_hash=tx_hash)
        stall.pay(units=10, tx_hash=tx_hash, chain_id=SECOND)
        assert values(await stall.tender(stall.proof(tx_hash, stall.wallet("other")), shelf)) == [7]
        assert values(await stall.tender(stall.proof(tx_hash), shelf)) == [10]
        stall.chain.take_away(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash), shelf)) == [10]

    @pytest.mark.parametrize(("place", "is_found"), [(3, True), (4, False)])
    async def test_at_most_four_payers_are_asked(self, stall, place, is_found) -> None:
        wallet = stall.deploy_wallet(stall.caller)
        payers = [Address(bytes([n]) * 20) for n in range(1, 9)]
        payers.insert(place, wallet)
        tx_hash = stall.mine(*(stall.transfer(payer) for payer in payers))
        outcome = await stall.tender(stall.proof(tx_hash))
        assert isinstance(outcome, tuple) is is_found
        assert stall.chain.asked["call_contract", MAIN] <= 8

    async def test_mints_take_no_place_among_the_four(self, stall) -> None:
        wallet = stall.deploy_wallet(stall.caller)
        payers = [Address(20), *(Address(bytes([n]) * 20) for n in range(1, 4)), wallet]
        tx_hash = stall.mine(*(stall.transfer(payer) for payer in payers))
        assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]

    async def test_junk_at_a_known_payment_is_charged_and_asked_once(self, stall) -> None:
        wallet = stall.deploy_wallet(stall.caller)
        tx_hash = stall.mine(stall.transfer(wallet))
        await stall.tender(stall.proof(tx_hash))
        stall.till = stall.make_till()  # nobody is trusted yet
        stall.chain.asked.clear()
        stall.meter.charged.clear()
        assert await refusal(stall, stall.proof(tx_hash, stall.thief)) == MISMATCH
        assert stall.chain.asked["call_contract", MAIN] == 2  # one for each spelling of the hash
        assert len(stall.meter.charged) == 1
        stall.meter.left = 0
        assert (await refusal(stall, stall.proof(tx_hash, stall.thief)))[0] is Code.RATE_LIMITED

    async def test_a_wallet_that_said_yes_is_not_charged_for_each_call(self, stall) -> None:
        tx_hash = stall.mine(stall.transfer(stall.deploy_wallet(stall.caller)))
        await stall.tender(stall.proof(tx_hash))
        stall.meter.left = 0
        for _ in range(3):
            assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]
        assert (await refusal(stall, stall.proof(tx_hash, stall.thief)))[0] in (
            Code.PAYER_MISMATCH,
            Code.RATE_LIMITED,
        )
        assert (await refusal(stall, stall.proof(tx_hash, stall.thief)))[0] is Code.RATE_LIMITED

    async def test_a_wallet_that_reverts_or_floods_says_no(self, stall) -> None:
        for number, answer in enumerate(
            (
                ContractAnswer(reverted=True, payload=bytes.fromhex("1626ba7e").ljust(32, b"\0")),
                ContractAnswer(reverted=False, payload=b"\x16\x26\xba\x7e"),
                ContractAnswer(reverted=False, payload=b"\xff" * 100_000),
            )
        ):
            address = Address(bytes([0x40 + number]) * 20)
            stall.chain.deploy(MAIN, address, lambda calldata, answer=answer: answer)
            assert await refusal(stall, stall.proof(stall.mine(stall.transfer(address)))) == MISMATCH


# ---- Networks.


class TestNetworks:
    @pytest.fixture
    def two(self, stall):
        return stall.shelf(stall.version(networks=(MAIN, SECOND)))

    async def test_a_match_decides_wherever_it_is(self, stall, two) -> None:
        tx_hash = stall.pay(chain_id=SECOND)
        (tender,) = await stall.tender(stall.proof(tx_hash), two)
        assert tender.payment.chain_id == SECOND
        assert len(stall.meter.charged) == 1

    async def test_a_match_decides_although_the_other_network_is_away(self, stall, two) -> None:
        tx_hash = stall.pay(chain_id=SECOND)
        stall.chain.take_away(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash), two)) == [10_000]

    async def test_a_match_does_not_wait_for_a_network_that_hangs(self, stall, two, make_stall) -> None:
        tx_hash = stall.pay(chain_id=SECOND)
        hanging = _Hanging(stall.chain, MAIN)
        stall.till._lookups._chains = hanging
        async with asyncio.timeout(5):
            assert values(await stall.tender(stall.proof(tx_hash), two)) == [10_000]
        assert hanging.cancelled == 1

    @pytest.mark.parametrize("elsewhere", ["nothing", "a refusal"])
    async def test_otherwise_every_network_has_to_answer(self, stall, two, elsewhere) -> None:
        tx_hash = stall.hash()
        if elsewhere == "a refusal":
            stall.pay(chain_id=SECOND, tx_hash=tx_hash, to=stall.thief.address)
        stall.chain.take_away(MAIN)
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(tx_hash), two)
        stall.chain.bring_back(MAIN)
        expected = NOT_MINED if elsewhere == "nothing" else (FAILED, "wrong_recipient")
        assert await refusal(stall, stall.proof(tx_hash), two) == expected

    async def test_what_may_still_pay_is_told_before_what_never_will(self, stall, two) -> None:
        tx_hash = stall.hash()
        stall.pay(tx_hash=tx_hash, to=stall.thief.address)
        transaction = Transaction(tx_hash=tx_hash, sender=stall.caller.address, recipient=None)
        stall.chain.pend(SECOND, transaction)
        assert await refusal(stall, stall.proof(tx_hash), two) == NOT_MINED
        stall.pay(tx_hash=tx_hash, chain_id=SECOND, depth=1)
        assert (await refusal(stall, stall.proof(tx_hash), two))[1] == "confirmations"

    async def test_a_named_network_is_the_only_one_asked(self, stall, two) -> None:
        tx_hash = stall.pay(chain_id=SECOND)
        assert await refusal(stall, stall.proof(tx_hash, chain_id=MAIN), two) == NOT_MINED
        assert stall.chain.asked == {("fetch_facts", MAIN): 1}
        assert values(await stall.tender(stall.proof(tx_hash, chain_id=SECOND), two)) == [10_000]
        assert await refusal(stall, stall.proof(tx_hash, chain_id=MAIN), two) == NOT_MINED

    async def test_a_network_of_no_terms_is_refused_without_asking(self, stall) -> None:
        tx_hash = stall.pay(chain_id=SECOND)
        proof = stall.proof(tx_hash, chain_id=SECOND)
        assert await refusal(stall, proof) == (FAILED, "wrong_chain")
        assert stall.chain.questions == 0
        assert stall.meter.charged == []

    async def test_a_known_payment_under_a_wrong_network_is_a_wrong_request_and_never_asks_for_money(
        self, stall, two
    ) -> None:
        tx_hash = stall.pay(to=stall.thief.address)
        stall.pay(tx_hash=tx_hash, chain_id=SECOND)
        assert values(await stall.tender(stall.proof(tx_hash, chain_id=SECOND), two)) == [10_000]
        for wrong in (MAIN, TEST):
            proof = stall.proof(tx_hash, chain_id=wrong)
            assert await refusal(stall, proof, two) == (Code.INVALID_REQUEST, "wrong_chain")

    async def test_a_network_that_is_not_configured_is_away_not_wrong(self, stall) -> None:
        shelf = stall.shelf(stall.version(networks=(ChainId(5),)))
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(stall.hash()), shelf)

    async def test_one_hash_on_two_networks_is_two_payments(self, stall, two) -> None:
        """A transaction without a chain id can be replayed by anybody; both times it pays."""
        tx_hash = stall.pay(units=10)
        stall.pay(units=99, tx_hash=tx_hash, chain_id=SECOND)
        assert values(await stall.tender(stall.proof(tx_hash, chain_id=MAIN), two)) == [10]
        assert values(await stall.tender(stall.proof(tx_hash, chain_id=SECOND), two)) == [99]


class _Hanging:
    """A reader whose one chain never answers."""

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
    async def test_fifty_callers_are_one_look_up_and_one_charge(self, stall) -> None:
        tx_hash = stall.pay()
        stall.meter.left = 1
        stall.chain.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stall.tender(stall.proof(tx_hash))) for _ in range(50)]
            await _until(lambda: stall.chain.questions > 0)
            stall.chain.gate.set()
        assert [values(task.result()) for task in tasks] == [[10_000]] * 50
        assert stall.chain.asked == {("fetch_facts", MAIN): 1}
        assert len(await stall.book.find_payments(tx_hash)) == 1

    async def test_a_first_caller_who_leaves_does_not_spoil_it_for_the_others(self, stall) -> None:
        tx_hash = stall.pay()
        stall.chain.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(stall.tender(stall.proof(tx_hash)))
            await _until(lambda: stall.chain.questions == 1)
            others = [group.create_task(stall.tender(stall.proof(tx_hash))) for _ in range(5)]
            await _turns()
            first.cancel()
            await _until(lambda: stall.chain.questions == 2)
            stall.chain.gate.set()
        assert first.cancelled()
        assert [values(task.result()) for task in others] == [[10_000]] * 5
        assert stall.chain.questions == 2

    async def test_a_waiting_caller_who_leaves_disturbs_nobody(self, stall) -> None:
        tx_hash = stall.pay()
        stall.chain.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(stall.tender(stall.proof(tx_hash)))
            await _until(lambda: stall.chain.questions == 1)
            second = group.create_task(stall.tender(stall.proof(tx_hash)))
            await _turns()
            second.cancel()
            await _turns()
            stall.chain.gate.set()
        assert second.cancelled()
        assert values(first.result()) == [10_000]
        assert stall.chain.questions == 1

    async def test_an_outage_is_told_to_all_who_waited_and_forgotten(self, stall) -> None:
        tx_hash = stall.pay()
        stall.chain.take_away(MAIN)
        stall.chain.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_raised(stall.tender(stall.proof(tx_hash)))) for _ in range(5)]
            await _until(lambda: stall.chain.questions > 0)
            stall.chain.gate.set()
        assert [type(task.result()) for task in tasks] == [ChainUnavailable] * 5
        stall.chain.bring_back(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]

    async def test_a_thief_in_the_crowd_gets_his_own_answer(self, stall) -> None:
        tx_hash = stall.pay()
        stall.chain.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            honest = group.create_task(stall.tender(stall.proof(tx_hash)))
            thief = group.create_task(stall.tender(stall.proof(tx_hash, stall.thief)))
            await _until(lambda: stall.chain.questions > 0)
            stall.chain.gate.set()
        assert values(honest.result()) == [10_000]
        assert thief.result().code is Code.PAYER_MISMATCH

    @pytest.mark.parametrize("networks", [(MAIN,), (MAIN, SECOND)], ids=["one network", "two"])
    async def test_books_that_are_away_are_named_plainly(self, stall, networks, monkeypatch) -> None:
        shelf = stall.shelf(stall.version(networks=networks))
        tx_hash = stall.pay()
        stall.chain.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_raised(stall.tender(stall.proof(tx_hash), shelf)))
            await _until(lambda: stall.chain.questions > 0)
            stall.book.away = True
            stall.chain.gate.set()
        assert type(task.result()) is StorageUnavailable
        assert type(await _raised(stall.tender(stall.proof(tx_hash), shelf))) is StorageUnavailable

    @pytest.mark.parametrize("networks", [(MAIN,), (MAIN, SECOND)], ids=["one network", "two"])
    async def test_a_fault_of_our_own_never_comes_as_a_group(self, stall, networks) -> None:
        def lie(facts: Any) -> Any:
            raise ZeroDivisionError

        tx_hash = stall.pay()
        stall.chain.lies[tx_hash] = lie
        shelf = stall.shelf(stall.version(networks=networks))
        assert type(await _raised(stall.tender(stall.proof(tx_hash), shelf))) is ZeroDivisionError


async def _raised(work: Any) -> BaseException | None:
    try:
        await work
    except Exception as exc:
        return exc
    return None


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


# ---- The meter.


class TestMeter:
    async def test_only_a_chain_really_asked_is_charged(self, stall) -> None:
        tx_hash = stall.pay()
        await stall.tender(stall.proof(tx_hash))
        assert stall.meter.charged == [("192.0.2.7", str(stall.caller.address))]
        for _ in range(3):
            await stall.tender(stall.proof(tx_hash))
        assert len(stall.meter.charged) == 1

    async def test_a_look_up_that_found_a_valid_payment_is_given_back(self, stall) -> None:
        await stall.tender(stall.proof(stall.pay()))
        assert stall.meter.given_back == stall.meter.charged == [("192.0.2.7", str(stall.caller.address))]

    async def test_a_look_up_that_found_none_counts(self, stall) -> None:
        for tx_hash in (
            stall.hash(),
            stall.mine(stall.transfer(stall.caller.address, to=stall.thief.address)),
        ):
            assert not isinstance(await stall.tender(stall.proof(tx_hash)), tuple)
        await stall.tender(stall.proof(stall.pay(), stall.thief))
        assert (len(stall.meter.charged), stall.meter.given_back, stall.meter.unresolved) == (3, [], [])

    async def test_a_look_up_without_an_answer_counts_as_unresolved(self, stall) -> None:
        tx_hash = stall.pay()
        stall.chain.take_away(*stall.chain.chain_ids)
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(tx_hash))
        assert stall.meter.unresolved == stall.meter.charged != []
        assert stall.meter.given_back == []

    async def test_forty_customers_behind_one_address_pay_and_junk_has_its_limit(self, stall) -> None:
        stall.meter = Meters(limits=DEFAULT_LIMITS, rates=Rates())
        stall.till = stall.make_till()
        for number in range(40):
            customer = stall.wallet(f"customer {number}")
            tx_hash = stall.mine(stall.transfer(customer.address))
            assert values(await stall.tender(stall.proof(tx_hash, customer))) == [10_000]
        told = [
            await refusal(stall, stall.proof(stall.hash(), stall.wallet(f"junk {number}")))
            for number in range(31)
        ]
        assert [code for code, _ in told].count(Code.RATE_LIMITED) == 1

    async def test_a_contract_wallet_that_buys_nothing_is_asked_so_often_and_no_more(self, stall) -> None:
        stall.meter = Meters(limits=DEFAULT_LIMITS, rates=Rates())
        stall.till = stall.make_till()
        wallet = stall.deploy_wallet(stall.caller)
        proof = stall.proof(stall.mine(stall.transfer(wallet)))
        told = [await stall.tender(proof) for _ in range(500)]
        assert stall.chain.asked["call_contract", MAIN] == 300 + DEFAULT_LIMITS.lookups_per_minute
        assert (told[-1].code, told[-1].payment_state) == (Code.RATE_LIMITED, "none")
        payment = told[0][0].payment
        stall.till.note_spent(payment)
        assert [isinstance(await stall.tender(proof), tuple) for _ in range(3)] == [True, False, False]

    async def test_a_contract_wallet_that_buys_is_never_limited(self, stall) -> None:
        stall.meter = Meters(limits=DEFAULT_LIMITS, rates=Rates())
        stall.till = stall.make_till()
        wallet = stall.deploy_wallet(stall.caller)
        proof = stall.proof(stall.mine(stall.transfer(wallet)))
        for _ in range(10):
            found = [await stall.tender(proof) for _ in range(200)]  # at once
            for (tender,) in found:
                stall.till.note_spent(tender.payment)

    async def test_over_the_limit_nothing_is_asked_and_known_money_still_works(self, stall) -> None:
        known, unknown = stall.pay(), stall.pay()
        await stall.tender(stall.proof(known))
        stall.meter.left = 0
        stall.chain.asked.clear()
        outcome = await stall.tender(stall.proof(unknown))
        assert (outcome.code, outcome.retry_after_s, outcome.payment_state) == (Code.RATE_LIMITED, 17, "none")
        assert stall.chain.questions == 0
        assert values(await stall.tender(stall.proof(known))) == [10_000]

    async def test_over_the_limit_two_networks_are_one_refusal(self, stall) -> None:
        stall.meter.left = 0
        shelf = stall.shelf(stall.version(networks=(MAIN, SECOND)))
        assert (await refusal(stall, stall.proof(stall.pay()), shelf))[0] is Code.RATE_LIMITED
        assert stall.chain.questions == 0

    async def test_the_bound_form_is_charged_to_its_signer_and_junk_to_its_transaction(self, stall) -> None:
        tx_hash = stall.pay()
        await stall.tender(stall.bound(tx_hash, stall.thief))
        await stall.tender(stall.proof(tx_hash, signature=b"\x01" * 70))
        assert [signer for _, signer in stall.meter.charged] == [
            str(stall.thief.address),
            f"transaction {tx_hash} from 192.0.2.7",
        ]


# ---- Edits between quote and call, and payments of long ago.


class TestEdits:
    async def test_a_payee_that_was_replaced_still_counts(self, stall) -> None:
        new = stall.version(stall.now_s - 50, pay_to=stall.thief.address)
        shelf = stall.shelf(new, stall.version(0, stall.now_s - 50))
        assert values(await stall.tender(stall.proof(stall.pay()), shelf)) == [10_000]

    async def test_a_network_and_a_currency_that_were_removed_still_count(self, stall) -> None:
        new = stall.version(stall.now_s - 50, networks=(SECOND,), currency="ETH")
        shelf = stall.shelf(new, stall.version(0, stall.now_s - 50))
        assert values(await stall.tender(stall.proof(stall.pay()), shelf)) == [10_000]

    async def test_recorded_credit_outlives_every_edit(self, stall) -> None:
        tx_hash = stall.pay()
        await stall.tender(stall.proof(tx_hash))
        stall.now_s += 300 * DAY
        since_s = stall.now_s - 200 * DAY
        shelf = stall.shelf(stall.version(since_s, pay_to=stall.thief.address, networks=(SECOND,)))
        stall.older = [stall.version(0, since_s)]
        stall.chain.take_away(MAIN, SECOND)
        assert values(await stall.tender(stall.proof(tx_hash), shelf)) == [10_000]

    async def test_credit_buys_calls_of_a_listing_that_was_published_later(self, stall) -> None:
        tx_hash = stall.pay()
        await stall.tender(stall.proof(tx_hash))
        later = stall.shelf(stall.version(stall.now_s), listing_id="api_2")
        assert values(await stall.tender(stall.proof(tx_hash), later)) == [10_000]

    async def test_the_shelf_is_enough_for_whatever_is_young(self, stall) -> None:
        await stall.tender(stall.proof(stall.pay(age_s=DAY)))
        await stall.tender(stall.proof(stall.pay(to=stall.thief.address)))
        assert stall.older_asked == 0

    async def test_an_admitted_payment_is_judged_by_the_terms_of_its_time(self, stall) -> None:
        tx_hash = stall.pay(age_s=30 * DAY)
        since_s = stall.now_s - 20 * DAY
        shelf = stall.shelf(stall.version(since_s, pay_to=stall.thief.address))
        stall.older = [stall.version(0, since_s)]
        assert (await refusal(stall, stall.proof(tx_hash), shelf))[0] is Code.PAYMENT_TOO_OLD
        await stall.book.admit(tx_hash, now_ms=stall.now_ms())
        assert values(await stall.tender(stall.proof(tx_hash), shelf)) == [10_000]

    async def test_the_clock_of_its_age_stands_still_while_nobody_was_ready(self, stall) -> None:
        tx_hash = stall.pay(age_s=10)
        await stall.book.note_ready(now_ms=stall.now_ms())
        stall.now_s += 5 * DAY
        await stall.book.note_ready(now_ms=stall.now_ms())
        assert values(await stall.tender(stall.proof(tx_hash))) == [10_000]
        other = stall.pay(age_s=6 * DAY + 1)
        assert (await refusal(stall, stall.proof(other)))[0] is Code.PAYMENT_TOO_OLD

    async def test_after_a_restore_older_payments_are_held_until_admitted(self, stall) -> None:
        old, new = stall.pay(age_s=100), stall.pay(age_s=-10)
        await stall.book.note_restored(now_ms=stall.now_ms())
        assert (await refusal(stall, stall.proof(old)))[0] is Code.PAYMENT_HELD
        assert values(await stall.tender(stall.proof(new))) == [10_000]
        await stall.book.admit(old, now_ms=stall.now_ms())
        assert values(await stall.tender(stall.proof(old))) == [10_000]

    async def test_a_restore_that_is_found_out_while_the_chain_is_asked_counts(self, stall) -> None:
        """The transaction may have been spent in what the books have forgotten."""
        tx_hash = stall.pay(age_s=100)
        stall.chain.gate = asyncio.Event()
        shown = asyncio.get_running_loop().create_task(stall.tender(stall.proof(tx_hash)))
        await _until(lambda: stall.chain.questions > 0)
        await stall.book.note_restored(now_ms=stall.now_ms())
        stall.chain.gate.set()
        with pytest.raises(StorageUnavailable):
            await shown
        assert await stall.book.find_payments(tx_hash) == ()
        assert (await refusal(stall, stall.proof(tx_hash)))[0] is Code.PAYMENT_HELD

    async def test_the_books_are_asked_once_before_a_chain_is(self, stall) -> None:
        asked: list[str] = []
        behind = stall.till._book

        class Counting:
            def __getattr__(self, name: str) -> object:
                asked.append(name)
                return getattr(behind, name)

        stall.till._book = Counting()
        await stall.tender(stall.proof(stall.pay()))
        assert asked == ["find_recorded", "record_payments"]


# ---- The first call, and what the till remembers.


class TestMemory:
    async def test_a_payment_is_at_its_first_call_until_it_has_bought_one(self, stall) -> None:
        tx_hash = stall.pay(units=5)
        for _ in range(3):  # calls that were never delivered change nothing
            (tender,) = await stall.tender(stall.proof(tx_hash))
            assert tender.is_first
            stall.till.note_spent(tender.payment)
        await spend(stall, tender.payment)
        for _ in range(3):
            (tender,) = await stall.tender(stall.proof(tx_hash))
            assert not tender.is_first
            stall.till.note_spent(tender.payment)

    async def test_what_is_remembered_asks_neither_books_nor_chain(self, stall) -> None:
        tx_hash = stall.pay(units=5)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        await spend(stall, tender.payment)
        await stall.tender(stall.proof(tx_hash))
        stall.book.away = True
        stall.chain.take_away(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash))) == [5]

    @pytest.mark.parametrize("how", ["forget", "forget_payer"])
    async def test_what_is_forgotten_is_read_again(self, stall, how) -> None:
        tx_hash = stall.pay(units=5)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        await spend(stall, tender.payment)
        await stall.tender(stall.proof(tx_hash))
        await spend(stall, tender.payment)  # elsewhere
        (remembered,) = await stall.tender(stall.proof(tx_hash))
        if how == "forget":
            stall.till.forget(tx_hash)
        else:
            stall.till.forget_payer(tender.payment.payer)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        assert (remembered.payment.taken_units, tender.payment.taken_units) == (1, 2)

    async def test_a_remembered_payment_is_nobody_elses(self, stall) -> None:
        tx_hash = stall.pay(units=5)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        await spend(stall, tender.payment)
        await stall.tender(stall.proof(tx_hash))
        assert await refusal(stall, stall.proof(tx_hash, stall.thief)) == MISMATCH
        foreign = stall.shelf(stall.version(pay_to=stall.thief.address), listing_id="api_2")
        assert await refusal(stall, stall.proof(tx_hash), foreign) == (FAILED, "wrong_recipient")

    async def test_a_payment_that_fell_is_the_books_to_refuse(self, stall) -> None:
        """A price that is still on the shelf and a payee that still counts: the tender stands, the claim decides."""
        tx_hash = stall.pay(units=5)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        await spend(stall, tender.payment, 5)
        (tender,) = await stall.tender(
            stall.proof(tx_hash), stall.shelf(stall.version(price=Price.parse("9")))
        )
        assert tender.payment.rest_units == 0


# ---- One node's word, and that of several.

SMALL = 10_000_000  # 10 USDC: the most for which one node is enough


class TestAgreementByValue:
    @pytest.fixture
    def stall(self, stall: Any) -> Any:
        stall.rules = {
            chain_id: replace(rules, agreement_above=(("USDC", 10 * 10**9),))
            for chain_id, rules in stall.rules.items()
        }
        stall.till = stall.make_till()
        return stall

    async def test_a_small_payment_is_taken_on_one_nodes_word(self, stall) -> None:
        stall.chain.leave_one(MAIN)
        assert values(await stall.tender(stall.proof(stall.pay(units=SMALL)))) == [SMALL]
        assert stall.chain.trusts == [Trust.ONE]

    async def test_a_large_one_is_looked_at_again_and_only_then(self, stall) -> None:
        assert values(await stall.tender(stall.proof(stall.pay(units=SMALL + 1)))) == [SMALL + 1]
        assert stall.chain.trusts == [Trust.ONE, Trust.AGREED]
        assert len(stall.meter.charged) == 1

    async def test_a_large_one_that_nobody_confirms_is_not_refused_either(self, stall) -> None:
        stall.chain.leave_one(MAIN)
        tx_hash = stall.pay(units=SMALL + 1)
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(tx_hash))
        assert await stall.book.find_payments(tx_hash) == ()

    @pytest.mark.parametrize(
        ("units", "state"), [(SMALL, PaymentState.UNFINAL), (SMALL + 1, PaymentState.FINAL)]
    )
    async def test_one_nodes_word_makes_nothing_final(self, stall, units: int, state: PaymentState) -> None:
        """Final is never looked at again: a lie would stand for ever."""
        tx_hash = stall.pay(units=units)
        stall.chain.bury(MAIN, 30)
        (tender,) = await stall.tender(stall.proof(tx_hash))
        assert tender.payment.state is state

    async def test_small_transfers_of_one_transaction_count_together(self, stall) -> None:
        second = Address(b"\x77" * 20)
        shelf = stall.shelf(stall.version(), stall.version(pay_to=second, until_s=stall.now_s))
        transfers = (
            stall.transfer(stall.caller.address, SMALL),
            stall.transfer(stall.caller.address, SMALL, second),
        )
        tx_hash = stall.mine(*transfers)
        stall.chain.leave_one(MAIN)
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(tx_hash), shelf)

    @pytest.mark.parametrize(
        "lie",
        [
            pytest.param(lambda facts: replace(facts, succeeded=False), id="it failed"),
            pytest.param(lambda facts: replace(facts, logs=()), id="it moved nothing"),
            pytest.param(lambda facts: replace(facts, block_time=0), id="it is old"),
        ],
    )
    async def test_one_node_alone_refuses_nothing(self, stall, lie) -> None:
        tx_hash = stall.pay(units=SMALL + 1)
        stall.chain.rumours[tx_hash] = lie
        stall.chain.leave_one(MAIN)
        with pytest.raises(ChainUnavailable):
            await stall.tender(stall.proof(tx_hash))
        stall.chain.bring_back(MAIN)
        assert values(await stall.tender(stall.proof(tx_hash))) == [SMALL + 1]

    async def test_what_one_node_makes_of_a_large_one_is_not_recorded(self, stall) -> None:
        """It tells of less, or of more, than the others: theirs counts."""
        tx_hash = stall.pay(units=SMALL + 1)
        stall.chain.rumours[tx_hash] = lambda facts: replace(facts, logs=facts.logs * 2)
        assert values(await stall.tender(stall.proof(tx_hash))) == [SMALL + 1]


async def test_without_a_value_nodes_agree_on_all(stall) -> None:
    await stall.tender(stall.proof(stall.pay()))
    assert stall.chain.trusts == [Trust.AGREED]
