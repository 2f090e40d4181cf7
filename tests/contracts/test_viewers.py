"""The contract of `ViewerStore`, and whose books a reader gets."""

import asyncio
from dataclasses import replace

import pytest

from tests.kit.budgets import bind, policy_of, store
from tests.kit.narrowing import problem_of
from tollway.errors import Code, Refusal
from tollway.identity.viewers import BookAccess, Viewer
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.rate_limits.limiter import RateLimiter
from tollway.storage.accounts.viewer_store import SqlViewers
from tollway.storage.engine.database import Database
from tollway.storage.ledger.budget_store import BudgetStore

AGENT, OTHER_AGENT = Address(b"\x01" * 20), Address(b"\x02" * 20)
OWNER, STRANGER = Address(b"\xa1" * 20), Address(b"\xa2" * 20)
NOW_MS, DAY_MS = 1_800_000_000_000, 86_400_000


def permission(
    wallet: Address = AGENT, viewer: Address = OWNER, *, days: float = 1, since: int = 0
) -> Viewer:
    until_ms = NOW_MS + int(days * DAY_MS)
    return Viewer(wallet=wallet, viewer=viewer, since_ms=NOW_MS + since, until_ms=until_ms)


@pytest.fixture
def viewers(database: Database) -> SqlViewers:
    return SqlViewers(database)


async def test_a_viewer_reads_until_the_end_and_another_wallet_never(viewers: SqlViewers) -> None:
    given = permission()
    assert await viewers.put(given, most=5) == given
    for reader, now_ms, may_read in (
        (OWNER, NOW_MS, True),
        (OWNER, given.until_ms - 1, True),
        (OWNER, given.until_ms, False),
        (STRANGER, NOW_MS, False),
    ):
        assert (await viewers.find(AGENT, reader, now_ms=now_ms) is not None) is may_read
    assert await viewers.find(OWNER, AGENT, now_ms=NOW_MS) is None
    assert await viewers.find(OTHER_AGENT, OWNER, now_ms=NOW_MS) is None


async def test_a_deleted_permission_ends_at_once_at_every_gateway(database: Database) -> None:
    """Two stores over one database are two gateways: neither keeps anything in memory."""
    one, other = SqlViewers(database), SqlViewers(database)
    await one.put(permission(), most=5)
    assert await other.find(AGENT, OWNER, now_ms=NOW_MS)
    await one.delete(AGENT, OWNER)
    assert await other.find(AGENT, OWNER, now_ms=NOW_MS) is None
    await one.delete(AGENT, OWNER)


async def test_a_new_end_replaces_the_old_one_and_keeps_the_beginning(viewers: SqlViewers) -> None:
    await viewers.put(permission(days=5), most=1)
    shorter = permission(days=2, since=1_000)
    stored = await viewers.put(shorter, most=1)
    assert stored == replace(shorter, since_ms=NOW_MS)
    assert await viewers.list_viewers(AGENT, now_ms=NOW_MS) == (stored,)


async def test_a_wallet_names_at_most_so_many_and_ended_ones_do_not_count(viewers: SqlViewers) -> None:
    first, second = permission(days=1), permission(viewer=STRANGER, days=9, since=1)
    assert await viewers.put(first, most=2)
    assert await viewers.put(second, most=2)
    third = permission(viewer=OTHER_AGENT, days=9, since=2)
    assert await viewers.put(third, most=2) is None
    assert await viewers.find(AGENT, OTHER_AGENT, now_ms=NOW_MS) is None
    later = replace(third, since_ms=first.until_ms)
    assert await viewers.put(later, most=2) == later
    assert await viewers.list_viewers(AGENT, now_ms=later.since_ms) == (second, later)


async def test_two_gateways_that_add_the_last_viewer_add_one(database: Database) -> None:
    one, other = SqlViewers(database), SqlViewers(database)
    added = await asyncio.gather(
        one.put(permission(viewer=OWNER), most=1), other.put(permission(viewer=STRANGER), most=1)
    )
    assert sum(each is not None for each in added) == 1
    assert len(await one.list_viewers(AGENT, now_ms=NOW_MS)) == 1


async def test_lists_both_sides_without_ended_ones(viewers: SqlViewers) -> None:
    newer = permission(OTHER_AGENT, since=1)
    older = permission(AGENT, since=5)
    ended = permission(STRANGER, days=-1)
    for accepted_ms, each in ((NOW_MS + 8, newer), (NOW_MS + 7, older), (NOW_MS + 9, ended)):
        await viewers.put(each, most=5)
        await viewers.accept(each.wallet, OWNER, now_ms=accepted_ms)
    newer, older = replace(newer, accepted_ms=NOW_MS + 8), replace(older, accepted_ms=NOW_MS + 7)
    assert await viewers.list_wallets(OWNER, now_ms=NOW_MS, limit=9) == (newer, older)
    assert await viewers.list_wallets(OWNER, now_ms=NOW_MS, limit=1) == (newer,)
    assert await viewers.list_wallets(AGENT, now_ms=NOW_MS, limit=9) == ()
    assert await viewers.list_viewers(AGENT, now_ms=NOW_MS) == (older,)
    assert await viewers.prune(now_ms=NOW_MS) == 1
    assert await viewers.prune(now_ms=NOW_MS) == 0


async def test_a_permission_is_accepted_once_and_a_renewal_keeps_that(viewers: SqlViewers) -> None:
    await viewers.put(permission(), most=5)
    assert await viewers.list_wallets(OWNER, now_ms=NOW_MS, limit=9) == ()
    await viewers.accept(AGENT, OWNER, now_ms=NOW_MS + 1)
    await viewers.accept(AGENT, OWNER, now_ms=NOW_MS + 2)
    renewed = await viewers.put(permission(days=9, since=3), most=5)
    assert renewed == replace(permission(days=9), accepted_ms=NOW_MS + 1)
    assert await viewers.list_wallets(OWNER, now_ms=NOW_MS, limit=9) == (renewed,)
    await viewers.delete(AGENT, OWNER)
    await viewers.put(permission(since=4), most=5)
    assert await viewers.list_wallets(OWNER, now_ms=NOW_MS, limit=9) == (), "a new one is not accepted"
    await viewers.accept(AGENT, STRANGER, now_ms=NOW_MS)  # does nothing without a permission


# ---- Whose books.


@pytest.fixture
def access(database: Database) -> BookAccess:
    return access_at(database)


def access_at(database: Database) -> BookAccess:
    """Of one gateway."""
    limits = replace(DEFAULT_LIMITS, viewers_max=1, viewed_wallets_max=2, menu_wallets_max=1)
    return BookAccess(
        SqlViewers(database),
        BudgetStore(database),
        limits=limits,
        now_ms=lambda: NOW_MS,
        rate_limiter=RateLimiter(),
    )


async def allow(access: BookAccess, wallet: Address, viewer: Address) -> Viewer:
    return await access.allow(wallet, viewer, until_ms=NOW_MS + 1, client_address="198.51.100.7")


async def test_a_wallet_reads_its_own_books_without_a_permission(access: BookAccess) -> None:
    assert await access.resolve_wallet(AGENT, None) == AGENT
    assert await access.resolve_wallet(AGENT, AGENT) == AGENT


async def test_every_reason_not_to_read_has_the_same_refusal(access: BookAccess, viewers: SqlViewers) -> None:
    """Never named, ended, withdrawn, a wallet that does not exist, the other direction: one problem, word by word."""
    await viewers.put(permission(OTHER_AGENT, days=0), most=1)
    await allow(access, AGENT, OWNER)
    assert await access.resolve_wallet(OWNER, AGENT) == AGENT
    await access.withdraw(AGENT, OWNER)
    problems = []
    for reader, named in (
        (OWNER, AGENT),
        (OWNER, OTHER_AGENT),
        (OWNER, Address(b"\x77" * 20)),
        (AGENT, OWNER),
    ):
        with pytest.raises(Refusal) as refused:
            await access.resolve_wallet(reader, named)
        problems.append(refused.value.problem)
    assert {problem.code for problem in problems} == {Code.NOT_VIEWER}
    assert len({problem.detail for problem in problems}) == 1


async def test_limits_of_both_lists(access: BookAccess) -> None:
    await allow(access, AGENT, OWNER)
    assert (await problem_of(allow(access, AGENT, STRANGER))).reason == "too_many_viewers"
    assert len(await access.list_viewers(AGENT)) == 1
    for number in range(1, 4):
        wallet = Address(bytes([number]) * 20)
        if number > 1:
            await allow(access, wallet, OWNER)
        await access.resolve_wallet(OWNER, wallet)
        assert await access.list_wallets(OWNER) == (await list_newest(access, min(number, 2)), number > 2)
        assert await access.list_menu(OWNER) == (await list_newest(access, 1), number > 1)


async def list_newest(access: BookAccess, count: int) -> tuple[Viewer, ...]:
    return (await access.list_wallets(OWNER))[0][:count]


async def test_strangers_fill_no_list_of_a_viewer(access: BookAccess) -> None:
    """A permission is listed when its viewer has read with it, and no sooner."""
    for number in range(1, 20):
        await allow(access, Address(bytes([number]) * 20), OWNER)
    assert await access.list_wallets(OWNER) == ((), False)
    assert await access.list_menu(OWNER) == ((), False)
    agent = Address(b"\x13" * 20)
    assert await access.resolve_wallet(OWNER, agent) == agent
    (listed,) = (await access.list_menu(OWNER))[0]
    assert (listed.wallet, listed.accepted_ms) == (agent, NOW_MS)


async def test_a_viewer_declines_a_permission(access: BookAccess) -> None:
    await allow(access, AGENT, OWNER)
    await access.resolve_wallet(OWNER, AGENT)
    await access.decline(OWNER, AGENT)
    assert await access.list_wallets(OWNER) == ((), False)
    assert await access.list_viewers(AGENT) == ()
    with pytest.raises(Refusal):
        await access.resolve_wallet(OWNER, AGENT)


# ---- Owners.


async def may_read(access: BookAccess, reader: Address, named: Address) -> bool:
    try:
        return await access.resolve_wallet(reader, named) == named
    except Refusal:
        return False


async def test_an_owner_reads_a_wallet_exactly_as_long_as_it_is_bound(database: Database) -> None:
    """By the next request at another gateway: pending, bound, revoked, expired, bound to another owner."""
    here, budgets = access_at(database), BudgetStore(database)
    there = access_at(database)
    await store(budgets, policy_of(owner=OWNER, agent=AGENT, maxTotal="1"))
    assert not await may_read(there, OWNER, AGENT), "a pending owner"
    await bind(budgets, policy_of(owner=OWNER, agent=AGENT, maxTotal="1", nonce=2, not_after=NOW_MS // 1000))
    for access in (here, there):
        assert await may_read(access, OWNER, AGENT), "an expired policy leaves the wallet bound"
        assert not await may_read(access, AGENT, OWNER)
        assert not await may_read(access, STRANGER, AGENT)
        assert not await may_read(access, OWNER, OTHER_AGENT)
    await budgets.revoke_policy(OWNER, AGENT, nonce=3, is_unbinding=False, now_ms=NOW_MS)
    assert await may_read(there, OWNER, AGENT), "so does a revocation"
    await budgets.revoke_policy(OWNER, AGENT, nonce=4, is_unbinding=True, now_ms=NOW_MS)
    assert not await may_read(there, OWNER, AGENT)
    await bind(budgets, policy_of(owner=STRANGER, agent=AGENT, maxTotal="1"), nonce=2)
    assert await may_read(there, STRANGER, AGENT)
    assert not await may_read(there, OWNER, AGENT)


async def test_the_wallets_of_an_owner_are_listed_once_the_last_bound_first(
    access: BookAccess, database: Database
) -> None:
    budgets = BudgetStore(database)
    for number, agent in enumerate((AGENT, OTHER_AGENT), 1):
        await bind(budgets, policy_of(owner=OWNER, agent=agent, maxTotal="1"), NOW_MS + number)
    await store(budgets, policy_of(owner=OWNER, agent=Address(b"\x03" * 20), maxTotal="1"))
    await allow(access, AGENT, OWNER)
    await access.resolve_wallet(OWNER, AGENT)
    wallets, are_more = await access.list_wallets(OWNER)
    assert [(one.wallet, one.until_ms) for one in wallets] == [(OTHER_AGENT, None), (AGENT, None)]
    assert not are_more
    (last,), are_more = await access.list_menu(OWNER)
    assert (last.wallet, are_more) == (OTHER_AGENT, True)
    assert [(one.viewer, one.until_ms) for one in await access.list_viewers(AGENT)] == [(OWNER, None)]
