"""The claims of channels on their chain: what is due, what one claim contains, what is left out, and how a claim ends."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from eth_account import Account

from tests.kit.channel_payer import ChannelPayer
from tests.kit.ledger_channels import facts_of, sample_channel
from tests.kit.payer import USDC, KeyWallet
from tests.kit.settlement import SettlementHarness, make_gas_key, record_metrics_into
from tests.model.rows import MemoryRows, store_attempt, take_nonce
from tollway.chain import channel_contract as contract
from tollway.chain.channel_contract import SETTLEMENT_CONTRACT
from tollway.chain.port import ContractResult
from tollway.ids import Address, CallId, ChainId, keccak256
from tollway.ledger.channels import (
    Channel,
    ChannelFacts,
    ChannelState,
    ClaimableChannel,
    OpenClaim,
    Receiver,
    UnsettledReceiver,
    Voucher,
)
from tollway.ledger.ledger import NonceUnavailable
from tollway.ledger.records import SettlementAttempt
from tollway.payments.channel_claims import OLD_AFTER_MS, REFUSED_MS, ROWS_MAX, ChannelClaims
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.gas import ChannelOutcome, ChannelStep
from tollway.payments.transactions import read_fees, sign_filler

CHAIN = USDC.chain_id
assert USDC.token is not None
TOKEN = USDC.token
FIRST, SECOND = Address(b"\xbb" * 20), Address(b"\xcc" * 20)
OTHER_KEY = Account.from_key(keccak256(b"an older authorizer"))
DEPOSIT = 1_000_000


def make_payer(n: int, receiver: Address = FIRST, **given: Any) -> ChannelPayer:
    return ChannelPayer(salt=bytes([n]) * 32, receiver=receiver, valid_before=2**40, **given)


@dataclass
class ClaimRows:
    """The channels and claims of a ledger. `owed`: what the ended calls of a channel owe, by its key."""

    attempts: MemoryRows
    channels: dict[int, Channel] = field(default_factory=dict)
    payers: dict[int, ChannelPayer] = field(default_factory=dict)
    owed: dict[int, int] = field(default_factory=dict)
    claims: dict[CallId, OpenClaim] = field(default_factory=dict)
    ended: list[OpenClaim] = field(default_factory=list)
    refused: dict[Receiver, int] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    is_taken: bool = False
    since_ms: int = 0

    async def list_claimable(
        self, chain_id: ChainId, *, unclaimed_max: int, limit: int
    ) -> tuple[ClaimableChannel, ...]:
        claimed = {row.channel_key for claim in self.claims.values() for row in claim.rows}
        return tuple(
            ClaimableChannel(
                channel=channel,
                voucher=Voucher(
                    ceiling=self.owed[key] + 7, signature=self.payers[key].sign_voucher(self.owed[key] + 7)
                ),
                total=self.owed[key],
                since_ms=self.since_ms,
                payer_owes_nano=1_000
                * sum(
                    self.owed[other] - one.facts.total_claimed
                    for other, one in self.channels.items()
                    if one.config.payer == channel.config.payer
                ),
            )
            for key, channel in self.channels.items()
            if self.owed[key] > channel.facts.total_claimed and key not in claimed
        )

    async def add_claim(self, claim: OpenClaim, attempt: SettlementAttempt) -> bool | NonceUnavailable:
        if self.is_taken:
            return False
        refused = take_nonce(self.attempts, attempt)
        if refused is None:
            self.claims[claim.id] = claim
        return refused or True

    async def mark_refused(self, receiver: Receiver, *, now_ms: int) -> None:
        self.refused.setdefault(receiver, now_ms)

    async def clear_refused(self, receiver: Receiver) -> None:
        self.refused.pop(receiver, None)

    async def list_refused(self) -> dict[Receiver, int]:
        return dict(self.refused)

    async def list_unsettled(self, chain_id: ChainId) -> tuple[UnsettledReceiver, ...]:
        found: dict[tuple[Address, Address], dict[int, int]] = {}
        for key, channel in self.channels.items():
            if channel.facts.total_claimed > self.settled.get(key, 0):
                pair = (channel.config.receiver, channel.config.token)
                found.setdefault(pair, {})[key] = channel.facts.total_claimed
        return tuple(
            UnsettledReceiver(
                receiver=receiver,
                token=token,
                totals=totals,
                claimed_units=sum(
                    one.facts.total_claimed
                    for one in self.channels.values()
                    if (one.config.receiver, one.config.token) == (receiver, token)
                ),
            )
            for (receiver, token), totals in found.items()
        )

    async def mark_settled(self, totals: Mapping[int, int]) -> None:
        self.settled |= totals

    async def list_open_claims(self, chain_id: ChainId) -> tuple[OpenClaim, ...]:
        return tuple(self.claims.values())

    async def close_claim(self, claim_id: CallId, *, now_ms: int) -> None:
        self.ended.append(self.claims.pop(claim_id))

    async def find_channel_by_key(self, key: int) -> Channel | None:
        return self.channels.get(key)

    async def renew_channel(self, key: int, facts: ChannelFacts, *, now_ms: int) -> Channel:
        state = ChannelState.WITHDRAWING if facts.withdrawal_since_s else ChannelState.OPEN
        self.channels[key] = replace(self.channels[key], facts=facts, state=state)
        return self.channels[key]


class Harness:
    """A gateway with channels on a chain in memory. A gas price of one gwei and a coin of 1,000 dollars: a claim costs 0.105 dollars."""

    def __init__(self, settlement: SettlementHarness) -> None:
        self.settlement = settlement
        self.chain = settlement.chain
        self.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=0)
        self.rows = ClaimRows(attempts=settlement.ledger.rows, since_ms=settlement.now_ms)
        ledger: Any = self.rows
        gas_ledger: Any = settlement.gas
        signer = KeyWallet.named("an authorizer")
        assert str(signer.address) == ChannelPayer().authorizer.address
        rules = ChannelRules(chain_id=CHAIN, withdraw_delay=900, native_price_nano=1_000 * 10**9)
        shared: dict[str, Any] = {"limits": settlement.limits, "now_ms": settlement.read_clock}
        self.networks = ChannelNetworks(
            self.chain,
            {CHAIN: rules},
            chain_rules=settlement.rules,
            gas_budget=settlement.gas_budget,
            read_look_ms=self._read_look_ms,
            list_refused=self.rows.list_refused,
            **shared,
        )
        self.claims = ChannelClaims(
            ledger=ledger,
            gas_ledger=gas_ledger,
            chains=self.chain,
            networks=self.networks,
            rules=settlement.rules,
            gas_budget=settlement.gas_budget,
            entropy=lambda size: len(self.rows.ended).to_bytes(size, "big"),
            metrics=record_metrics_into(settlement.metrics),
            **shared,
        )
        self.claims.set_signers([signer, KeyWallet.named("an older authorizer")])

    async def _read_look_ms(self, chain_id: ChainId) -> int | None:
        return None

    async def open(self) -> None:
        await self.settlement.gas_budget.refresh()
        await self.networks.refresh()

    def add(self, payer: ChannelPayer, owed: int, *, deposit: int = DEPOSIT) -> int:
        """A channel with a deposit, whose ended calls owe that much. Returns its key."""
        key = len(self.rows.channels) + 1
        self.chain.fund(CHAIN, TOKEN, payer.address, 10**9)
        self.chain.call_channels(CHAIN, payer.encode_deposit(deposit))
        self.rows.payers[key], self.rows.owed[key] = payer, owed
        self.rows.channels[key] = sample_channel(
            payer, key, facts_of(deposit, block_number=0), taken_units=owed, announced=owed + 7
        )
        return key

    async def claimed(self, payer: ChannelPayer) -> int:
        return (await self.chain.fetch_channel(CHAIN, payer.channel_id)).state.total_claimed

    def paid(self, receiver: Address) -> int:
        return self.chain.balance(CHAIN, TOKEN, receiver)

    def steps(self) -> Counter[tuple[object, object]]:
        """The steps on channels that were counted, with their outcomes."""
        return Counter((note[2], note[3]) for note in self.settlement.metrics if note[0] == "channel")

    @property
    def sent_count(self) -> int:
        return len(set(self.chain.broadcasts))


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with SettlementHarness() as settlement:
        harness = Harness(settlement)
        await harness.open()
        yield harness


DUE = 1_050_000  # ten times 105,000 gas


# ---- What is due.


@pytest.mark.parametrize(
    ("owed", "age_ms", "is_claimed"),
    [
        pytest.param(DUE, 0, True, id="ten times its cost"),
        pytest.param(DUE - 1, 0, False, id="less"),
        pytest.param(105_000, OLD_AFTER_MS, True, id="a day old, its cost"),
        pytest.param(105_000, OLD_AFTER_MS - 1, False, id="not a day old"),
        pytest.param(104_999, OLD_AFTER_MS, False, id="a day old, dust"),
    ],
)
async def test_a_channel_is_claimed_when_it_pays_for_its_claim(
    harness: Harness, owed: int, age_ms: int, is_claimed: bool
) -> None:
    payer = make_payer(1)
    harness.add(payer, owed, deposit=2_000_000)
    harness.rows.since_ms = harness.settlement.now_ms - age_ms
    await harness.claims.run_once()
    assert await harness.claimed(payer) == (owed if is_claimed else 0)
    assert harness.paid(FIRST) == (owed if is_claimed else 0)


@pytest.mark.parametrize(("owed", "is_claimed"), [(105_001, True), (105_000, False)])
async def test_a_withdrawal_in_sight_makes_a_claim_urgent(
    harness: Harness, owed: int, is_claimed: bool
) -> None:
    payer = make_payer(1)
    key = harness.add(payer, owed)
    harness.rows.channels[key] = replace(harness.rows.channels[key], state=ChannelState.WITHDRAWING)
    await harness.claims.run_once()
    assert (await harness.claimed(payer) == owed) is is_claimed


@pytest.mark.parametrize(
    ("shares", "is_claimed"),
    [
        pytest.param([900_000, 900_000, 700_000], [True] * 3, id="half of the maximum"),
        pytest.param([900_000, 900_000, 699_999], [False] * 3, id="less"),
        pytest.param([900_000, 900_000, 800_000, 104_999], [True, True, True, False], id="dust waits"),
    ],
)
async def test_channels_of_a_payer_who_owes_half_of_the_maximum_are_claimed(
    harness: Harness, shares: list[int], is_claimed: list[bool]
) -> None:
    payers = [make_payer(n) for n in range(1, len(shares) + 1)]
    for payer, owed in zip(payers, shares, strict=True):
        harness.add(payer, owed)
    await harness.claims.run_once()
    assert [await harness.claimed(payer) > 0 for payer in payers] == is_claimed


# ---- What one claim contains.


async def test_one_transaction_claims_and_settles_many_channels_of_many_receivers(harness: Harness) -> None:
    payers = [make_payer(1), make_payer(2), make_payer(3, SECOND)]
    for payer in payers:
        harness.add(payer, DUE, deposit=2_000_000)
    await harness.claims.run_once()
    assert harness.sent_count == 1
    assert [await harness.claimed(payer) for payer in payers] == [DUE] * 3
    assert (harness.paid(FIRST), harness.paid(SECOND)) == (2 * DUE, DUE)


async def test_a_claim_shows_what_calls_owe_and_not_the_ceiling(harness: Harness) -> None:
    key = harness.add(make_payer(1), DUE, deposit=2_000_000)
    await harness.claims.run_once()
    (claim,) = harness.rows.claims.values()
    assert [(row.channel_key, row.total, row.voucher.ceiling) for row in claim.rows] == [(key, DUE, DUE + 7)]


async def test_the_channels_of_each_key_are_claimed_apart(harness: Harness) -> None:
    payers = [make_payer(1), make_payer(2, authorizer=OTHER_KEY)]
    for payer in payers:
        harness.add(payer, DUE, deposit=2_000_000)
    await harness.claims.run_once()
    assert harness.sent_count == 2
    assert [await harness.claimed(payer) for payer in payers] == [DUE] * 2


async def test_a_claim_has_at_most_so_many_rows_and_the_dearest_come_first(harness: Harness) -> None:
    keys = [harness.add(make_payer(n), DUE + n, deposit=2_000_000) for n in range(ROWS_MAX + 1)]
    await harness.claims.run_once()
    (claim,) = harness.rows.claims.values()
    assert {row.channel_key for row in claim.rows} == set(keys[1:])


# ---- What is left out.


async def test_a_channel_whose_claim_fails_holds_up_no_other_one(harness: Harness) -> None:
    """A withdrawal has won: the balance does not cover what is owed any more."""
    good, bad = make_payer(1), make_payer(2)
    harness.add(good, DUE, deposit=2_000_000)
    bad_key = harness.add(bad, DUE, deposit=DUE - 1)
    await harness.claims.run_once()
    assert (await harness.claimed(good), await harness.claimed(bad)) == (DUE, 0)
    assert harness.paid(FIRST) == DUE
    assert harness.rows.channels[bad_key].facts.balance == DUE - 1  # read again
    assert harness.steps() == {(ChannelStep.CLAIM, ChannelOutcome.REFUSED): 1}


async def test_many_channels_whose_claims_fail_take_no_place_of_others(harness: Harness) -> None:
    for number in range(ROWS_MAX):
        harness.add(make_payer(2 + number), 2 * DUE, deposit=2 * DUE - 1)
    good = make_payer(1)
    harness.add(good, DUE, deposit=2_000_000)
    await harness.claims.run_once()
    assert (await harness.claimed(good), harness.paid(FIRST), harness.sent_count) == (DUE, DUE, 1)


async def test_a_receiver_to_whom_the_token_pays_nothing_is_settled_alone_by_a_later_round(
    harness: Harness,
) -> None:
    first, second = make_payer(1), make_payer(2, SECOND)
    for payer in (first, second):
        harness.add(payer, DUE, deposit=4_000_000)
    harness.chain.block_owner(CHAIN, TOKEN, SECOND)
    await harness.claims.run_once()
    assert harness.sent_count == 1
    assert (await harness.claimed(first), await harness.claimed(second)) == (DUE, DUE)
    assert (harness.paid(FIRST), harness.paid(SECOND)) == (DUE, 0)
    refused = Receiver(CHAIN, SECOND, TOKEN)
    assert set(harness.rows.refused) == {refused}
    for _ in range(2):  # the token pays it nothing yet
        await harness.claims.run_once()
    await harness.networks.refresh()
    assert (harness.sent_count, harness.networks.is_paid_out(*refused)) == (1, False)
    assert harness.networks.is_paid_out(CHAIN, FIRST, TOKEN)
    done = ChannelOutcome.DONE
    assert harness.steps() == {
        (ChannelStep.SETTLE, ChannelOutcome.REFUSED): 1,
        (ChannelStep.CLAIM, done): 1,
        (ChannelStep.SETTLE, done): 1,
    }
    harness.chain.unblock_owner(CHAIN, TOKEN, SECOND)
    for _ in range(3):
        await harness.claims.run_once()
    await harness.networks.refresh()
    assert (harness.paid(FIRST), harness.paid(SECOND)) == (DUE, DUE)
    assert (harness.sent_count, harness.rows.claims, harness.rows.refused) == (2, {}, {})
    assert harness.networks.is_paid_out(*refused)


async def test_a_settle_that_is_not_mined_is_sent_once(harness: Harness) -> None:
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()
    harness.chain.unblock_owner(CHAIN, TOKEN, FIRST)
    harness.chain.is_automining = False
    for _ in range(3):
        await harness.claims.run_once()
    assert (harness.sent_count, len(harness.rows.claims)) == (2, 1)
    harness.chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    assert (harness.paid(FIRST), harness.rows.claims, harness.rows.refused) == (DUE, {}, {})


async def test_a_receiver_whom_a_stranger_has_settled_needs_no_settle(harness: Harness) -> None:
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()
    harness.chain.unblock_owner(CHAIN, TOKEN, FIRST)
    harness.chain.call_channels(CHAIN, contract.encode_settle(receiver=FIRST, token=TOKEN))
    await harness.claims.run_once()
    assert (harness.sent_count, harness.rows.refused) == (1, {})


async def test_a_receiver_stays_refused_until_the_contract_has_paid_it(harness: Harness) -> None:
    """A settle of nothing succeeds, so it proves nothing while the claim is not mined."""
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    harness.chain.is_automining = False
    for is_mined in (False, False, True, True):
        if is_mined:
            harness.chain.mine_sent(CHAIN)
        await harness.claims.run_once()
        assert set(harness.rows.refused) == {Receiver(CHAIN, FIRST, TOKEN)}
    harness.chain.unblock_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()
    assert (harness.paid(FIRST), len(harness.rows.refused)) == (0, 1)  # its settle is sent, and not mined
    harness.chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    assert (harness.paid(FIRST), harness.rows.refused) == (DUE, {})


async def test_a_receiver_for_whom_nothing_is_claimed_is_tried_again_after_a_day(harness: Harness) -> None:
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    harness.rows.is_taken = True  # the claim without the settle is not sent
    harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()
    harness.rows.channels.clear()
    for passed_ms, is_refused in ((0, True), (REFUSED_MS - 1, True), (1, False)):
        harness.settlement.now_ms += passed_ms
        await harness.settlement.gas_budget.refresh()
        await harness.claims.run_once()
        assert bool(harness.rows.refused) is is_refused


async def test_a_receiver_who_would_be_paid_less_than_the_gas_is_not_refused_any_more(
    harness: Harness,
) -> None:
    key = harness.add(make_payer(1), DUE, deposit=2_000_000)
    harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()
    harness.chain.unblock_owner(CHAIN, TOKEN, FIRST)
    harness.chain.set_fees(CHAIN, base_fee_wei=10**12, tip_wei=0)
    await harness.settlement.gas_budget.refresh()
    await harness.claims.run_once()
    assert (harness.sent_count, harness.paid(FIRST), harness.rows.refused) == (1, 0, {})
    assert harness.rows.settled.get(key) is None


# ---- What the contract has paid out.


async def test_what_the_contract_has_paid_out_is_marked_in_the_round_that_finds_it(harness: Harness) -> None:
    first, second = make_payer(1), make_payer(2, SECOND)
    keys = [harness.add(payer, DUE, deposit=4_000_000) for payer in (first, second)]
    harness.chain.block_owner(CHAIN, TOKEN, SECOND)
    await harness.claims.run_once()
    assert harness.rows.settled == {}
    await harness.claims.run_once()
    assert harness.rows.settled == {keys[0]: DUE}
    harness.chain.unblock_owner(CHAIN, TOKEN, SECOND)
    harness.chain.call_channels(CHAIN, contract.encode_settle(receiver=SECOND, token=TOKEN))  # a stranger
    await harness.claims.run_once()
    assert harness.rows.settled == dict.fromkeys(keys, DUE)
    assert harness.sent_count == 1


async def test_a_claim_after_the_answer_of_the_contract_is_not_marked_by_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = harness.add(make_payer(1), DUE, deposit=4_000_000)
    await harness.claims.run_once()
    fetch_totals = harness.networks.fetch_receiver_totals

    async def claim_meanwhile(receiver: Receiver) -> tuple[int, int]:
        channel = harness.rows.channels[key]
        later = replace(channel.facts, total_claimed=2 * DUE)
        harness.rows.channels[key] = replace(channel, facts=later)
        return await fetch_totals(receiver)

    monkeypatch.setattr(harness.networks, "fetch_receiver_totals", claim_meanwhile)
    await harness.claims.run_once()
    assert harness.rows.settled == {key: DUE}


@pytest.mark.parametrize("seen", [0, DUE - 1], ids=["no claim", "the claim of another channel"])
async def test_a_node_that_has_not_seen_every_claim_says_nothing_about_what_is_paid_out(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    """Its totals of a blocked receiver are equal because it lags: neither is the money paid out, nor may the receiver be forgotten."""
    harness.add(make_payer(1), DUE, deposit=4_000_000)
    harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()

    async def lag(receiver: Receiver) -> tuple[int, int]:
        return seen, seen

    monkeypatch.setattr(harness.networks, "fetch_receiver_totals", lag)
    await harness.claims.run_once()
    assert harness.rows.settled == {}
    assert set(harness.rows.refused) == {Receiver(CHAIN, FIRST, TOKEN)}


@pytest.mark.parametrize("is_refused", [False, True], ids=["what is paid out", "a settle of one alone"])
@pytest.mark.parametrize(
    ("payload", "reverted"),
    [(b"", False), (b"\1" * 32, False), (b"\xff" * 64, False), (DUE.to_bytes(32, "big") * 2, True)],
    ids=["nothing", "one word", "too large", "a revert"],
)
async def test_totals_that_cannot_be_read_cost_a_round_no_claim(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, payload: bytes, reverted: bool, is_refused: bool
) -> None:
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    if is_refused:
        harness.chain.block_owner(CHAIN, TOKEN, FIRST)
    await harness.claims.run_once()
    harness.chain.unblock_owner(CHAIN, TOKEN, FIRST)
    call_contract = harness.chain.call_contract

    async def answer(chain_id: ChainId, *, calldata: bytes, **given: Any) -> ContractResult:
        if calldata == contract.encode_receiver_totals(receiver=FIRST, token=TOKEN):
            return ContractResult(payload=payload, reverted=reverted)
        return await call_contract(chain_id, calldata=calldata, **given)

    monkeypatch.setattr(harness.chain, "call_contract", answer)
    payer = make_payer(2, SECOND)
    harness.add(payer, DUE, deposit=2_000_000)
    await harness.claims.run_once()
    assert (await harness.claimed(payer), harness.paid(SECOND)) == (DUE, DUE)
    assert (harness.rows.settled, bool(harness.rows.refused)) == ({}, is_refused)


@pytest.mark.parametrize("fault", ["contracts", "chain", "claim"])
async def test_nothing_is_sent_without(harness: Harness, fault: str) -> None:
    payer = make_payer(1)
    harness.add(payer, DUE, deposit=2_000_000)
    if fault == "contracts":
        harness = Harness(harness.settlement)  # it has not seen them yet
        harness.add(payer, DUE, deposit=2_000_000)
    elif fault == "chain":
        harness.chain.disconnect(CHAIN)
    else:
        harness.rows.is_taken = True  # another gateway has the channel in a claim
    await harness.claims.run_once()
    assert (harness.sent_count, harness.rows.claims) == (0, {})


# ---- How a claim ends.


async def test_a_mined_claim_ends_with_what_the_chain_says(harness: Harness) -> None:
    key = harness.add(make_payer(1), DUE, deposit=2_000_000)
    await harness.claims.run_once()
    await harness.claims.run_once()
    assert (len(harness.rows.ended), harness.rows.claims) == (1, {})
    assert harness.rows.channels[key].facts.total_claimed == DUE
    assert harness.sent_count == 1
    done = ChannelOutcome.DONE
    assert harness.steps() == {(ChannelStep.CLAIM, done): 1, (ChannelStep.SETTLE, done): 1}
    (cost_wei,) = [
        note[4] for note in harness.settlement.metrics if note[:3] == ("channel", CHAIN, ChannelStep.CLAIM)
    ]
    assert isinstance(cost_wei, int)
    assert cost_wei > 0


async def test_a_claim_whose_nonce_another_transaction_has_used_is_lost(harness: Harness) -> None:
    harness.chain.is_automining = False
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    await harness.claims.run_once()
    harness.chain.drop_sent(CHAIN)
    other = make_gas_key().sign(
        chain_id=CHAIN, nonce=0, to=FIRST, calldata=b"", gas=21_000, max_fee_wei=10**10, tip_wei=0
    )
    await harness.chain.send_transaction(CHAIN, other.raw)
    harness.chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    assert harness.steps() == {(ChannelStep.CLAIM, ChannelOutcome.LOST): 1}
    assert len(harness.rows.ended) == 1


async def test_a_filler_of_a_nonce_below_is_not_the_claim(harness: Harness) -> None:
    """It carries the id of the waiting claim. Its gas is booked, as that of no step."""
    key, rows, chain = make_gas_key(), harness.settlement.ledger.rows, harness.chain
    chain.is_automining = False
    rows.lanes[CHAIN, key.address] = 1
    harness.add(make_payer(1), DUE, deposit=2_000_000)
    await harness.claims.run_once()
    (claim_id,) = harness.rows.claims
    (sent,) = await harness.settlement.gas.attempts_of(claim_id)
    chain.drop_sent(CHAIN)
    filler = sign_filler(replace(sent, nonce=0), key, tx_fees=read_fees(sent), now_ms=sent.created_ms)
    store_attempt(rows, filler)
    await chain.send_transaction(CHAIN, filler.raw)
    chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    assert (list(harness.rows.claims), harness.rows.ended, harness.steps()) == ([claim_id], [], Counter())
    await harness.settlement.gas_budget.refresh()
    assert rows.attempts[CHAIN, filler.tx_hash].cost_wei < filler.fee_max_wei
    await chain.send_transaction(CHAIN, sent.raw)
    chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    assert len(harness.rows.ended) == 1
    assert harness.steps()[ChannelStep.CLAIM, ChannelOutcome.DONE] == 1


async def test_a_claim_ends_once_a_node_has_seen_its_block(harness: Harness) -> None:
    key = harness.add(make_payer(1), DUE, deposit=2_000_000)
    await harness.claims.run_once()
    harness.chain.channels_lag = 1
    await harness.claims.run_once()
    assert len(harness.rows.claims) == 1
    harness.chain.channels_lag = 0
    await harness.claims.run_once()
    assert (harness.rows.claims, harness.rows.channels[key].facts.total_claimed) == ({}, DUE)
    assert harness.sent_count == 1


async def test_a_claim_that_is_not_mined_waits_and_its_channel_is_in_no_other(harness: Harness) -> None:
    harness.chain.is_automining = False
    payer = make_payer(1)
    harness.add(payer, DUE, deposit=2_000_000)
    for _ in range(3):
        await harness.claims.run_once()
    assert (len(harness.rows.claims), harness.sent_count) == (1, 1)
    harness.chain.mine_sent(CHAIN)
    await harness.claims.run_once()
    assert (harness.rows.claims, await harness.claimed(payer)) == ({}, DUE)


async def test_a_stranger_may_settle_before_the_gateway(harness: Harness) -> None:
    harness.chain.is_automining = False
    payer = make_payer(1)
    harness.add(payer, DUE, deposit=2_000_000)
    await harness.claims.run_once()
    harness.chain.mine_sent(CHAIN)
    harness.chain.call_channels(CHAIN, contract.encode_settle(receiver=FIRST, token=TOKEN))
    await harness.claims.run_once()
    assert (harness.paid(FIRST), len(harness.rows.ended)) == (DUE, 1)


async def test_the_second_claim_of_a_channel_claims_the_difference(harness: Harness) -> None:
    payer = make_payer(1)
    key = harness.add(payer, DUE, deposit=4_000_000)
    await harness.claims.run_once()
    harness.rows.owed[key] = 2 * DUE
    await harness.claims.run_once()
    assert (await harness.claimed(payer), harness.paid(FIRST)) == (2 * DUE, 2 * DUE)
    assert harness.chain.balance(CHAIN, TOKEN, SETTLEMENT_CONTRACT) == 4_000_000 - 2 * DUE
