"""What both clients ask of the control plane: listings and their documents, history, payments. The synchronous and the
asynchronous client each bring the one thing that differs: how a request is sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tollway.client import control
from tollway.client.control import ControlRequest, GatewayDocument
from tollway.client.failures import GatewayRefused


class ControlPlane(ABC):
    """All of these raise `GatewayRefused` and `GatewayUnreachable`; what needs a signature, `CannotPay` without a wallet."""

    @abstractmethod
    def _request(self, control_request: ControlRequest) -> GatewayDocument: ...

    def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> GatewayDocument:
        """Creates a listing; gives it back as it was created, with its `id`."""
        return self._request(control.publish_listing(draft, dry_run=dry_run))

    def update(self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None) -> GatewayDocument:
        """Replaces a listing of this wallet's."""
        return self._request(control.update_listing(api_id, draft, etag=etag))

    def retire(self, api_id: str) -> None:
        """Ends a listing for good."""
        self._request(control.retire_listing(api_id))

    def ownership(self, api_id: str) -> GatewayDocument:
        """What would prove that a listing's endpoint is its provider's, and whether that is proved."""
        return self._request(control.show_ownership(api_id))

    def check_ownership(self, api_id: str) -> GatewayDocument:
        """Has the gateway look for a proof now; only for the listing's provider."""
        return self._request(control.check_ownership(api_id))

    def list(self, **query: object) -> GatewayDocument:
        """A page of the registry; the parameters are those of `GET /apis`."""
        return self._request(control.list_apis(query))

    def show(self, api_id: str) -> GatewayDocument:
        """The details of a listing."""
        return self._request(control.show_listing(api_id))

    def history(self, **query: object) -> GatewayDocument:
        """This wallet's calls; the parameters are those of `GET /history`."""
        return self._request(control.list_calls(query))

    def find_call(self, call_id: str) -> GatewayDocument:
        """One call of this wallet's."""
        return self._request(control.find_call(call_id))

    def payment(self, transaction: str) -> GatewayDocument:
        """What became of a payment, by the gateway's ledger."""
        return self._request(control.find_payment(transaction))

    def search(self, words: str | None = None, **query: object) -> GatewayDocument:
        """A page of what is for sale, the best first where `words` are given; each item then says in which fields they
        were found (`match`). `query`: the parameters of `GET /apis`."""
        return self._request(control.search_apis(words, query))

    def describe(self, api_id: str) -> GatewayDocument:
        """The agent document of a listing: what it does, its operations, how it is paid, how far it can be trusted. From
        a gateway that makes none, the details."""
        try:
            return self._request(control.describe_listing(api_id))
        except GatewayRefused as refusal:
            if not control.lacks_document(refusal):
                raise
            return self._request(control.show_listing(api_id))


class AsyncControlPlane(ABC):
    """See `ControlPlane`; so for every method."""

    @abstractmethod
    async def _request(self, control_request: ControlRequest) -> GatewayDocument: ...

    async def publish(self, draft: Mapping[str, object], *, dry_run: bool = False) -> GatewayDocument:
        return await self._request(control.publish_listing(draft, dry_run=dry_run))

    async def update(
        self, api_id: str, draft: Mapping[str, object], *, etag: str | None = None
    ) -> GatewayDocument:
        return await self._request(control.update_listing(api_id, draft, etag=etag))

    async def retire(self, api_id: str) -> None:
        await self._request(control.retire_listing(api_id))

    async def ownership(self, api_id: str) -> GatewayDocument:
        return await self._request(control.show_ownership(api_id))

    async def check_ownership(self, api_id: str) -> GatewayDocument:
        return await self._request(control.check_ownership(api_id))

    async def list(self, **query: object) -> GatewayDocument:
        return await self._request(control.list_apis(query))

    async def show(self, api_id: str) -> GatewayDocument:
        return await self._request(control.show_listing(api_id))

    async def history(self, **query: object) -> GatewayDocument:
        return await self._request(control.list_calls(query))

    async def find_call(self, call_id: str) -> GatewayDocument:
        return await self._request(control.find_call(call_id))

    async def payment(self, transaction: str) -> GatewayDocument:
        return await self._request(control.find_payment(transaction))

    async def search(self, words: str | None = None, **query: object) -> GatewayDocument:
        return await self._request(control.search_apis(words, query))

    async def describe(self, api_id: str) -> GatewayDocument:
        try:
            return await self._request(control.describe_listing(api_id))
        except GatewayRefused as refusal:
            if not control.lacks_document(refusal):
                raise
            return await self._request(control.show_listing(api_id))
