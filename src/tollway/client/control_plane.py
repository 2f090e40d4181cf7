"""What both clients ask of the control plane: listings and their documents, history, payments. The synchronous and the
asynchronous client each bring the one thing that differs: how a request is sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tollway.client import control
from tollway.client.control import ControlRequest, Document
from tollway.client.failures import GatewayRefused


class ControlPlane(ABC):
    """All of these raise `GatewayRefused` and `GatewayUnreachable`; what needs a signature, `CannotPay` without a wallet."""

    @abstractmethod
    def _ask(self, wish: ControlRequest) -> Document: ...

    def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> Document:
        """Creates a listing; gives it back as it was created, with its `id`."""
        return self._ask(control.publish(draft, dry_run=dry_run))

    def update(self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None) -> Document:
        """Replaces a listing of this wallet's."""
        return self._ask(control.update(api_id, draft, etag=etag))

    def retire(self, api_id: str) -> None:
        """Ends a listing for good."""
        self._ask(control.retire(api_id))

    def ownership(self, api_id: str) -> Document:
        """What would prove that a listing's endpoint is its provider's, and whether that is proved."""
        return self._ask(control.ownership(api_id))

    def check_ownership(self, api_id: str) -> Document:
        """Has the gateway look for a proof now; only for the listing's provider."""
        return self._ask(control.check_ownership(api_id))

    def list(self, **query: object) -> Document:
        """A page of the registry; the parameters are those of `GET /apis`."""
        return self._ask(control.list_apis(query))

    def show(self, api_id: str) -> Document:
        """The details of a listing."""
        return self._ask(control.show(api_id))

    def history(self, **query: object) -> Document:
        """This wallet's calls; the parameters are those of `GET /history`."""
        return self._ask(control.history(query))

    def find_call(self, call_id: str) -> Document:
        """One call of this wallet's."""
        return self._ask(control.find_call(call_id))

    def payment(self, transaction: str) -> Document:
        """What became of a payment, by the gateway's books."""
        return self._ask(control.find_payment(transaction))

    def search(self, words: str | None = None, **query: object) -> Document:
        """A page of what is for sale, the best first where `words` are given; each item then says in which fields they
        were found (`match`). `query`: the parameters of `GET /apis`."""
        return self._ask(control.search(words, query))

    def describe(self, api_id: str) -> Document:
        """The agent document of a listing: what it does, its operations, how it is paid, how far it can be trusted. From
        a gateway that makes none, the details."""
        try:
            return self._ask(control.describe(api_id))
        except GatewayRefused as refusal:
            if not control.has_no_document(refusal):
                raise
            return self._ask(control.show(api_id))


class AsyncControlPlane(ABC):
    """See `ControlPlane`; so for every method."""

    @abstractmethod
    async def _ask(self, wish: ControlRequest) -> Document: ...

    async def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> Document:
        return await self._ask(control.publish(draft, dry_run=dry_run))

    async def update(self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None) -> Document:
        return await self._ask(control.update(api_id, draft, etag=etag))

    async def retire(self, api_id: str) -> None:
        await self._ask(control.retire(api_id))

    async def ownership(self, api_id: str) -> Document:
        return await self._ask(control.ownership(api_id))

    async def check_ownership(self, api_id: str) -> Document:
        return await self._ask(control.check_ownership(api_id))

    async def list(self, **query: object) -> Document:
        return await self._ask(control.list_apis(query))

    async def show(self, api_id: str) -> Document:
        return await self._ask(control.show(api_id))

    async def history(self, **query: object) -> Document:
        return await self._ask(control.history(query))

    async def find_call(self, call_id: str) -> Document:
        return await self._ask(control.find_call(call_id))

    async def payment(self, transaction: str) -> Document:
        return await self._ask(control.find_payment(transaction))

    async def search(self, words: str | None = None, **query: object) -> Document:
        return await self._ask(control.search(words, query))

    async def describe(self, api_id: str) -> Document:
        try:
            return await self._ask(control.describe(api_id))
        except GatewayRefused as refusal:
            if not control.has_no_document(refusal):
                raise
            return await self._ask(control.show(api_id))
