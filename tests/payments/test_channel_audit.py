"""The comparison of channels with their chain: what each has claimed, what each receiver has, and a chain that does not answer."""

from dataclasses import dataclass, field

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import CHAIN, KeyWallet
from tests.kit.settlement import TOKEN
from tollway.chain import channel_contract as contract
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId
from tollway.ledger.channel_totals import ClaimedChannel
from tollway.payments.channel_audit import BATCH, compare_with_chains
from tollway.payments.channels import claim_batch_digest

RECEIVER = Address(b"\xbb" * 20)
DEADLINE_S = 5.0


def make_payer(n: int) -> ChannelPayer:
    return ChannelPayer(salt=n.to_bytes(32, "big"), receiver=RECEIVER, valid_before=2**40)


def make_chain(*payers: ChannelPayer, claimed: int = 0) -> MemoryChain:
    chain = MemoryChain(CHAIN)
    for payer in payers:
        chain.fund(CHAIN, TOKEN, payer.address, 10**9)
        chain.call_channels(CHAIN, payer.encode_deposit(1_000))
        if claimed:
            row = contract.ClaimRow(
                config=payer.config,
                ceiling=claimed,
                signature=payer.sign_voucher(claimed),
                total_claimed=claimed,
            )
            signature = KeyWallet.named("an authorizer").sign(claim_batch_digest(CHAIN, [row]))
            chain.call_channels(CHAIN, contract.encode_claim([row], signature=signature))
    return chain


@dataclass
class Channels:
    """The channels of a ledger. `later`: what the ledger says of a channel the second time."""

    rows: list[ClaimedChannel] = field(default_factory=list)
    later: dict[int, ClaimedChannel] = field(default_factory=dict)
    reads: int = 0

    async def list_claimed(
        self, chain_id: ChainId, *, after_key: int, limit: int
    ) -> tuple[ClaimedChannel, ...]:
        self.reads += 1
        rows = [self.later.get(one.key, one) if limit == 1 else one for one in self.rows]
        return tuple(one for one in rows if one.key > after_key)[:limit]


def row_of(
    payer: ChannelPayer, claimed: int, *, key: int = 1, open_total: int | None = None
) -> ClaimedChannel:
    return ClaimedChannel(
        key=key,
        channel_id=payer.channel_id,
        receiver=RECEIVER,
        token=TOKEN,
        total_claimed=claimed,
        open_total=open_total,
    )


@pytest.mark.parametrize(
    ("ours", "open_total", "is_equal"),
    [
        pytest.param(400, None, True, id="equal"),
        pytest.param(300, 400, True, id="a claim under way is mined"),
        pytest.param(400, 500, True, id="a claim under way is not mined"),
        pytest.param(300, None, False, id="the chain has claimed more"),
        pytest.param(300, 350, False, id="the chain has claimed more than the claim under way"),
        pytest.param(500, None, False, id="the ledger has claimed more"),
    ],
)
async def test_a_channel_has_claimed_what_the_ledger_says(
    ours: int, open_total: int | None, is_equal: bool
) -> None:
    payer = make_payer(1)
    chain, ledger = make_chain(payer, claimed=400), Channels([row_of(payer, ours, open_total=open_total)])
    found = await compare_with_chains(ledger, chain, [CHAIN], deadline_s=DEADLINE_S)
    assert found.channels == 1
    own = [line for line in found.differences if line.startswith("channel ")]
    assert own == (
        []
        if is_equal
        else [
            f"channel 0x{payer.channel_id.hex()} on eip155:{CHAIN} has claimed 400 there, and {ours} in the ledger"
        ]
    )


async def test_a_channel_that_differs_is_read_once_more() -> None:
    payer = make_payer(1)
    ledger = Channels([row_of(payer, 0)], later={1: row_of(payer, 400)})
    found = await compare_with_chains(ledger, make_chain(payer, claimed=400), [CHAIN], deadline_s=DEADLINE_S)
    assert found.differences == ()


@pytest.mark.parametrize(("ours", "is_right"), [((400, 400), True), ((400, 0), True), ((400, 401), False)])
async def test_the_receiver_has_at_least_the_sum_of_the_ledger(ours: tuple[int, int], is_right: bool) -> None:
    payers = make_payer(1), make_payer(2)
    rows = [
        row_of(payer, units, key=key) for key, (payer, units) in enumerate(zip(payers, ours, strict=True), 1)
    ]
    chain = make_chain(*payers, claimed=400)
    found = await compare_with_chains(Channels(rows), chain, [CHAIN], deadline_s=DEADLINE_S)
    lines = [line for line in found.differences if line.startswith("for receiver")]
    assert lines == (
        []
        if is_right
        else [
            f"for receiver {RECEIVER} 800 of token {TOKEN} are claimed on eip155:{CHAIN}, and 801 in the ledger"
        ]
    )


async def test_many_channels_take_few_requests() -> None:
    payer = make_payer(1)
    rows = [row_of(make_payer(key), 0, key=key) for key in range(1, 2 * BATCH + 2)]
    chain, ledger = make_chain(payer), Channels(rows)
    found = await compare_with_chains(ledger, chain, [CHAIN], deadline_s=DEADLINE_S)
    assert (found.channels, found.differences, ledger.reads) == (2 * BATCH + 1, (), 4)
    assert chain.requests["call_contract", CHAIN] == 4  # three of channels, one of receivers


@pytest.mark.parametrize(
    ("break_chain", "words"),
    [
        pytest.param(lambda chain: chain.disconnect(CHAIN), "were not compared", id="no node answers"),
        pytest.param(
            lambda chain: chain.remove_channel_contracts(CHAIN),
            "no contract of payment channels",
            id="no contract",
        ),
    ],
)
async def test_a_chain_that_cannot_be_read_is_never_equal(break_chain: object, words: str) -> None:
    payer = make_payer(1)
    chain = make_chain(payer)
    break_chain(chain)  # type: ignore[operator]  # a row of the table
    with pytest.raises(ChainUnavailable, match=words):
        await compare_with_chains(Channels([row_of(payer, 0)]), chain, [CHAIN], deadline_s=DEADLINE_S)


async def test_a_network_that_the_settings_do_not_have_is_never_equal() -> None:
    payer = make_payer(1)
    ledger = Channels([row_of(payer, 0)])
    with pytest.raises(ChainUnavailable, match="eip155:7, which the settings do not have"):
        await compare_with_chains(ledger, make_chain(payer), [CHAIN, ChainId(7)], deadline_s=DEADLINE_S)
    assert ledger.reads == 0


@pytest.mark.parametrize("payload", [b"\x01" * 31, b"\x00" * 64, b"\xff" * 200])
def test_a_response_that_is_not_the_sums_is_refused(payload: bytes) -> None:
    for parse in (contract.parse_channel_sums, contract.parse_receiver_sums):
        with pytest.raises(ValueError):
            parse(payload, 1)
