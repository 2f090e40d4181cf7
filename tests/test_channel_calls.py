"""The wait for the claims of channels (`kit.channel_calls`), against a chain whose next look may show an earlier block than the last one."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.channel_calls import ChannelShop, PaidChannel
from tollway.ids import ChannelId
from tollway.sandbox.chain import START_USDC_UNITS, make_account

BALANCE = 3_000
FIRST, SECOND = ChannelId(b"\1" * 32), ChannelId(b"\2" * 32)
Look = tuple[int, int, int]
"""What one round of requests says: claimed of both channels, and what the provider has got."""


class LookedAtChain:
    """A driver that answers each round of requests with the next look, and all later ones with the last."""

    def __init__(self, looks: Sequence[Look]) -> None:
        self.looks = list(looks)
        self.rounds = 0

    async def rpc(self, _method: str, request: dict[str, str], _block: str) -> str:
        of_first = request["data"].endswith(FIRST.hex())
        claimed = self._look()[0 if of_first else 1]
        return "0x" + BALANCE.to_bytes(32, "big").hex() + claimed.to_bytes(32, "big").hex()

    async def call(self, *_arguments: Any) -> int:
        earned = self._look()[2]
        self.rounds += 1
        return START_USDC_UNITS + earned

    def _look(self) -> Look:
        return self.looks[min(self.rounds, len(self.looks) - 1)]


async def wait_claimed(chain: LookedAtChain, **options: float) -> list[int]:
    cluster = SimpleNamespace(driver=chain, playground=SimpleNamespace(token=None))
    account: Any = make_account("anyone")
    shop = ChannelShop(cluster=cluster, gateways=[], provider=account, api_id="", offer={})
    signers: list[Any] = [SimpleNamespace(channel_id=one) for one in (FIRST, SECOND)]
    first, second = (PaidChannel(shop=shop, wallet=account, signer=signer) for signer in signers)
    return await shop.wait_claimed([(first, 600), (second, 300)], **options)


@pytest.mark.parametrize(
    ("looks", "rounds"),
    [
        pytest.param([(600, 300, 900)], 1, id="all agree"),
        pytest.param(
            [(300, 300, 900), (600, 300, 900)],
            2,
            id="the provider has a sum whose claim a channel does not show yet",
        ),
        pytest.param([(600, 300, 600), (600, 300, 900)], 2, id="claimed, and not settled yet"),
        pytest.param([(300, 0, 300), (600, 0, 600), (600, 300, 900)], 3, id="one claim after the other"),
        pytest.param([(600, 300, 600), (300, 300, 900), (600, 300, 900)], 3, id="a look goes back"),
    ],
)
async def test_the_wait_ends_when_each_channel_and_the_provider_agree_with_what_is_charged(
    looks: list[Look], rounds: int
) -> None:
    chain = LookedAtChain(looks)
    assert await wait_claimed(chain) == [BALANCE, BALANCE]
    assert chain.rounds == rounds


@pytest.mark.parametrize(
    "look",
    [
        pytest.param((300, 600, 900), id="a channel pays for another one"),
        pytest.param((900, 300, 900), id="a channel"),
        pytest.param((600, 300, 1_200), id="the provider"),
    ],
)
async def test_a_claim_beyond_what_is_charged_fails_at_the_first_look(look: Look) -> None:
    chain = LookedAtChain([look])
    with pytest.raises(AssertionError, match="claimed beyond what was charged"):
        await wait_claimed(chain)
    assert chain.rounds == 1


async def test_a_wait_in_vain_names_each_channel_that_differs() -> None:
    with pytest.raises(AssertionError, match="the claim of every channel") as caught:
        await wait_claimed(LookedAtChain([(600, 0, 600)]), deadline_s=0.0)
    assert caught.value.__notes__ == [f"{SECOND}: claimed 0, charged 300"]
