"""What both clients can say and do without a network: the wallet's own books, from the caller's side."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

from tollway.client.call_plan import CallOptions
from tollway.client.desk import ClientOptions, Desk
from tollway.client.quote import Cap
from tollway.client.steps import SignedAuthorization, Transfer
from tollway.identifiers import TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """By currency, in 10^-18. `session`: what this client has signed. A limit that is None was not set."""

    total: Mapping[str, int]
    session: Mapping[str, int]
    max_price: Cap
    budget: Cap | None
    session_budget: Cap | None


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

    def spending(self) -> Spending:
        """What this wallet has spent, and what it may."""
        desk, wallet = self._desk, self._desk.wallet
        return Spending(
            total=MappingProxyType({} if wallet is None else desk.store.spent(wallet.address)),
            session=desk.session.spent(),
            max_price=desk.max_price,
            budget=desk.budget,
            session_budget=desk.session.cap,
        )

    def keep_key(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> str | None:
        """The idempotency key under which this request is to be made, until `drop_key`: the same one for whoever asks
        for the same request meanwhile, also after a crash. None without a wallet: then nothing is paid either."""
        desk = self._desk
        if desk.wallet is None:
            return None
        request = desk.plan_call(api_id, path, options).digest(str(desk.origin))
        return desk.store.keep_key(payer=desk.wallet.address, request=request, fresh=desk.fresh_key())

    def drop_key(self, key: str, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> None:
        """The answer to that request is known and handed over: the same request again is another call."""
        desk = self._desk
        if desk.wallet is not None:
            request = desk.plan_call(api_id, path, options).digest(str(desk.origin))
            desk.store.drop_key(payer=desk.wallet.address, request=request, key=key)
