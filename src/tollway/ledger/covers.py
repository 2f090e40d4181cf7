"""Whether an authorisation may be claimed: used once, and covered beside those that are on their way. Pure.

A balance on the chain is seen at a block. What may still leave it counts against it: authorisations whose calls run,
settle or may run again, and those that moved after that block. So fifty authorisations on one balance buy no more than
it covers, and a call that runs again needs no cover of its own: it was counted all the while.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tollway.identifiers import Address, CallId, ChainId
from tollway.ledger.authorization import Authorization, AuthorizationKey, Cover, Dialect
from tollway.ledger.book import AuthorizationTaken, NotCovered
from tollway.ledger.call import CallState, Rail

HOLDING = frozenset({CallState.FORWARDING, CallState.SETTLING})
"""States in which an authorisation that did not move yet counts against its payer's balance."""
EXPIRY_SLACK_S = 60
"""Blocks are timed by other clocks than ours, and the next one may still be timed before ours."""


class PayerAccount(NamedTuple):
    """Whose balance of what covers its authorisations."""

    chain_id: ChainId
    asset: str
    payer: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAuthorization:
    """An authorisation in the ledger, with the state of the call that it was claimed for last.

    `settled_block`: where its money moved; None while it did not. `valid_before`: in unix seconds.
    """

    key: AuthorizationKey
    call_id: CallId
    state: CallState
    price_units: int
    settled_block: int | None
    valid_before: int

    @property
    def is_free(self) -> bool:
        """It may pay another call: the one that it was claimed for is released, and nothing moved."""
        return self.state is CallState.RELEASED and self.settled_block is None

    def counts_against(self, cover: Cover, *, now_s: int) -> bool:
        if self.settled_block is not None:
            return self.settled_block > cover.block_number
        return self.may_move(now_s=now_s)

    def may_move(self, *, now_s: int) -> bool:
        """An unknown call may run again, and be settled, until its authorisation expires."""
        if self.settled_block is not None:
            return False
        is_open = self.state is CallState.UNKNOWN and now_s < self.valid_before + EXPIRY_SLACK_S
        return is_open or self.state in HOLDING


def payer_account_of(key: AuthorizationKey) -> PayerAccount:
    return PayerAccount(key.chain_id, key.asset, key.payer)


def rail_of(dialect: Dialect) -> Rail:
    return Rail.MPP if dialect is Dialect.MPP else Rail.X402


class PendingAuthorizations:
    """The authorisations of some wallets while a batch of claims is decided."""

    def __init__(self, known: Iterable[KnownAuthorization]) -> None:
        self._wallets: dict[PayerAccount, dict[AuthorizationKey, KnownAuthorization]] = {}
        for one in known:
            self._put(one)

    def refuse(
        self, authorization: Authorization, *, cover: Cover | None, price_units: int, now_s: int
    ) -> AuthorizationTaken | NotCovered | None:
        """None: it may be claimed. Without a cover nothing is covered."""
        known = self._wallet(authorization.key).get(authorization.key)
        if known is not None and not known.is_free:
            return AuthorizationTaken(call_id=known.call_id, state=known.state)
        wallet = payer_account_of(authorization.key)
        held_units = self.held_units(wallet, cover, now_s=now_s) if cover is not None else 0
        if cover is None or cover.balance_units < price_units + held_units:
            return NotCovered(held_units=held_units)
        return None

    def held_units(self, wallet: PayerAccount, cover: Cover, *, now_s: int) -> int:
        known = self._wallets.get(wallet, {}).values()
        return sum(one.price_units for one in known if one.counts_against(cover, now_s=now_s))

    def running_units(self, wallet: PayerAccount, *, now_s: int) -> int:
        """What may be about to move."""
        known = self._wallets.get(wallet, {}).values()
        return sum(one.price_units for one in known if one.may_move(now_s=now_s))

    def grant(self, authorization: Authorization, *, call_id: CallId, price_units: int) -> None:
        self._put(
            KnownAuthorization(
                key=authorization.key,
                call_id=call_id,
                state=CallState.FORWARDING,
                price_units=price_units,
                settled_block=None,
                valid_before=authorization.valid_before,
            )
        )

    def _wallet(self, key: AuthorizationKey) -> dict[AuthorizationKey, KnownAuthorization]:
        return self._wallets.get(payer_account_of(key), {})

    def _put(self, known: KnownAuthorization) -> None:
        self._wallets.setdefault(payer_account_of(known.key), {})[known.key] = known
