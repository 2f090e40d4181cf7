"""Observes how paid calls end: the time of each phase as a metric, and one log line for a call, `call_ended`."""

from collections.abc import Callable
from typing import Literal

import structlog

from tollway.errors import Code, TollwayError
from tollway.gateway.messages import CallRefused, ClientGone, ProxyResponse
from tollway.gateway.rail import CallPayment
from tollway.observability.call_trace import CallTrace
from tollway.observability.metric_table import PHASES, Phase
from tollway.observability.plain_metrics import PlainHistogram, PlainHistograms

CallLog = Literal["all", "failures", "off"]

_log = structlog.get_logger(__name__)

_EXPECTED = frozenset({"charged", "repeated"})


class CallObserver:
    """The observer of all calls of a process. `is_debug`: the log is at `debug` now, so every call has its line."""

    def __init__(
        self,
        call_seconds: PlainHistograms,
        *,
        call_log: CallLog,
        log_wallets: bool,
        status_of: Callable[[Code], int],
    ) -> None:
        self._call_seconds = call_seconds
        self._histograms: dict[str, dict[Phase, PlainHistogram]] = {}
        self._call_log = call_log
        self._log_wallets = log_wallets
        self._status_of = status_of
        self.is_debug = False

    def record(
        self, payment: CallPayment, *, response: ProxyResponse | None, error: BaseException | None
    ) -> None:
        """Records the end of one call, before its body streams: with a response of the upstream or a stored one, or with an error.
        A response is `charged`, `released` or `held`, or `repeated` where it is a stored one."""
        outcome = (response.payment_state or "repeated") if response else name_failure(payment, error)
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
            _describe(trace, payment, outcome)
            for phase, seconds in spent.items():
                histograms[phase].set_exemplar(seconds, trace_id=trace.trace_id, at_s=trace.now_ns() / 1e9)
        if not payment.is_verified or payment.asset is None:
            return  # free, or nothing is proved: such requests must not fill the log
        if outcome not in _EXPECTED:
            if self._call_log != "off":
                self._write(payment, rail, outcome, response, error)
        elif self._call_log == "all" or self.is_debug:
            self._write(payment, rail, outcome, response, error)

    def _write(
        self,
        payment: CallPayment,
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
            "price": payment.price.text
            if payment.actual_units is None or asset is None
            else asset.format_units(payment.actual_units),
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


def _describe(trace: CallTrace, payment: CallPayment, outcome: str) -> None:
    """Writes what the root span and the span of the upstream say about the call. No wallet, and no path."""
    upstream = payment.active.upstream_span
    if upstream is not None:
        upstream.set("server.address", payment.route.endpoint.host)
        upstream.set("http.response.status_code", payment.upstream_status)
        upstream.is_error = payment.upstream_status is None
    root = trace.root
    root.set("tollway.call.id", payment.call_id)
    root.set("tollway.rail", str(payment.rail_name))
    root.set("tollway.outcome", outcome)
    if payment.asset is not None:
        root.set("tollway.network", payment.asset.network)


def name_failure(payment: CallPayment, error: BaseException | None) -> str:
    """The outcome of a call without a response: `released` or `held`; `abandoned` where the caller left; `refused` before a claim; `failed` for a
    defect."""
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
