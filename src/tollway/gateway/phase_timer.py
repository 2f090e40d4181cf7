"""The phases of a paid call, timed.

A phase is a part of the time of a call: `read_head` (headers, listing, proof, price, body), `chain` (look-ups of the payment until it is recorded), `dial`, `claim`,
`upstream` (until the response head), then `settle` or `close`. A phase that did not happen is not observed; a phase in which the call failed is.
"""

from collections.abc import Callable, Mapping

from tollway.observability.call_trace import CallTrace, Span
from tollway.observability.metric_table import Phase


class PhaseTimer:
    """The time of each phase of one call. `clock`: monotonic seconds. `trace`: of a sampled call, which has a span for each phase.
    `upstream_span`: the span of the request to the upstream. `seconds`: of each phase, in their order; set by `end`.

    A call only notes when each phase begins; the times are computed once, at its end."""

    __slots__ = ("_clock", "_marks", "_trace", "seconds", "upstream_span")

    def __init__(self, clock: Callable[[], float], started_s: float, trace: CallTrace | None = None) -> None:
        self.upstream_span: Span | None = None
        self.seconds: dict[Phase, float] = {}
        self._trace = trace
        self._clock = clock
        self._marks: list[tuple[Phase | None, float]] = [("read_head", started_s)]

    def begin(self, phase: Phase) -> None:
        """Ends the current phase. A phase may begin several times; its times are added."""
        self._marks.append((phase, self._clock()))
        if self._trace is not None:
            self._begin_span(self._trace, phase)

    def end(self) -> None:
        """Ends the last phase. Without effect after the first time."""
        if self._marks[-1][0] is None:
            return
        self._marks.append((None, self._clock()))
        if self._trace is not None:
            self._trace.end()
        seconds: dict[Phase, float] = {}
        phase, since_s = self._marks[0]
        for following, at_s in self._marks[1:]:
            if phase is not None:
                seconds[phase] = seconds.get(phase, 0.0) + at_s - since_s
            phase, since_s = following, at_s
        self.seconds = seconds

    def _begin_span(self, trace: CallTrace, phase: Phase) -> None:
        name = _SPANS[phase]
        if name is None:
            trace.end()
        elif phase == "upstream":
            method, _, _ = trace.root.name.partition(" ")
            self.upstream_span = trace.begin(
                f"{method} {name}", kind="client", span_id=trace.upstream_span_id
            )
        else:
            trace.begin(name)


_SPANS: Mapping[Phase, str | None] = {
    "read_head": "tollway.price",
    "chain": None,
    "dial": "tollway.dial",
    "claim": "tollway.claim",
    "upstream": "upstream",
    "settle": "tollway.settle",
    "close": "tollway.close",
}
"""The span of a phase. The requests to chain nodes are spans themselves, so the phase `chain` has none."""
