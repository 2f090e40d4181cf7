"""The table of outcomes as cases: what is done to a call at which point, and what is found then. The texts are the rows of
the table; `test_points.py` holds each of them against real gateways. Loaded by `conftest.py`.

Of what fails before anything is sent only a refused connect stands here: names, policy, TLS and a connect that hangs are in
`tests/outbound/test_client.py`, which calls them unreachable alike.
"""

from dataclasses import dataclass, replace
from typing import Any

ORDER = b'{"order": 1}'
UPLOAD = bytes(128 * 1024)
"""So much is not read ahead."""
SENT_BYTES = 32 * 1024

Reply = tuple[int, str | None]
SERVED: Reply = (200, None)
USED: Reply = (409, "payment_already_used")
RUNNING: Reply = (409, "idempotency_in_progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table. `act`, `halt`: what the upstream does, and the point where the gateway halts. `sends`:
    how much of the body. `told`: the response of the caller, None for none; `is_cut`: it is incomplete. `state`: of
    the payment, None: no record. `seen`: whole requests at the upstream, before and after the same request is sent
    again."""

    text: str
    act: str = "echo"
    halt: str = ""
    method: str = "GET"
    is_keyed: bool = False
    sends: int | None = None
    told: int | None = None
    code: str | None = None
    is_cut: bool = False
    state: str | None
    delivery: str | None = None
    seen: tuple[int, int]
    again: Reply
    is_replayed: bool = False

    @property
    def id(self) -> str:
        key = " with a key" if self.is_keyed else ""
        return f"{self.text}, {self.method}{key}"

    @property
    def is_free(self) -> bool:
        """The payment can buy another call."""
        return self.state in (None, "released")


def _each(text: str, *, post: Any, keyed: Any, get: Any, **more: Any) -> list[Row]:
    """The same point for a safe method, an unsafe one, and an unsafe one with a key: (seen, again, …)."""
    return [
        Row(text=text, **{**more, **get}),
        Row(text=text, **{"method": "POST", **more, **post}),
        Row(text=text, **{"method": "POST", "is_keyed": True, **more, **keyed}),
    ]


ONCE_MORE = {"seen": (1, 2), "again": SERVED}
NOT_AGAIN = {"seen": (1, 1), "again": USED}

KILLED = [
    *_each(
        "killed before the claim: no row",
        halt="before-claim",
        state=None,
        get={"seen": (0, 1), "again": SERVED},
        post={"seen": (0, 1), "again": SERVED},
        keyed={"seen": (0, 1), "again": SERVED},
    ),
    *_each(
        "killed after the claim, nothing sent: unknown",
        halt="claimed",
        state="held",
        get={"seen": (0, 1), "again": SERVED},
        post={"seen": (0, 0), "again": USED},
        keyed={"seen": (0, 1), "again": SERVED},
    ),
    Row(
        text="killed after the first byte: unknown",
        act="deaf",
        method="POST",
        sends=SENT_BYTES,
        state="held",
        seen=(0, 0),
        again=USED,
    ),
    *_each(
        "killed with the request wholly sent: unknown",
        act="silent",
        state="held",
        get=ONCE_MORE,
        post=NOT_AGAIN,
        keyed=ONCE_MORE,
    ),
    *_each(
        "killed with the head here, not closed: unknown",
        halt="at-head",
        state="held",
        get=ONCE_MORE,
        post=NOT_AGAIN,
        keyed=ONCE_MORE,
    ),
    *_each(
        "killed when it was closed, not shown: consumed",
        halt="closed",
        state="charged",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": RUNNING},
    ),
    *_each(
        "killed in the middle of the body: consumed",
        act="hold",
        told=200,
        is_cut=True,
        state="charged",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": RUNNING},
    ),
    *_each(
        "killed before the finish: consumed",
        halt="unfinished",
        told=200,
        state="charged",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True},
    ),
]

BEFORE_ALL_IS_SENT = "caller gone before the request was wholly sent upstream: released"
NO_HEAD_YET = "caller gone after that, no head yet: settled by the head"
AFTER_THE_HEAD = "caller gone after the head: consumed, delivery partial, upstream cancelled"
LEFT = [
    Row(
        text=BEFORE_ALL_IS_SENT,
        method="POST",
        sends=SENT_BYTES,
        state="released",
        seen=(0, 1),
        again=SERVED,
    ),
    *_each(
        NO_HEAD_YET,
        act="late",
        state="charged",
        delivery="partial",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        # The body is read to its end; the network decides whether the caller left before it.
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True, "delivery": None},
    ),
    *_each(
        AFTER_THE_HEAD,
        act="hold",
        told=200,
        state="charged",
        delivery="partial",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True, "delivery": None},
    ),
]

LEFT_HALTED = [
    *_each(
        "caller gone while the gateway dialled: no row",
        halt="dialled",
        state=None,
        get={"seen": (0, 1), "again": SERVED},
        post={"seen": (0, 1), "again": SERVED},
        keyed={"seen": (0, 1), "again": SERVED},
    ),
    Row(
        text="caller gone after the head, the gateway had looked for him before: consumed, delivery partial",
        act="hold",
        halt="dialled",
        state="charged",
        delivery="partial",
        seen=(1, 1),
        again=USED,
    ),
    *_each(
        # From here on the caller is not checked: the first byte is one commit away.
        "caller gone in the commit of the claim: settled by the head",
        halt="claimed",
        state="charged",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True},
    ),
    *_each(
        "caller gone with the head here, not closed: settled by the head",
        halt="at-head",
        state="charged",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True},
    ),
    *_each(
        "caller gone when it was closed, not shown: consumed",
        halt="closed",
        state="charged",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True},
    ),
]

FAILED = [
    *_each(
        "upstream status that does not cost: released",
        act="fail",
        told=500,
        state="released",
        get=ONCE_MORE,
        post=ONCE_MORE,
        keyed=ONCE_MORE,
    ),
    *_each(
        "upstream status that costs, body complete: consumed",
        told=200,
        state="charged",
        delivery="complete",
        get=NOT_AGAIN,
        post=NOT_AGAIN,
        keyed={"seen": (1, 1), "again": SERVED, "is_replayed": True},
    ),
    *_each(
        "head came, body cut by the upstream: consumed, delivery partial",
        act="cut",
        told=200,
        is_cut=True,
        state="charged",
        delivery="partial",
        get=ONCE_MORE,
        post=NOT_AGAIN,
        keyed=NOT_AGAIN,
    ),
    *_each(
        "bytes sent, no head: unknown",
        act="reset",
        told=504,
        code="upstream_timeout",
        state="held",
        get=ONCE_MORE,
        post=NOT_AGAIN,
        keyed=ONCE_MORE,
    ),
    *(
        replace(row, text=f"connect fails: no row, {row.text}")
        for row in _each(
            "and the payment is there for the same again",
            act="",
            told=502,
            code="upstream_unreachable",
            state=None,
            get={"seen": (0, 1), "again": SERVED},
            post={"seen": (0, 1), "again": SERVED},
            keyed={"seen": (0, 1), "again": SERVED},
        )
    ),
]
