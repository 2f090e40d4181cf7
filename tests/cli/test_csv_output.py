"""`--csv` of history and payments: all pages, one header line; a file is complete or is not there."""

import json
import stat
from typing import Any

import pytest

CSV = "text/csv; charset=utf-8; header=present"


def page(*rows: str, following: str | None = None) -> tuple[Any, ...]:
    content = "".join(f"{row}\r\n" for row in ("callId,amount", *rows)).encode()
    link = {} if following is None else {"link": f'<http://x/api/v2/history.csv?{following}>; rel="next"'}
    return 200, CSV, content, link


def broken_page() -> tuple[Any, ...]:
    """A page whose last bytes never come."""
    return 200, CSV, b"callId,amount\r\ncall_2,1\r\n", {"content-length": "500"}


def test_all_pages_go_to_stdout_with_one_header_line(run: Any, gateway: Any) -> None:
    gateway.files = [page("call_1,0.01", following="before=call_1&to=t"), page("call_0,0.02")]
    done = run("history", "--csv", "--since", "2026-11-01", "--until", "2026-12-01", "--status", "failed")
    assert done.stdout_bytes == b"callId,amount\r\ncall_1,0.01\r\ncall_0,0.02\r\n"
    assert [path for _, path, *_ in gateway.seen] == [
        "/api/v2/history.csv?status=failed&from=2026-11-01T00%3A00%3A00.000Z&to=2026-11-30T23%3A59%3A59.999Z",
        "/api/v2/history.csv?before=call_1&to=t",
    ]


def test_a_file_has_all_pages_and_only_its_owner_reads_it(run: Any, gateway: Any, tmp_path: Any) -> None:
    gateway.files = [page("call_1,0.01", following="before=call_1"), page("call_0,0.02")]
    target = tmp_path / "november.csv"
    target.write_text("old")
    assert run("history", "--csv", "-o", str(target)).exit_code == 0
    assert target.read_bytes() == b"callId,amount\r\ncall_1,0.01\r\ncall_0,0.02\r\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.glob("*november*")) == [target]


def test_a_transfer_that_breaks_off_leaves_the_old_file(run: Any, gateway: Any, tmp_path: Any) -> None:
    gateway.files = [page("call_3,1", following="before=call_3"), broken_page()]
    target = tmp_path / "november.csv"
    target.write_text("old")
    done = run("history", "--csv", "-o", str(target))
    assert done.exit_code == 3
    assert "error" in json.loads(done.stderr)
    assert target.read_text() == "old"
    assert list(tmp_path.glob("*november*")) == [target]


def test_a_broken_transfer_to_stdout_has_an_exit_code(run: Any, gateway: Any) -> None:
    gateway.files = [broken_page()]
    assert run("history", "--csv").exit_code == 3


def test_payments_of_another_wallet_as_a_file(run: Any, gateway: Any) -> None:
    gateway.files = [page("0xab,1")]
    other = "0x" + "22" * 20
    assert run("wallet", "payments", "--csv", "--wallet", other, "--role", "provider").exit_code == 0
    assert gateway.seen[-1][1] == f"/api/v2/payments.csv?role=provider&wallet={other}"
    assert json.loads(run("wallet", "payments", "--wallet", other).stdout)["payments"] == []
    assert gateway.seen[-1][1] == f"/api/v2/payments?wallet={other}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-o", "x.csv"), "add --csv"),
        (("--csv", "--json"), "--csv or --json"),
        (("--csv", "--since", "yesterday"), "is no time"),
        (("--csv", "--until", "2026-11-30T10:00"), "no time zone"),
        (("--csv", "-o", "/nowhere/x.csv"), "cannot be written"),
    ],
)
def test_says_which_option_is_wrong(run: Any, gateway: Any, options: tuple[str, ...], reason: str) -> None:
    gateway.files = [page()]
    done = run("history", *options)
    assert done.exit_code == 2
    assert reason in done.stderr
