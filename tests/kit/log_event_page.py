"""Writes `docs/log-events.md` from the catalogue in the code: `python -m tests.kit.log_event_page`."""

from pathlib import Path

from tollway.observability.log_events import GROUPS, LOG_EVENTS, LogEvent

PAGE = Path(__file__).parents[2] / "docs" / "log-events.md"

INTRODUCTION = f"""# Log events

Every line of the gateway's log is one of these {len(LOG_EVENTS)} events. A line in JSON has `timestamp`, `level` and `event`, `request_id` where a request caused it, and the
fields of the table that apply; a line about an error has `exception`. Passwords, tokens and signatures are masked. A line holds no query, no body, and no wallet unless
`log_wallets` is set.

`tollway_log_events_total{{level, event}}` counts the lines, so that an alert on an event needs no log store. `kill -USR1` of the process logs at `debug` for ten minutes, with
the `call_ended` of every paid call.

`python -m tests.kit.log_event_page` writes this page from the code.
"""


def write_page() -> str:
    parts = [INTRODUCTION]
    for title, rows in GROUPS:
        lines = ["| event | level | fields | what it means | what to do |", "|---|---|---|---|---|"]
        lines += [_write_row(row) for row in sorted(rows, key=lambda row: row.event)]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _write_row(row: LogEvent) -> str:
    fields = ", ".join(f"`{name}`" for name in row.fields)
    return f"| `{row.event}` | {', '.join(row.levels)} | {fields} | {row.meaning} | {row.action} |"


if __name__ == "__main__":
    PAGE.write_text(write_page())
