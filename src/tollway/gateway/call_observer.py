"""Observes how paid calls end: the time of each phase as a metric, and one log line for a call, `call_ended`.

A phase is a part of the time of a call: `door` (headers, listing, proof, price, body), `chain` (look-ups of the payment until it is recorded), `dial`, `claim`,
`upstream` (until the response head), then `settle` or `close`. A phase that did not happen is not observed; a phase in which the call failed is.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import structlog

from tollway.call_trace import CallTrace
from tollway.errors import Code, TollwayError
from tollway.gateway.messages import CallRefused, ClientGone, ProxyResponse
from tollway.metric_table import PHASES, Phase
from tollway.plain_metrics import PlainHistogram, PlainHistograms

if TYPE_CHECKING:
    from tollway.gateway.rail import CallPayment

CallLog = Literal["all", "failures", "off"]

_log = structlog.get_logger(__name__)

_EXPECTED = frozenset({"charged", "repeated"})


class PhaseTimer:
    """The time of each phase of one call. `clock`: monotonic seconds. `trace`: of a sampled call, which has a span for each phase.

    A call only notes when each phase begins; the times are computed once, at its end."""

    __slots__ = ("_clock", "_marks", "_trace")

    def __init__(self, clock: Callable[[], float], started_s: float, trace: CallTrace | None = None) -> None:
        self._trace = trace
        self._clock = clock
        self._marks: list[tuple[Phase | None, float]] = [("door", started_s)]

    def begin(self, phase: Phase) -> None:
        """Ends the current phase. A phase may begin several times; its times are added."""
        self._marks.append((phase, self._clock()))
        if self._trace is not None:
            begin_step(self._trace, phase)

    def end(self) -> None:
        """Ends the last phase. Without effect after the first time."""
        if self._marks[-1][0] is not None:
            self._marks.append((None, self._clock()))
            if self._trace is not None:
                self._trace.end()

    @property
    def seconds(self) -> dict[Phase, float]:
        """The seconds of the phases that have ended, in their order."""
        seconds: dict[Phase, float] = {}
        phase, since_s = self._marks[0]
        for following, at_s in self._marks[1:]:
            if phase is not None:
                seconds[phase] = seconds.get(phase, 0.0) + at_s - since_s
            phase, since_s = following, at_s
        return seconds


_STEPS: Mapping[Phase, str | None] = {
    "door": "tollway.price",
    "chain": None,
    "dial": "tollway.dial",
    "claim": "tollway.claim",
    "upstream": "upstream",
    "settle": "tollway.settle",
    "close": "tollway.close",
}
"""The span of a phase. The requests to chain nodes are spans themselves, so the phase `chain` has none."""


def begin_step(trace: CallTrace, phase: Phase) -> None:
    name = _STEPS[phase]
    if name is None:
        trace.end()
    elif phase == "upstream":
        method, _, _ = trace.root.name.partition(" ")
        trace.begin(f"{method} {name}", kind="client", span_id=trace.upstream_span_id)
    else:
        trace.begin(name)


class CallObserver:
    """The observer of all calls of a process. `is_debug`: whether the log is at `debug` now; every call has its line then."""

    def __init__(
        self,
        call_seconds: PlainHistograms,
        *,
        call_log: CallLog,
        log_wallets: bool,
        status_of: Callable[[Code], int],
        is_debug: Callable[[], bool] = lambda: False,
    ) -> None:
        self._call_seconds = call_seconds
        self._histograms: dict[str, dict[Phase, PlainHistogram]] = {}
        self._call_log = call_log
        self._log_wallets = log_wallets
        self._status_of = status_of
        self._is_debug = is_debug

    def record(
        self, payment: "CallPayment", *, response: ProxyResponse | None, error: BaseException | None
    ) -> None:
        """Records the end of one call, before its body streams: with a response of the upstream or a stored one, or with an error."""
        timer = payment.active
        timer.end()
        rail = payment.rail_name
        histograms = self._histograms.get(rail)
        if histograms is None:
            find = self._call_seconds.find
            histograms = self._histograms[rail] = {phase: find(rail, phase) for phase in PHASES}
        spent = timer.seconds
        for phase, seconds in spent.items():
            histograms[phase].observe(seconds)
        trace = payment.request.trace
        if trace is not None:
            _describe(trace, payment, name_outcome(payment, response, error))
            for phase, seconds in spent.items():
                histograms[phase].set_exemplar(seconds, trace_id=trace.trace_id, at_s=trace.now_ns() / 1e9)
        if not payment.is_verified or payment.asset is None:
            return  # free, or nothing is proved: such requests must not fill the log
        outcome = name_outcome(payment, response, error)
        if outcome not in _EXPECTED:
            if self._call_log != "off":
                self._write(payment, rail, outcome, response, error)
        elif self._call_log == "all" or self._is_debug():
            self._write(payment, rail, outcome, response, error)

    def _write(
        self,
        payment: "CallPayment",
        rail: str,
        outcome: str,
        response: ProxyResponse | None,
        error: BaseException | None,
    ) -> None:
        asset, code = payment.asset, error.problem.code if isinstance(error, TollwayError) else None
        fields: dict[str, object] = {
            "call_id": payment.call_id,
            "request_id": payment.request.request_id,
            "listing_id": payment.route.listing.id,
            "rail": rail,
            "network": None if asset is None else asset.network,
            "outcome": outcome,
            "status": self._find_status(response, code),
            "upstream_status": payment.upstream_status,
            "price": payment.price.text,
            "currency": payment.currency,
            "ms": {phase: round(s * 1000, 2) for phase, s in payment.active.seconds.items()},
            "attempts": 0 if payment.claimed is None else payment.claimed.epoch,
        }
        if code is not None:
            fields["code"] = code.value
        if self._log_wallets and payment.payer is not None:
            fields["payer"] = str(payment.payer)
        if outcome == "held":
            _log.warning("call_ended", **fields)
        elif outcome in _EXPECTED and self._call_log != "all":
            _log.debug("call_ended", **fields)
        else:
            _log.info("call_ended", **fields)

    def _find_status(self, response: ProxyResponse | None, code: Code | None) -> int | None:
        if response is not None:
            return response.status
        return None if code is None else self._status_of(code)


def _describe(trace: CallTrace, payment: "CallPayment", outcome: str) -> None:
    """What the root span says about the call. No wallet, and no path."""
    root = trace.root
    root.set("tollway.call.id", payment.call_id)
    root.set("tollway.rail", str(payment.rail_name))
    root.set("tollway.outcome", outcome)
    if payment.asset is not None:
        root.set("tollway.network", payment.asset.network)


def name_outcome(payment: "CallPayment", response: ProxyResponse | None, error: BaseException | None) -> str:
    """`charged`, `released` or `held`; `repeated` for a stored response; `abandoned` where the caller left; `refused` before a claim; `failed` for a defect."""
    if response is not None:
        return response.payment_state or "repeated"
    if isinstance(error, ClientGone):
        return "abandoned" if payment.claimed is None else error.payment_state
    if not isinstance(error, TollwayError):
        return "failed"
    if payment.claimed is None and not _is_in_doubt(error):
        return "refused"
    return error.problem.payment_state or "refused"


def _is_in_doubt(error: TollwayError) -> bool:
    """Whether the claim itself failed in storage, so that the price may be held until recovery."""
    return isinstance(error, CallRefused) and error.problem.payment_state == "held"
