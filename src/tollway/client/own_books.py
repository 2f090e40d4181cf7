"""What both clients can say and do without a network: the wallet's payment store, from the caller's side."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

from tollway.client.call_plan import CallOptions
from tollway.client.desk import ClientOptions, Driver
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


class LocalOperations:
    """What both clients can do without a network."""

    def __init__(self, gateway_url: str, options: ClientOptions) -> None:
        self._driver = Driver(gateway_url, options)
        self._is_resumed = False

    def payments(self) -> tuple[Transfer, ...]:
        """Every payment that this wallet's store knows, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_transfers(wallet.address)

    def authorizations(self) -> tuple[SignedAuthorization, ...]:
        """Every authorisation that this wallet's store knows, oldest first."""
        wallet = self._driver.wallet
        return () if wallet is None else self._driver.store.list_authorizations(wallet.address)

    def abandon(self, transaction: str) -> bool:
        """Gives up an unresolved payment, so that its payee may be paid again; or an open authorisation, by its nonce,
        so that its request may. If it is mined after all, it bought nothing. False when there is no such payment."""
        transaction_hash = TxHash.parse(transaction)
        return self._driver.store.abandon(transaction_hash) or self._driver.store.abandon_authorization(
            bytes(transaction_hash)
        )

    @property
    def address(self) -> Address | None:
        """The wallet that pays."""
        return None if self._driver.wallet is None else self._driver.wallet.address

    @property
    def gateway(self) -> str:
        """Where requests go."""
        return self._driver.root

    @property
    def allowance(self) -> Allowance:
        driver = self._driver
        return Allowance(
            max_price=driver.max_price,
            max_fee=driver.max_fee,
            budget=driver.budget,
            session_budget=driver.session.cap,
        )

    def spending(self) -> Spending:
        """What counts against the budgets by now."""
        driver, wallet = self._driver, self._driver.wallet
        total = {} if wallet is None else driver.store.spent(wallet.address)
        return Spending(total=MappingProxyType(total), session=MappingProxyType(dict(driver.session.spent())))

    def keep_key(self, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> str | None:
        """The idempotency key under which this request is to be made, until `drop_key`: the same one for whoever asks
        for the same request meanwhile, also after a crash. None without a wallet: then nothing is paid either."""
        driver = self._driver
        if driver.wallet is None:
            return None
        return driver.keep_key(driver.wallet.address, driver.plan_call(api_id, path, options))

    def drop_key(self, key: str, api_id: str, path: str = "", **options: Unpack[CallOptions]) -> None:
        """The answer to that request is known and handed over: the same request again is another call."""
        driver = self._driver
        if driver.wallet is not None:
            driver.drop_key(driver.wallet.address, driver.plan_call(api_id, path, options), key)
