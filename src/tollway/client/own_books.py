"""What both clients can say and do without a network: the wallet's own books, from the caller's side."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

from tollway.client.call_plan import CallOptions
from tollway.client.desk import ClientOptions, Desk
from tollway.client.quote import Cap
from tollway.client.steps import SignedAuthorization, Transfer
from tollway.ids import Address, TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What may be spent on one call, on the network fee of one payment, by this wallet in all, and by this client. None:
    that limit was not set; for fees the presets hold then (`client/fee_limit.py`)."""

    max_price: Cap
    max_fee: Cap | None
    budget: Cap | None
    session_budget: Cap | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """By currency, in 10^-18: of this wallet in all, and what this client has signed."""

    total: Mapping[str, int]
    session: Mapping[str, int]


class CallerBase:
    """What both clients can do without a network."""

    def __init__(self, gateway_url: str, options: ClientOptions) -> None:
        self._desk = Desk(gateway_url, options)
        self._is_resumed = False

    def payments(self) -> tuple[Transfer, ...]:
        """Every payment that this wallet's store knows, oldest first."""
        wallet = self._desk.wallet
        return () if wallet is None else self._desk.store.all_of(wallet.address)

    def authorizations(self) -> tuple[SignedAuthorization, ...]:
        """Every authorisation that this wallet's store knows, oldest first."""
        wallet = self._desk.wallet
        return () if wallet is None else self._desk.store.authorizations_of(wallet.address)

    def abandon(self, transaction: str) -> bool:
        """Gives up an unresolved payment, so that its payee may be paid again; or an open authorisation, by its nonce,
        so that its request may. If it is mined after all, it bought nothing. False when there is no such payment."""
        told = TxHash.parse(transaction)
        return self._desk.store.abandon(told) or self._desk.store.abandon_authorization(bytes(told))

    @property
    def address(self) -> Address | None:
        """The wallet that pays."""
        return None if self._desk.wallet is None else self._desk.wallet.address

    @property
    def gateway(self) -> str:
        """Where requests go."""
        return self._desk.root

    @property
    def allowance(self) -> Allowance:
        desk = self._desk
        return Allowance(
            max_price=desk.max_price,
            max_fee=desk.max_fee,
            budget=desk.budget,
            session_budget=desk.session.cap,
        )

    def spending(self) -> Spending:
        """What counts against the budgets by now."""
        desk, wallet = self._desk, self._desk.wallet
        total = {} if wallet is None else desk.store.spent(wallet.address)
        return Spending(total=MappingProxyType(total), session=MappingProxyType(dict(desk.session.spent())))

    def keep_key(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> str | None:
        """The idempotency key under which this request is to be made, until `drop_key`: the same one for whoever asks
        for the same request meanwhile, also after a crash. None without a wallet: then nothing is paid either."""
        desk = self._desk
        if desk.wallet is None:
            return None
        return desk.keep_key(desk.wallet.address, desk.plan_call(api_id, path, options))

    def drop_key(self, key: str, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> None:
        """The answer to that request is known and handed over: the same request again is another call."""
        desk = self._desk
        if desk.wallet is not None:
            desk.drop_key(desk.wallet.address, desk.plan_call(api_id, path, options), key)
