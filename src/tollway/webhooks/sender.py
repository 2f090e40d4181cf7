"""The sender of webhooks: the loop of the gateway that delivers. It never runs in the task of a request.

Each round gives new events to their endpoints, then begins what is due, in the order of the turns of wallets and endpoints, while `slots` has room for
it: challenges and messages. So a receiver that is slow or silent delays its own messages only. What a killed gateway has begun is
begun again by the next one, with the same id and the same bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tollway.ids import Address
from tollway.limits import Limits
from tollway.observability.background import BackgroundTask, TaskName, describe_failure, run_contained
from tollway.webhooks.endpoints import Attempt, DueChallenge, DueEndpoint, Outbox
from tollway.webhooks.messages import (
    CONTENT_TYPE,
    ID_FIELD,
    SIGNATURE_FIELD,
    TIMESTAMP_FIELD,
    Echo,
    Recipient,
    challenge_body,
    read_echo,
    sign_standard,
)
from tollway.webhooks.schedule import Response, find_next_attempt, find_next_challenge
from tollway.webhooks.slots import SendingSlots

SPREADS_MAX = 20
"""Transactions of one round that give new events to their endpoints: 1,000 events. Challenges and messages have their turn after them."""
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
        self._slots = SendingSlots(limits=limits, clock=clock)
        self._after: dict[type[DueEndpoint], Address] = {}
        self._challenged: dict[str, float] = {}
        self._pruned_s = self._resumed_s = clock()

    async def run(self) -> None:
        """Delivers until cancelled. A failed round does not end it."""
        async with asyncio.TaskGroup() as group:
            while True:
                failure = await run_contained(lambda: self.begin_round(group.create_task))
                if failure is None:
                    self._task.record_success()
                else:
                    self._task.record_failure(failure)
                await self._task.pause(self._limits.webhook_poll_s)

    async def run_once(self) -> None:
        """Returns after the end of its attempts."""
        async with asyncio.TaskGroup() as group:
            await self.begin_round(group.create_task)

    async def begin_round(self, start: Callable[[Coroutine[None, None, None]], object]) -> None:
        """Begins the attempts of one round. `start`: runs an attempt as a task."""
        outbox = self._outbox
        now_ms = self._now_ms()
        if not await outbox.has_work(now_ms=now_ms):
            await self._maintain(now_ms)
            return
        for _ in range(SPREADS_MAX):
            # None is given while another gateway holds them.
            if not await outbox.spread_events():
                break
            # Other writers of this gateway have their turn between two transactions.
            await asyncio.sleep(0)
        for due in await self._find_turns(now_ms):
            if not self._slots.take(due):
                continue
            if isinstance(due, DueChallenge):
                self._challenged[due.origin] = self._clock()
                start(self._run(due, self._challenge(due)))
            else:
                self._challenged.pop(due.origin, None)
                start(self._run(due, self._deliver(due)))
            self._after[type(due)] = due.wallet
        await self._maintain(now_ms)

    async def _find_turns(self, now_ms: int) -> list[DueChallenge | DueEndpoint]:
        """The order of attempts. An origin takes turns between challenges and messages: endpoints of a stranger there do not hold up its messages."""
        limit = 4 * self._limits.webhook_in_flight_max
        if self._slots.is_full:
            return []
        challenges = await self._outbox.find_challenges(
            now_ms=now_ms, limit=limit, taken=self._slots.list_taken(after=self._after.get(DueChallenge))
        )
        messages = await self._outbox.find_due(
            now_ms=now_ms, limit=limit, taken=self._slots.list_taken(after=self._after.get(DueEndpoint))
        )
        first = [one for one in challenges if one.origin not in self._challenged]
        return [*first, *messages, *challenges]

    async def _maintain(self, now_ms: int) -> None:
        now_s = self._clock()
        if now_s - self._resumed_s >= RESUME_INTERVAL_S:
            self._resumed_s = now_s
            await self._outbox.resume_stopped(now_ms=now_ms)
        if now_s - self._pruned_s >= PRUNE_INTERVAL_S:
            self._pruned_s = now_s
            await self._outbox.prune(now_ms=now_ms)
            self._slots.forget_idle()
            self._challenged = {
                origin: begun_s
                for origin, begun_s in self._challenged.items()
                if now_s - begun_s < PRUNE_INTERVAL_S
            }

    async def _run(self, due: DueEndpoint, job: Coroutine[None, None, Response | None]) -> None:
        """Runs one attempt. A failure of the database is logged; the attempt is begun again later."""
        response = None
        try:
            response = await job
        except Exception as exc:  # noqa: BLE001 - a child of the sender's group: the next attempts go on
            _log.warning("webhook_attempt_failed", origin=due.origin, **describe_failure(exc))
        finally:
            self._slots.free(due, has_responded=response is not None and response.status is not None)

    async def _deliver(self, due: DueEndpoint) -> Response | None:
        now_ms = self._now_ms()
        attempt = await self._outbox.begin_attempt(due.endpoint_id, now_ms=now_ms)
        if attempt is None:
            return None
        response = await self._send(
            attempt.url, attempt.message_id, attempt.body.encode(), attempt.secret, bytes_max=0
        )
        await self._record(attempt, response)
        return response

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

    async def _challenge(self, due: DueChallenge) -> Response:
        sent_ms = self._now_ms()
        at = self._format_time(sent_ms)
        to = Recipient(endpoint_id=due.endpoint_id, wallet=due.wallet)
        response = await self._send(
            due.url,
            self._make_id(),
            challenge_body(to=to, challenge=due.challenge, at=at).encode(),
            due.secret,
            bytes_max=self._limits.webhook_response_bytes_max,
        )
        echo = Echo.NONE
        if response.is_success:
            echo = read_echo(response.body, challenge=due.challenge, wallet=due.wallet)
        now_ms = self._now_ms()
        await self._outbox.end_challenge(
            due,
            response,
            echo=echo,
            sent_ms=sent_ms,
            next_ms=find_next_challenge(due.tries + 1, now_ms=now_ms),
            now_ms=now_ms,
        )
        return response

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
