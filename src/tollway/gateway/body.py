"""The request body: read whole before the call, or streamed to the upstream, with or without a declared digest.

The last chunk of a streamed body with a declared digest is withheld until the digest matches, so the upstream gets no complete body
that the signature does not cover. The last byte of a body that an authorisation pays is withheld while the authorisation may expire
too early.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.gateway.messages import ProxyRequest, RequestBody
from tollway.ids import keccak256, start_keccak256
from tollway.limits import Limits
from tollway.per_call_record import per_call_record

EMPTY_BODY_HASH = keccak256(b"")


@dataclass(slots=True, kw_only=True)
class RunningHash:
    """The hash of a streamed body. `body_hash` is set after its last byte."""

    body_hash: bytes | None = None


@per_call_record
class ForwardBody:
    """A body to forward: its `content`, and its `length` where known. `body_hash` None: the body is streamed; `running` has the hash after
    the last byte, where the loader computes one. `is_discarded`: the body was too long to keep and cannot be sent."""

    content: bytes | AsyncIterator[bytes] | None
    length: int | None
    body_hash: bytes | None
    running: RunningHash = field(default_factory=RunningHash)
    is_discarded: bool = False

    @property
    def final_hash(self) -> bytes | None:
        return self.body_hash or self.running.body_hash


class HeldBody:
    """A body that has arrived whole, as a `RequestBody`: it can be loaded again. `incoming`: the body that the caller sent."""

    __slots__ = ("_incoming", "_unread", "bytes_read", "is_broken", "is_present", "length")

    def __init__(self, content: bytes, incoming: RequestBody) -> None:
        self._incoming = incoming
        self._unread = content
        self.bytes_read = incoming.bytes_read
        self.is_broken = False
        self.is_present = True
        self.length: int | None = len(content)

    async def read_chunk(self) -> bytes:
        chunk, self._unread = self._unread, b""
        return chunk

    def prove(self) -> None:
        self._incoming.prove()

    def reserve(self, size: int) -> None:
        """Without effect: the memory of the body was reserved as it arrived."""

    async def has_disconnected(self) -> bool:
        return await self._incoming.has_disconnected()


def hold_body(request: ProxyRequest, body: ForwardBody) -> ProxyRequest:
    """The same request with its loaded body in hand. A body that is still to be streamed stays as it is: nothing of it was read."""
    if not isinstance(body.content, bytes):
        return request
    return replace(request, body=HeldBody(body.content, request.body))


EMPTY_BODY = ForwardBody(content=None, length=0, body_hash=EMPTY_BODY_HASH)


def check_size(body: RequestBody, limits: Limits) -> Problem | None:
    """Refuses a declared length over the limit before the body is read or paid."""
    if body.length is not None and body.length > limits.upload_bytes_max:
        return too_large(limits.upload_bytes_max)
    return None


async def load_declared(body: RequestBody, declared_hash: bytes | None, *, limits: Limits) -> ForwardBody:
    """Loads a body that a signature covers: streamed where the hash is declared, else read whole first (at most 1 MiB).

    Raises ClientGone and Refusal from the body itself.
    """
    if not body.is_present:
        if declared_hash not in (None, EMPTY_BODY_HASH):
            raise Refusal(_mismatch())
        return EMPTY_BODY
    if declared_hash is None:
        whole = await _read_whole(body, limits.bound_body_bytes_max)
        if whole is None:
            detail = f"must name bodyHash when the body is longer than {limits.bound_body_bytes_max} bytes"
            problem = Problem(
                code=Code.PAYLOAD_TOO_LARGE,
                detail=f"X-Signature-Params {detail}.",
                errors=(
                    FieldError(code="body_hash_required", detail=detail, parameter="X-Signature-Params"),
                ),
                payment_state="none",
            )
            raise Refusal(problem)
        return ForwardBody(content=whole, length=len(whole), body_hash=keccak256(whole))
    if body.length is not None and body.length <= limits.buffer_bytes:
        whole = await _read_whole(body, limits.buffer_bytes)
        if whole is None or keccak256(whole) != declared_hash:
            raise Refusal(_mismatch())
        return ForwardBody(content=whole, length=len(whole), body_hash=declared_hash)
    return ForwardBody(
        content=_stream_declared(body, declared_hash, limits.upload_bytes_max),
        length=body.length,
        body_hash=declared_hash,
    )


async def load_plain(body: RequestBody, *, limits: Limits) -> ForwardBody:
    """Loads a body that no signature covers: read whole first where it is small, else streamed."""
    if not body.is_present:
        return EMPTY_BODY
    if body.length is not None and body.length <= limits.buffer_bytes:
        whole = await _read_whole(body, limits.buffer_bytes)
        assert whole is not None  # the server enforces the declared length
        return ForwardBody(content=whole, length=len(whole), body_hash=keccak256(whole))
    return ForwardBody(content=_stream(body, limits.upload_bytes_max), length=body.length, body_hash=None)


async def load_hashed(
    body: RequestBody, *, is_whole: bool, limits: Limits, is_late: Callable[[], bool] = lambda: False
) -> ForwardBody:
    """Loads the body of a call that an authorisation pays: read whole first where it is small, else streamed and hashed.

    `is_whole`: reads a body of any length first (at most 1 MiB), because it may be compared with the body of an earlier call.
    `is_late`: whether the authorisation may expire before the settlement. The upstream never gets the last byte of a late stream.
    """
    if not body.is_present:
        return EMPTY_BODY
    if is_whole:
        whole = await _read_whole(body, limits.bound_body_bytes_max)
        if whole is None:
            raise Refusal(too_large(limits.bound_body_bytes_max))
        return ForwardBody(content=whole, length=len(whole), body_hash=keccak256(whole))
    if body.length is not None and body.length <= limits.buffer_bytes:
        return await load_plain(body, limits=limits)
    running = RunningHash()
    return ForwardBody(
        content=_stream_hashed(body, running, limits.upload_bytes_max, is_late),
        length=body.length,
        body_hash=None,
        running=running,
    )


async def load_compared(body: RequestBody, *, limits: Limits) -> ForwardBody:
    """Loads the body of a repeated call: hashed to its end, so that a repeat of any length is recognised. Only a small body (at most
    1 MiB) is kept. Raises Refusal for a body over the upload limit."""
    if not body.is_present:
        return EMPTY_BODY
    digest = start_keccak256()
    kept: bytearray | None = bytearray()
    size = 0
    async for chunk in _stream(body, limits.upload_bytes_max):
        digest.update(chunk)
        size += len(chunk)
        if size > limits.bound_body_bytes_max:
            kept = None
        elif kept is not None:
            body.reserve(len(chunk))
            kept += chunk
    content = None if kept is None else bytes(kept)
    return ForwardBody(content=content, length=size, body_hash=digest.digest(), is_discarded=kept is None)


async def _read_whole(body: RequestBody, bytes_max: int) -> bytes | None:
    chunks: list[bytes] = []
    size = 0
    while chunk := await body.read_chunk():
        size += len(chunk)
        if size > bytes_max:
            return None
        body.reserve(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def _stream(body: RequestBody, bytes_max: int) -> AsyncIterator[bytes]:
    size = 0
    while chunk := await body.read_chunk():
        size += len(chunk)
        if size > bytes_max:
            raise Refusal(too_large(bytes_max))
        yield chunk


async def _stream_hashed(
    body: RequestBody, running: RunningHash, bytes_max: int, is_late: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yields all received bytes but the last one at once: some upstreams respond while they read."""
    digest = start_keccak256()
    withheld = b""
    async for chunk in _stream(body, bytes_max):
        digest.update(chunk)
        if is_late():
            raise Refusal(_TOO_LATE)
        passed, withheld = withheld + chunk[:-1], chunk[-1:]
        if passed:
            yield passed
    if is_late():
        raise Refusal(_TOO_LATE)
    running.body_hash = digest.digest()
    if withheld:
        yield withheld


async def _stream_declared(body: RequestBody, declared_hash: bytes, bytes_max: int) -> AsyncIterator[bytes]:
    digest = start_keccak256()
    withheld = b""
    async for chunk in _stream(body, bytes_max):
        digest.update(chunk)
        if withheld:
            yield withheld
        withheld = chunk
    if digest.digest() != declared_hash:
        raise Refusal(_mismatch())
    if withheld:
        yield withheld


def too_large(bytes_max: int) -> Problem:
    return Problem(
        code=Code.PAYLOAD_TOO_LARGE,
        detail=f"The body is longer than {bytes_max} bytes. Send a smaller one.",
        payment_state="none",
    )


def _mismatch() -> Problem:
    return Problem(
        code=Code.INVALID_REQUEST,
        detail="The body does not match the bodyHash in X-Signature-Params. Sign the hash of the body that you send.",
        reason="body_hash_mismatch",
        errors=(
            FieldError(
                code="body_hash_mismatch",
                detail="is not the keccak-256 of the body",
                parameter="X-Signature-Params",
            ),
        ),
        payment_state="none",
    )


# Not a 402: an automatic client would sign another authorisation, as short as this one, for the same upload.
_TOO_LATE = Problem(
    code=Code.INVALID_REQUEST,
    detail="The body arrived so slowly that its authorisation could have expired before the settlement, so the call was stopped and "
    "nothing was charged. Send the body faster, or sign an authorisation with a later validBefore.",
    reason="authorization_outlived",
)
