"""The few questions that the gateway itself asks of a provider's server, through the dialer and its policy: a document, and
whether an endpoint guards itself. Never a call that anybody pays for.
"""

from tollway.errors import TollwayError, UpstreamBadResponse
from tollway.limits import MIB
from tollway.outbound.dialer import HttpClient
from tollway.outbound.policy import Endpoint

DOCUMENT_BYTES_MAX = MIB
DOCUMENT_DEADLINE_S = 10.0
PROBE_DEADLINE_S = 3.0

_SUCCESS = range(200, 300)


class Fetcher:
    """Safe to use from many tasks at once."""

    def __init__(self, http_client: HttpClient) -> None:
        self._http_client = http_client

    async def fetch_document(self, url: str) -> bytes:
        """A small document, such as an OpenAPI description. Raises `EndpointNotAllowed` for a URL that may not be
        dialled, and an Upstream failure when there is no such document."""
        document = await self._http_client.fetch(
            url, bytes_max=DOCUMENT_BYTES_MAX, deadline_s=DOCUMENT_DEADLINE_S
        )
        if document.status not in _SUCCESS:
            raise UpstreamBadResponse(f"The server answered {document.status}.")
        return document.body

    async def is_unprotected(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint answers 2xx to somebody who does not carry the listing's secret."""
        try:
            document = await self._http_client.fetch(
                endpoint.href, bytes_max=DOCUMENT_BYTES_MAX, deadline_s=PROBE_DEADLINE_S
            )
        except TollwayError:
            return False
        return document.status in _SUCCESS
