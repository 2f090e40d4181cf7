"""The output of a call's response: the body as it arrives, on a terminal, on stdout or in a file; and the line about its payment.

An output file is opened before the request is sent, because the response is paid for. A file is replaced once the response is whole. Bytes of a paid response
are never dropped: what cannot be written, what a terminal does not print, and the part of a response that broke off, go into a temporary file, and the
command names it.
"""

import base64
import codecs
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import httpx

from tollway.cli.output import print_json, print_line, print_text
from tollway.client import CallerFailure, CallResponse
from tollway.client.deadline import check_deadline, within
from tollway.client.driver import DEADLINE_S
from tollway.client.responses import ResponseTooLong, build_unreachable, decode_response, read_json
from tollway.client.safe_text import format_value, plain, plain_line
from tollway.client.x402 import SettlementReceipt

PRINTED_BYTES_MAX = 200_000
"""Bytes of a text response that a terminal prints. A stream of events has no maximum."""
WHOLE_BYTES_MAX = 64 * 1024 * 1024
"""The maximum of a response that is read whole, for JSON."""
EVENT_STREAM = "text/event-stream"
_TEXT_TYPES = ("text/", "application/json", "application/problem+json", "application/xml", "application/yaml")


class ResponseNotWritten(CallerFailure):
    """The call is done, and its response cannot be written to the output."""

    code = "response_not_written"


class ResponseOutput:
    """Writes one response, once. `output` None: its text on a terminal, its bytes in a pipe, or JSON with all of it (`as_json`); `-`: the first two; else a
    file, which is replaced once the response is whole. Raises ValueError on entry for a file that cannot be written."""

    def __init__(self, output: str | None, *, as_json: bool) -> None:
        self.output = output
        self._as_json = as_json and output is None
        self._target: Path | None = None
        self._file: IO[bytes] | None = None
        self._new_file: Path | None = None

    def __enter__(self) -> Self:
        if self.output is not None and self.output != "-":
            try:
                self._open(Path(self.output).resolve())
            except (OSError, RuntimeError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else "the link points to itself"
                raise ValueError(f"{self.output} cannot be written: {reason}; nothing was sent") from exc
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        if self._new_file is not None:
            self._new_file.unlink(missing_ok=True)

    def _open(self, target: Path) -> None:
        self._target = target
        mode = target.stat().st_mode if target.exists() else None
        if mode is None or stat.S_ISREG(mode):
            if mode is not None and not os.access(target, os.W_OK):
                raise PermissionError(13, "Permission denied")
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".tollway-", delete=False) as made:
                self._new_file = Path(made.name)
            self._new_file.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_read_umask())
            self._file = self._new_file.open("wb", buffering=0)
        else:
            self._file = target.open("wb", buffering=0)  # a device or a pipe; raises for a folder

    def write(self, response: CallResponse) -> None:
        """Writes the body while it arrives. Raises `GatewayUnreachable` where it breaks off, and `ResponseNotWritten` after the rest of the response is saved in a
        temporary file."""
        if self._file is not None:
            self._write_file(response, self._file)
        elif not self._as_json:
            self._print(response) if sys.stdout.isatty() else _copy(iter_content(response), sys.stdout.buffer)
        else:
            whole = read_whole(response)
            try:
                print_json(describe_response(whole))
                sys.stdout.flush()
            except OSError as exc:
                raise _not_written(exc, saved=_save(whole.content)) from exc

    def _write_file(self, response: CallResponse, file: IO[bytes]) -> None:
        _copy(iter_content(response), file, before=self._new_file)
        file.close()
        if self._new_file is not None and self._target is not None:
            os.replace(self._new_file, self._target)
            self._new_file = None

    def _print(self, response: CallResponse) -> None:
        kind = response.headers.get("content-type", "")
        if not kind.startswith(_TEXT_TYPES) and self.output != "-":
            name = format_value(kind) or "unknown type"
            self._save_rest(iter_content(response), f"of {plain_line(name)}")
            return
        is_limited = self.output != "-" and not kind.startswith(EVENT_STREAM)
        bytes_left = PRINTED_BYTES_MAX if is_limited else sys.maxsize
        decoder = codecs.getincrementaldecoder(response.encoding or "utf-8")("replace")
        chunks = iter_content(response)
        last = ""
        for chunk in chunks:
            last = _print_part(decoder.decode(chunk[:bytes_left])) or last
            rest, bytes_left = chunk[bytes_left:], max(0, bytes_left - len(chunk))
            if rest:
                _print_part("\n")
                self._save_rest(_prepend(rest, chunks), "more")
                return
        last = _print_part(decoder.decode(b"", final=True)) or last
        if last and not last.endswith("\n"):
            _print_part("\n")

    def _save_rest(self, chunks: Iterator[bytes], what: str) -> None:
        """Saves bytes that a terminal does not print."""
        with tempfile.NamedTemporaryFile(prefix="tollway-answer-", delete=False) as file:
            size = 0
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
        if size == 0:
            Path(file.name).unlink()
            return
        _print_part(f"({size} bytes {what}, saved in {file.name}; -o FILE names another file)\n")


def iter_content(response: CallResponse) -> Iterator[bytes]:
    """The decoded body, as it arrives. A body with a content coding, which the client does not request, is read whole. Raises `GatewayUnreachable` where it
    breaks off."""
    if response.is_closed or response.is_stream_consumed or "content-encoding" in response.headers:
        yield read_whole(response).content
        return
    try:
        yield from response.iter_raw()
    except httpx.TransportError as exc:
        raise build_unreachable(exc, transaction=response.payment.transaction) from exc


def read_whole(response: CallResponse) -> CallResponse:
    """The response with its whole body. Raises `GatewayUnreachable` where it breaks off, lasts longer than `DEADLINE_S` or has more than
    `WHOLE_BYTES_MAX`."""
    if response.is_closed or response.is_stream_consumed:
        return response
    chunks: list[bytes] = []
    size = 0
    try:
        with within(DEADLINE_S):
            for chunk in response.iter_raw():
                check_deadline()
                size += len(chunk)
                if size > WHOLE_BYTES_MAX:
                    raise ResponseTooLong
                chunks.append(chunk)
        return decode_response(response, b"".join(chunks), bytes_max=WHOLE_BYTES_MAX)
    except (httpx.TransportError, ResponseTooLong) as exc:
        raise build_unreachable(exc, transaction=response.payment.transaction) from exc


def _prepend(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from chunks


def _print_part(text: str) -> str:
    sys.stdout.write(plain(text))
    sys.stdout.flush()
    return text


def _copy(chunks: Iterator[bytes], file: IO[bytes], *, before: Path | None = None) -> None:
    """Writes chunks as they arrive. Where the output fails, saves what is not written, and the file `before`, in a temporary file, and raises
    `ResponseNotWritten`. Where the response breaks off, saves the part in `before`."""
    written = 0
    while True:
        try:
            chunk = next(chunks, b"")
        except CallerFailure as failure:
            if before is not None and written:
                saved = _save(before.read_bytes())
                failure.detail = f"{failure.detail} The part of {written} bytes that arrived: {saved}"
                failure.args = (failure.detail,)
            raise
        if not chunk:
            return
        try:
            _write_all(file, chunk)
            written += len(chunk)
        except BrokenPipeError:
            raise ResponseNotWritten(
                "The program that reads this command's output closed the pipe."
            ) from None
        except OSError as exc:
            earlier = b"" if before is None else before.read_bytes()[:written]
            raise _not_written(exc, saved=_save(earlier + chunk, chunks)) from exc


def _write_all(file: IO[bytes], chunk: bytes) -> None:
    """A write to an unbuffered file may be partial."""
    view = memoryview(chunk)
    while view:
        view = view[file.write(view) or 0 :]
    file.flush()


def _not_written(exc: OSError, *, saved: str) -> ResponseNotWritten:
    if isinstance(exc, BrokenPipeError):
        return ResponseNotWritten("The program that reads this command's output closed the pipe.")
    return ResponseNotWritten(f"The response cannot be written ({exc.strerror or exc}). {saved}")


def _save(content: bytes, rest: Iterator[bytes] | None = None) -> str:
    try:
        with tempfile.NamedTemporaryFile(prefix="tollway-answer-", delete=False) as file:
            file.write(content)
            for chunk in rest or ():
                file.write(chunk)
    except OSError:
        return "A temporary file cannot be written either. If the call had an Idempotency-Key, repeat it: the gateway has stored the response."
    return f"It is saved in {file.name}."


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def print_payment(response: CallResponse) -> None:
    """Prints the status and the payment of a response on stderr: in a sentence on a terminal, else a line for each part."""
    payment = response.payment
    words = [f"HTTP {response.status_code}"]
    words += ["nothing was paid"] if payment.state == "none" else [f"payment {payment.state}"]
    words += [f"price {payment.price}"] if payment.price else []
    words += [f"price at most {payment.price_max}"] if payment.price_max else []
    words += [f"credit left {payment.credit_remaining}"] if payment.credit_remaining else []
    words += [f"rail {payment.rail}"] if payment.rail and payment.state != "none" else []
    words += [f"channel {payment.channel}"] if payment.channel else []
    words += [f"network fee at most {payment.fee_max}"] if payment.fee_max else []
    if payment.transaction and payment.state == "charged":
        words.append(f"paid by {payment.transaction}")
    words += [f"call {payment.call_id}"] if payment.call_id else []
    if sys.stdout.isatty():
        print_line(" · ".join(words), style="dim", is_error=True)
    else:
        print_text("\n".join(plain_line(word) for word in words), is_error=True)


def describe_response(response: CallResponse) -> dict[str, Any]:
    """A response as JSON. `body` is JSON for a JSON response and text for a text response; other bytes are in `bodyBase64`."""
    kind = response.headers.get("content-type", "")
    receipt = response.payment.receipt
    payment = {_camel(name): value for name, value in asdict(response.payment).items()}
    if payment["channel"] is None:  # only the rail `channel` has one
        del payment["channel"]
    described: dict[str, Any] = {
        "status": response.status_code,
        "headers": dict(response.headers),
        "payment": {**payment, "receipt": None if receipt is None else _describe_receipt(receipt)},
    }
    if kind.partition(";")[0].endswith("json"):
        try:
            return {**described, "body": read_json(response.content)}
        except ValueError:
            pass
    if not response.content or kind.startswith(_TEXT_TYPES):
        return {**described, "body": response.text}
    return {**described, "bodyBase64": base64.b64encode(response.content).decode()}


def _describe_receipt(receipt: SettlementReceipt) -> dict[str, Any]:
    """The receipt with the member names of x402; absent members are absent."""
    members = {
        "success": receipt.is_success,
        "transaction": None if receipt.transaction is None else str(receipt.transaction),
        "network": receipt.network,
        "payer": receipt.payer,
        "amount": receipt.amount,
        "errorReason": receipt.reason,
    }
    return {name: value for name, value in members.items() if value is not None}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
