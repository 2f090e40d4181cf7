"""What a sampled call learns about its commits: the batch that wrote it counts, and other entries are not looked at."""

from tests.observability.test_call_trace import Sink, start
from tollway.observability.call_trace import running_trace
from tollway.storage.ledger.commit_traces import CommitTraces

ENTRY, OTHER = "an entry", "another"


def test_the_batch_that_writes_an_entry_counts_and_not_one_that_hands_it_on() -> None:
    sink, traces = Sink(), CommitTraces()
    trace = start(sink)
    with running_trace(trace):
        trace.begin("tollway.claim")
        traces.add(ENTRY)
        traces.note_taken([OTHER, ENTRY], size=2)
        waited_us = trace.step.attributes["tollway.commit.wait_us"] if trace.step else None
        traces.note_taken([ENTRY], size=1)  # the writer, after a queue of plain claims
        traces.note_written(OTHER)
        traces.note_written(ENTRY)
        traces.remove(ENTRY)
        trace.begin("upstream")
        traces.note_taken([ENTRY], size=9)  # of no call any more
    (claim,) = [span for span in sink.traces[0].spans if span.name == "tollway.claim"]
    assert waited_us is not None
    assert claim.attributes.keys() == {
        "tollway.commit.entries",
        "tollway.commit.wait_us",
        "tollway.commit.write_us",
    }
    assert claim.attributes["tollway.commit.entries"] == 1


def test_an_entry_of_another_step_has_ids_for_the_log_and_no_attributes() -> None:
    sink, traces = Sink(), CommitTraces()
    trace = start(sink)
    with running_trace(trace):
        trace.begin("tollway.settle")
        traces.add(ENTRY)
        traces.note_taken([ENTRY], size=1)
        traces.note_written(ENTRY)
        assert traces.find_ids(ENTRY) == {"trace_id": trace.trace_id, "span_id": trace.root.span_id}
    assert sink.traces[0].spans[1].attributes == {}


def test_an_entry_of_no_sampled_call_is_not_kept() -> None:
    traces = CommitTraces()
    traces.add(ENTRY)
    traces.note_taken([ENTRY], size=1)
    traces.note_written(ENTRY)
    assert traces.find_ids(ENTRY) == {}
    assert traces._entries == {}
    traces.remove(ENTRY)
