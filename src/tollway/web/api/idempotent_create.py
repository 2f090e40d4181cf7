"""The `Idempotency-Key` of `POST /apis`: one request creates, repeats get the response of that request.

`Catalog.publish_once` writes key, listing and response in one transaction.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from hashlib import sha256
from typing import assert_never

from starlette.requests import Request
from starlette.responses import Response

from tollway.errors import Code, FieldError, Problem, Refusal, StorageUnavailable, describe_rate, refuse
from tollway.ids import IDEMPOTENCY_KEY_MAX, Address, is_idempotency_key, read_idempotency_key
from tollway.limits import Limits
from tollway.registry.catalog import (
    CREATION_KEY_TTL_S,
    CreationBegun,
    CreationInProgress,
    CreationResponse,
    Creations,
    KeyedCreation,
    OtherRequest,
    TooManyKeys,
)
from tollway.web.http.problems import CREATED

CLAIM_BYTES = 16


class IdempotentCreate:
    """The idempotency of creates. Safe to call from many tasks at once."""

    def __init__(self, creations: Creations, *, limits: Limits, entropy: Callable[[int], bytes]) -> None:
        self._creations = creations
        self._limits = limits
        self._entropy = entropy

    async def begin(self, request: Request, wallet: Address) -> CreationBegun | Response | None:
        """Takes the key of the request. Returns its lease, or the stored response of the first request, or None for a request
        without a key. Raises Refusal as `take` does."""
        key = read_creation_key(request)
        if key is None:
            return None
        known = await self.take(key, wallet, body=await request.body())
        return _replay(known) if isinstance(known, CreationResponse) else known

    async def take(self, key: str, wallet: Address, *, body: bytes) -> CreationBegun | CreationResponse:
        """Takes a key. Returns its lease, or the response of the first request. Raises Refusal when the same request is running, or when the key was
        used with another body."""
        keyed = KeyedCreation(wallet=wallet, key=key, fingerprint=sha256(body).digest())
        known = await self._creations.begin(keyed, claim=self._entropy(CLAIM_BYTES))
        match known:
            case CreationBegun() | CreationResponse():
                return known
            case CreationInProgress(wait_s=wait_s):
                raise Refusal(_in_progress(wait_s))
            case OtherRequest():
                raise Refusal(_KEY_REUSED)
            case TooManyKeys():
                raise Refusal(self._too_many())
            case never:
                assert_never(never)

    @contextlib.asynccontextmanager
    async def holding(self, begun: CreationBegun | None) -> AsyncIterator[None]:
        """Frees the key when the creation fails. If that fails too, or the process dies, the key is free when its lease ends."""
        try:
            yield
        except BaseException:
            if begun is not None:
                with contextlib.suppress(StorageUnavailable):
                    await self._creations.release(begun)
            raise

    def keep(self, answer: CreationResponse) -> CreationResponse:
        """The response to store; a long one without its body."""
        most = min(self._limits.response_bytes_max, self._limits.creation_responses_bytes_max)
        is_short = answer.body is not None and len(answer.body) <= most
        return answer if is_short else replace(answer, body=None)

    def _too_many(self) -> Problem:
        most, window_s = self._limits.creation_keys_max, CREATION_KEY_TTL_S
        return Problem(
            code=Code.RATE_LIMITED,
            detail=f"A wallet may use {most} Idempotency-Keys in {window_s // 3600} hours. Send the request later, or without a key.",
            retry_after_s=3600,
            members=describe_rate("creation-keys", limit=most, window_s=window_s),
        )


def read_creation_key(request: Request) -> str | None:
    """The key of the request, by the rule of gateway calls; None without one. The check of the request head has refused a second
    value and invalid UTF-8. Raises Refusal for a malformed key."""
    name = b"idempotency-key"
    given = next((value for key, value in request.headers.raw if key == name), None)
    if given is None:
        return None
    key = read_idempotency_key(given)
    if is_idempotency_key(key):
        return key
    detail = f"must have 1 to {IDEMPOTENCY_KEY_MAX} characters, none of them NUL"
    error = FieldError(code="malformed", detail=detail, parameter="Idempotency-Key")
    raise refuse(code=Code.INVALID_REQUEST, detail=f"Idempotency-Key {detail}.", errors=(error,))


def lost_key_refusal() -> Refusal:
    """The refusal of a creation that took longer than its lease: a repeat holds the key now. This request created nothing."""
    return Refusal(_in_progress(None))


def _replay(answer: CreationResponse) -> Response:
    if answer.body is None:
        detail = "The listing was created with this key, but its response is not stored. Read the listing at `location`."
        members = {"apiId": answer.listing_id, "location": answer.location}
        raise refuse(code=Code.ALREADY_EXISTS, detail=detail, members=members)
    headers = {
        "Location": answer.location,
        "ETag": answer.etag,
        "Idempotency-Replayed": "true",
    }
    return Response(answer.body, status_code=CREATED, media_type="application/json", headers=headers)


def _in_progress(wait_s: int | None) -> Problem:
    detail = "A request with this Idempotency-Key is running. Repeat the request after Retry-After to get its response."
    return Problem(code=Code.IDEMPOTENCY_IN_PROGRESS, detail=detail, retry_after_s=wait_s)


_KEY_REUSED = Problem(
    code=Code.IDEMPOTENCY_KEY_REUSED,
    detail="This wallet has used the Idempotency-Key with another body. Nothing was created: use a new key.",
)
