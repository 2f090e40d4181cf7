"""The sender of webhooks: the loop of the gateway that delivers. It never runs in the task of a request.

Each round copies new events to their endpoints, then begins what is due: challenges, and one message for each origin. An origin gets one request
in `webhook_origin_interval_s` and one at a time, so a slow receiver delays its own messages only. What a killed gateway has begun is begun
again by the next one, with the same id and the same bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tollway.background import BackgroundTask, TaskName, describe_failure, run_contained
from tollway.limits import Limits
from tollway.webhooks.endpoints import Attempt, DueChallenge, DueEndpoint, Outbox
from tollway.webhooks.messages import (
    CONTENT_TYPE,
    ID_FIELD,
    SIGNATURE_FIELD,
    TIMESTAMP_FIELD,
    challenge_body,
    is_echo,
    sign_standard,
)
from tollway.webhooks.schedule import Response, find_next_attempt, find_next_challenge

CHALLENGES_AT_ONCE = 64
PRUNE_INTERVAL_S = 60.0
RESUME_INTERVAL_S = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What a message is signed over: its URL, its id, its body, and the time of this attempt."""

    url: str
    message_id: str
    timestamp_s: int
    body: bytes


class SignMessage(Protocol):
    """Signs a message by RFC 9421. Returns the headers to add; `headers` are those that it covers."""

    def __call__(self, message: Delivered, headers: Mapping[str, str]) -> list[tuple[str, str]]: ...


class PostMessage(Protocol):
    """Sends one POST under the outbound policy, without redirects, and reads at most `bytes_max` of the body. Never raises for a receiver."""

    def __call__(
        self, url: str, *, headers: list[tuple[str, str]], body: bytes, bytes_max: int, deadline_s: float
    ) -> Awaitable[Response]: ...


class WebhookSender:
    """The delivery of all endpoints, for the one gateway that leads. `now_ms`: the shared time. `clock`: monotonic seconds. `draw`: a random number
    from 0 to 1. `make_id`: a new id of a message."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        post: PostMessage,
        sign: SignMessage,
        limits: Limits,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        draw: Callable[[], float],
        make_id: Callable[[], str],
        format_time: Callable[[int], str],
        task: BackgroundTask | None = None,
    ) -> None:
        self._outbox = outbox
        self._post = post
        self._sign = sign
        self._limits = limits
        self._now_ms = now_ms
        self._clock = clock
        self._draw = draw
        self._make_id = make_id
        self._format_time = format_time
        self._task = task or BackgroundTask(TaskName.WEBHOOK_DELIVERY)
        self._begun_s: dict[str, float] = {}
        self._busy: set[str] = set()
        self._challenged: set[str] = set()
        self._pruned_s = self._resumed_s = clock()

    async def run(self) -> None:
        """Delivers until cancelled. A failed round does not end it."""
        async with asyncio.TaskGroup() as group:
            while True:
                failure = await run_contained(lambda: self._begin_round(group.create_task))
                if failure is None:
                    self._task.record_success()
                else:
                    self._task.record_failure(failure)
                await self._task.pause(self._limits.webhook_poll_s)

    async def run_once(self) -> None:
        """One round, to the end of its attempts."""
        async with asyncio.TaskGroup() as group:
            await self._begin_round(group.create_task)

    async def _begin_round(self, start: Callable[[Coroutine[None, None, None]], object]) -> None:
        outbox, limits = self._outbox, self._limits
        now_ms = self._now_ms()
        if not await outbox.has_work(now_ms=now_ms):
            await self._maintain(now_ms)
            return
        # None is copied while another gateway holds them.
        while await outbox.spread_events():
            pass
        challenges = await outbox.find_challenges(now_ms=now_ms, limit=CHALLENGES_AT_ONCE)
        messages = await outbox.find_due(now_ms=now_ms, limit=4 * limits.webhook_in_flight_max)
        # An origin takes turns between challenges and messages: endpoints that a stranger registers there do not hold up its messages.
        first = [one for one in challenges if one.origin not in self._challenged]
        turns: list[DueChallenge | DueEndpoint] = [*first, *messages, *challenges]
        for due in turns:
            if not self._take(due.origin):
                continue
            if isinstance(due, DueChallenge):
                self._challenged.add(due.origin)
                start(self._run(due.origin, self._challenge(due)))
            else:
                self._challenged.discard(due.origin)
                start(self._run(due.origin, self._deliver(due)))
        await self._maintain(now_ms)

    async def _maintain(self, now_ms: int) -> None:
        now_s = self._clock()
        if now_s - self._resumed_s >= RESUME_INTERVAL_S:
            self._resumed_s = now_s
            await self._outbox.resume_stopped(now_ms=now_ms)
        if now_s - self._pruned_s >= PRUNE_INTERVAL_S:
            self._pruned_s = now_s
            await self._outbox.prune(now_ms=now_ms)
            interval_s = self._limits.webhook_origin_interval_s
            self._begun_s = {
                origin: begun_s for origin, begun_s in self._begun_s.items() if now_s - begun_s < interval_s
            }
            self._challenged &= set(self._begun_s)

    def _take(self, origin: str) -> bool:
        """Takes the turn of an origin. False while a request to it runs, or had begun less than the interval ago, or too many requests run."""
        now_s = self._clock()
        begun_s = self._begun_s.get(origin)
        is_early = begun_s is not None and now_s - begun_s < self._limits.webhook_origin_interval_s
        if is_early or origin in self._busy or len(self._busy) >= self._limits.webhook_in_flight_max:
            return False
        self._busy.add(origin)
        self._begun_s[origin] = now_s
        return True

    async def _run(self, origin: str, job: Coroutine[None, None, None]) -> None:
        """Runs one attempt. A failure of the database is logged; the attempt is begun again later."""
        try:
            await job
        except Exception as exc:  # noqa: BLE001 - a child of the sender's group: the next attempts go on
            _log.warning("webhook_attempt_failed", origin=origin, **describe_failure(exc))
        finally:
            self._busy.discard(origin)

    async def _deliver(self, due: DueEndpoint) -> None:
        now_ms = self._now_ms()
        attempt = await self._outbox.begin_attempt(due.endpoint_id, now_ms=now_ms)
        if attempt is None:
            return
        response = await self._send(
            attempt.url, attempt.message_id, attempt.body.encode(), attempt.secret, bytes_max=0
        )
        await self._record(attempt, response)

    async def _record(self, attempt: Attempt, response: Response) -> None:
        now_ms = self._now_ms()
        next_ms = None
        if not (response.is_success or response.is_gone):
            next_ms = find_next_attempt(
                attempt.attempts,
                first_ms=attempt.first_ms,
                now_ms=now_ms,
                draw=self._draw,
                retry_after=response.retry_after,
            )
        if next_ms is None and not response.is_success:
            _log.info("webhook_dead", endpoint=attempt.endpoint_id, message=attempt.message_id)
        await self._outbox.end_attempt(attempt, response, next_ms=next_ms, now_ms=now_ms)

    async def _challenge(self, challenge: DueChallenge) -> None:
        at = self._format_time(self._now_ms())
        body = challenge_body(endpoint_id=challenge.endpoint_id, challenge=challenge.challenge, at=at)
        response = await self._send(
            challenge.url,
            self._make_id(),
            body.encode(),
            challenge.secret,
            bytes_max=self._limits.webhook_answer_bytes_max,
        )
        now_ms = self._now_ms()
        await self._outbox.end_challenge(
            challenge,
            is_echoed=response.is_success and is_echo(response.body, challenge.challenge),
            next_ms=find_next_challenge(challenge.tries + 1, now_ms=now_ms),
            now_ms=now_ms,
        )

    async def _send(
        self, url: str, message_id: str, body: bytes, secret: bytes | None, *, bytes_max: int
    ) -> Response:
        """Signs and sends one attempt: timestamp, nonce and signatures are new each time."""
        timestamp_s = self._now_ms() // 1000
        headers = {"Content-Type": CONTENT_TYPE, ID_FIELD: message_id, TIMESTAMP_FIELD: str(timestamp_s)}
        message = Delivered(url=url, message_id=message_id, timestamp_s=timestamp_s, body=body)
        signed = self._sign(message, headers)
        if secret is not None:
            value = sign_standard(secret, message_id=message_id, timestamp_s=timestamp_s, body=body)
            signed.append((SIGNATURE_FIELD, value))
        return await self._post(
            url,
            headers=[*headers.items(), *signed],
            body=body,
            bytes_max=bytes_max,
            deadline_s=self._limits.webhook_deadline_s,
        )
