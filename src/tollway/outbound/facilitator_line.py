"""The line to a facilitator by URL: one request, a deadline, a maximum. The operator names the URL, so no policy judges it.

No environment proxies, no redirects, no cookies, and nothing of an answer is believed here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from tollway.errors import ChainUnavailable
from tollway.limits import Limits

_SERVER_ERROR = 500
_ACCEPT = {"Accept": "application/json", "Content-Type": "application/json"}


class HttpFacilitatorTransport:
    """Open it inside the loop that uses it: `open` and `close`."""

    def __init__(self, *, limits: Limits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._limits.facilitator_deadline_s),
            )
            # A POST is never repeated by itself, but nothing here rests on what the library thinks is safe.
            self._session._retry_connection = False

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, url: str, content: bytes, *, headers: tuple[tuple[str, str], ...]) -> bytes:
        answer_max = self._limits.facilitator_answer_bytes_max
        async with self._request("POST", url, headers=headers, content=content) as response:
            answer = await response.content.read(answer_max + 1)
            while len(answer) <= answer_max and (more := await response.content.read(answer_max)):
                answer += more
        if len(answer) > answer_max:
            raise ChainUnavailable("the facilitator answers at too great a length")
        return answer

    async def fetch_status(self, url: str, *, headers: tuple[tuple[str, str], ...]) -> int:
        async with self._request("GET", url, headers=headers) as response:
            return response.status

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, *, headers: tuple[tuple[str, str], ...], content: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "the line is not open"
        try:
            async with self._session.request(
                method, url, data=content, headers={**dict(headers), **_ACCEPT}, allow_redirects=False
            ) as response:
                if response.status >= _SERVER_ERROR:
                    raise ChainUnavailable("the facilitator has an error of its own")
                yield response
        except (aiohttp.ClientError, TimeoutError, asyncio.LimitOverrunError, ValueError) as exc:
            raise ChainUnavailable("the facilitator does not answer") from exc
