"""Requests whose framing is wrong, ambiguous or odd, made by hand; each hides a second request where a careless reader would
find one. Data only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

API, HOST, NUMBER = b"api_AAAAAAAAAAAAAAAAAAAAAAAAAA", b"127.0.0.1:PPPPP", b"NNN"
"""What is filled in; as long as what replaces it, so that lengths stay true."""

HIDDEN = b"GET /api/v2/gateway/" + API + b"/hidden-" + NUMBER + b" HTTP/1.1\r\nHost: " + HOST + b"\r\n\r\n"
"""Whoever reads more than one request out of an entry finds this one. No upstream may ever see `/hidden`."""

_CHUNKED_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`wire` with the placeholders `API`, `HOST` and `NUMBER`. `hides`: by RFC 9112 its second request is part of a
    body, or follows an invalid message, so a correct reader does not find it. Else it is a request."""

    name: str
    wire: bytes
    hides: bool


def corpus() -> list[Entry]:
    made = [
        *_lengths(),
        *_encodings(),
        *_line_ends(),
        *_chunks(),
        *_request_lines(),
        *_hosts(),
        *_connections(),
        *_expectations(),
        *_pipelines(),
        *_early_answers(),
    ]
    names = [entry.name for entry in made]
    if len(set(names)) != len(names):
        raise ValueError("two entries have one name")
    return made


def _head(
    *lines: bytes,
    line: bytes = b"POST /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1",
    host: bool = True,
) -> bytes:
    hosts = (b"Host: 127.0.0.1:PPPPP",) if host else ()
    return b"\r\n".join([line, *hosts, *lines]) + b"\r\n\r\n"


def _lengths() -> Iterator[Entry]:
    whole = str(len(HIDDEN)).encode()
    values = {
        "twice the same": (b"Content-Length: 5", b"Content-Length: 5"),
        "twice, longer later": (b"Content-Length: 5", b"Content-Length: " + whole),
        "twice, shorter later": (b"Content-Length: " + whole, b"Content-Length: 0"),
        "twice in other case": (b"Content-Length: 0", b"content-length: " + whole),
        "a list of equals": (b"Content-Length: 5, 5",),
        "a list": (b"Content-Length: 0, " + whole,),
        "plus": (b"Content-Length: +5",),
        "minus": (b"Content-Length: -5",),
        "minus zero": (b"Content-Length: -0",),
        "hexadecimal": (b"Content-Length: 0x5",),
        "underscore": (b"Content-Length: 1_0",),
        "exponent": (b"Content-Length: 1e1",),
        "fraction": (b"Content-Length: 5.0",),
        "empty": (b"Content-Length:",),
        "blank": (b"Content-Length:   ",),
        "leading zeros": (b"Content-Length: 000000005",),
        "tabs around": (b"Content-Length:\t5\t",),
        "vertical tab": (b"Content-Length: 5\x0b",),
        "form feed": (b"Content-Length: \x0c5",),
        "NUL": (b"Content-Length: 5\x00",),
        "Arabic digits": ("Content-Length: ٥".encode(),),
        "full-width digits": ("Content-Length: ５".encode(),),
        "superscript": (b"Content-Length: \xb2",),
        "more than 64 bit": (b"Content-Length: 18446744073709551621",),
        "more than 63 bit": (b"Content-Length: 9223372036854775813",),
        "enormous": (b"Content-Length: " + b"9" * 400,),
        "quoted": (b'Content-Length: "5"',),
        "with a comment": (b"Content-Length: 5 (five)",),
        "with a parameter": (b"Content-Length: 5;q=1",),
        "space before the colon": (b"Content-Length : 5",),
        "tab before the colon": (b"Content-Length\t: 5",),
        "underscored name": (b"Content_Length: 5",),
        "folded": (b"Content-Length:\r\n 5",),
        "name folded away": (b"X: y\r\n Content-Length: 5",),
        "NUL in the name": (b"Content\x00-Length: 5",),
        "trailing CR": (b"Content-Length: 5\r",),
        "words": (b"Content-Length: five",),
    }
    valid = ("twice the same", "a list of equals", "leading zeros", "tabs around")
    # Refused for its name, and without a length: `12345GET` is a method then.
    valid += ("underscored name",)
    for name, lines in values.items():
        yield Entry(name=f"length: {name}", wire=_head(*lines) + b"12345" + HIDDEN, hides=name not in valid)
    get = b"GET /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1"
    yield Entry(
        name="length: on a GET", wire=_head(b"Content-Length: 5", line=get) + b"12345" + HIDDEN, hides=False
    )


def _encodings() -> Iterator[Entry]:
    spellings = {
        "plain": b"Transfer-Encoding: chunked",
        "upper case": b"TRANSFER-ENCODING: CHUNKED",
        "mixed case": b"tRANSFER-eNCODING: cHuNkEd",
        "space before the colon": b"Transfer-Encoding : chunked",
        "tab before the colon": b"Transfer-Encoding\t: chunked",
        "no space": b"Transfer-Encoding:chunked",
        "tab": b"Transfer-Encoding:\tchunked",
        "many spaces": b"Transfer-Encoding:      chunked     ",
        "vertical tab before": b"Transfer-Encoding: \x0bchunked",
        "vertical tab after": b"Transfer-Encoding: chunked\x0b",
        "form feed": b"Transfer-Encoding: chunked\x0c",
        "NUL after": b"Transfer-Encoding: chunked\x00",
        "NUL in the name": b"Transfer-Encoding\x00: chunked",
        "8-bit space": b"Transfer-Encoding: \xa0chunked",
        "quoted": b'Transfer-Encoding: "chunked"',
        "x-chunked": b"Transfer-Encoding: xchunked",
        "chunked-x": b"Transfer-Encoding: chunkedx",
        "parameter": b"Transfer-Encoding: chunked;q=0.5",
        "identity": b"Transfer-Encoding: identity",
        "identity, chunked": b"Transfer-Encoding: identity, chunked",
        "chunked, identity": b"Transfer-Encoding: chunked, identity",
        "chunked, chunked": b"Transfer-Encoding: chunked, chunked",
        "gzip": b"Transfer-Encoding: gzip",
        "gzip, chunked": b"Transfer-Encoding: gzip, chunked",
        "chunked, gzip": b"Transfer-Encoding: chunked, gzip",
        "leading comma": b"Transfer-Encoding: ,chunked",
        "trailing comma": b"Transfer-Encoding: chunked,",
        "empty": b"Transfer-Encoding:",
        "cow": b"Transfer-Encoding: cow",
        "folded": b"Transfer-Encoding:\r\n chunked",
        "folded with LF": b"Transfer-Encoding:\n chunked",
        "name folded away": b"X: y\r\n Transfer-Encoding: chunked",
        "behind a bare LF": b"X: y\nTransfer-Encoding: chunked",
        "behind a bare CR": b"X: y\rTransfer-Encoding: chunked",
        "underscored": b"Transfer_Encoding: chunked",
        "twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "twice, cow later": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
        "twice, cow first": b"Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
        "twice, identity later": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "dressed as another": b"X-Transfer-Encoding: chunked",
    }
    body = _CHUNKED_END + HIDDEN
    lengths = {
        "no length": (),
        "the whole length": (b"Content-Length: " + str(len(body)).encode(),),
        "length zero": (b"Content-Length: 0",),
        "a short length": (b"Content-Length: 4",),
    }
    valid = ("plain", "upper case", "mixed case", "no space", "tab", "many spaces")
    valid += ("behind a bare LF",)  # which may end a line (RFC 9112 §2.2)
    for spelling, line in spellings.items():
        for length, lines in lengths.items():
            is_valid = spelling in valid and not lines
            # These two say nothing about the body, and an LF before the next request is ignored.
            is_other = spelling in ("dressed as another", "underscored") and length == "a short length"
            wire = _head(*lines, line) + body
            yield Entry(
                name=f"encoding: {spelling}, {length}", wire=wire, hides=not is_valid and not is_other
            )
    for length, lines in lengths.items():
        yield Entry(
            name=f"encoding: HTTP/1.0, {length}",
            wire=_head(
                *lines,
                b"Transfer-Encoding: chunked",
                b"Connection: keep-alive",
                line=b"POST /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.0",
            )
            + body,
            hides=True,
        )


def _line_ends() -> Iterator[Entry]:
    start, more = (
        b"GET /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1",
        b"Host: 127.0.0.1:PPPPP",
    )
    for name, end in {
        "LF": b"\n",
        "CR": b"\r",
        "LF CR": b"\n\r",
        "CR CR LF": b"\r\r\n",
        "NUL": b"\x00",
    }.items():
        yield Entry(
            name=f"line ends: {name} everywhere", wire=end.join([start, more, b"", b""]) + HIDDEN, hides=False
        )
        yield Entry(
            name=f"line ends: {name} in the request line",
            wire=start + end + more + b"\r\n\r\n" + HIDDEN,
            hides=False,
        )
        yield Entry(
            name=f"line ends: {name} between headers",
            wire=_head(b"A: b" + end + b"C: d", line=start) + HIDDEN,
            hides=False,
        )
        yield Entry(
            name=f"line ends: {name} in a value",
            wire=_head(b"A: b" + end + b"x", line=start) + HIDDEN,
            hides=False,
        )
        yield Entry(
            name=f"line ends: {name} before the end",
            wire=start + b"\r\n" + more + b"\r\n" + end + HIDDEN,
            hides=False,
        )
        yield Entry(
            name=f"line ends: {name} then a length",
            wire=_head(b"A: b" + end + b"Content-Length: " + str(len(HIDDEN)).encode(), line=start) + HIDDEN,
            hides=True,
        )
    for name, line in {
        "folded": b"A: b\r\n c",
        "folded with a tab": b"A: b\r\n\tc",
        "first line folded": b" A: b",
        "no colon": b"A",
        "no name": b": b",
        "space in the name": b"A B: c",
        "8-bit name": b"\xc3\xa9: c",
        "control in the name": b"A\x01: c",
        "control in the value": b"A: \x01c",
        "DEL in the value": b"A: \x7fc",
        "NUL in the value": b"A: c\x00d",
        "bracket in the name": b"A(b): c",
        "at sign in the name": b"A@b: c",
        "name of 9,000 bytes": b"A" * 9_000 + b": c",
        "value of 40,000 bytes": b"A: " + b"c" * 40_000,
    }.items():
        yield Entry(name=f"header: {name}", wire=_head(line, line=start) + HIDDEN, hides=False)
    many = tuple(b"A-%d: b" % number for number in range(300))
    yield Entry(name="header: three hundred", wire=_head(*many, line=start) + HIDDEN, hides=False)


def _chunks() -> Iterator[Entry]:
    bodies = {
        "an extension": b"5;a=b\r\n12345\r\n0\r\n\r\n",
        "a quoted extension": b'5;a="b\r\n12345\r\n0\r\n\r\n',
        "an extension with a bare LF": b"5;a\n12345\r\n0\r\n\r\n",
        "an extension of 20,000 bytes": b"5;" + b"a" * 20_000 + b"\r\n12345\r\n0\r\n\r\n",
        "hexadecimal with 0x": b"0x5\r\n12345\r\n0\r\n\r\n",
        "a plus": b"+5\r\n12345\r\n0\r\n\r\n",
        "a minus": b"-5\r\n12345\r\n0\r\n\r\n",
        "a space before": b" 5\r\n12345\r\n0\r\n\r\n",
        "a space after": b"5 \r\n12345\r\n0\r\n\r\n",
        "a tab after": b"5\t\r\n12345\r\n0\r\n\r\n",
        "an underscore": b"1_0\r\n1234567890123456\r\n0\r\n\r\n",
        "leading zeros": b"0000000000000005\r\n12345\r\n0\r\n\r\n",
        "a thousand zeros": b"0" * 1_000 + b"5\r\n12345\r\n0\r\n\r\n",
        "more than 64 bit": b"10000000000000005\r\n12345\r\n0\r\n\r\n",
        "all ones": b"FFFFFFFFFFFFFFFF\r\n12345\r\n0\r\n\r\n",
        "no size": b"\r\n12345\r\n0\r\n\r\n",
        "no hexadecimal": b"xyz\r\n12345\r\n0\r\n\r\n",
        "an extension alone": b";a=b\r\n12345\r\n0\r\n\r\n",
        "a bare LF after the size": b"5\n12345\r\n0\r\n\r\n",
        "a bare CR after the size": b"5\r12345\r\n0\r\n\r\n",
        "a bare LF after the data": b"5\r\n12345\n0\r\n\r\n",
        "nothing after the data": b"5\r\n123450\r\n\r\n",
        "too much data": b"5\r\n1234567\r\n0\r\n\r\n",
        "too little data": b"5\r\n123\r\n0\r\n\r\n",
        "a bare LF at the end": b"5\r\n12345\r\n0\n\n",
        "LF CR at the end": b"5\r\n12345\r\n0\n\r",
        "half an end": b"5\r\n12345\r\n0\r\n",
        "many zeros at the end": b"5\r\n12345\r\n00000\r\n\r\n",
        "a sign at the end": b"5\r\n12345\r\n-0\r\n\r\n",
        "a NUL in the size": b"5\x00\r\n12345\r\n0\r\n\r\n",
        "a fraction": b"5.0\r\n12345\r\n0\r\n\r\n",
        "full-width digits": "５\r\n12345\r\n0\r\n\r\n".encode(),
        "a comment": b"5 (five)\r\n12345\r\n0\r\n\r\n",
    }
    trailers = {
        "a trailer": b"A: b\r\n\r\n",
        "a length in the trailer": b"Content-Length: 3\r\n\r\n",
        "an encoding in the trailer": b"Transfer-Encoding: chunked\r\n\r\n",
        "a host in the trailer": b"Host: other\r\n\r\n",
        "a payment in the trailer": b"X-Payment-Tx: 0x00\r\n\r\n",
        "a folded trailer": b"A: b\r\n c\r\n\r\n",
        "a trailer with a bare LF": b"A: b\nC: d\r\n\r\n",
        "a trailer with NUL": b"A: \x00\r\n\r\n",
        "a trailer without colon": b"A\r\n\r\n",
        "a trailer of 40,000 bytes": b"A: " + b"b" * 40_000 + b"\r\n\r\n",
        "a thousand trailers": b"A: b\r\n" * 1_000 + b"\r\n",
    }
    bodies |= {name: b"5\r\n12345\r\n0\r\n" + end for name, end in trailers.items()}
    valid = {
        "an extension",
        "an extension of 20,000 bytes",
        "a space after",
        "a tab after",
        "leading zeros",
        "a thousand zeros",
    }
    valid |= {"a quoted extension"}  # no line end stands within quotes (RFC 9110 §5.6.4)
    valid |= {"many zeros at the end", *trailers} - {"a trailer with NUL", "a trailer without colon"}
    for name, body in bodies.items():
        wire = _head(b"Transfer-Encoding: chunked") + body + HIDDEN
        yield Entry(name=f"chunks: {name}", wire=wire, hides=name not in valid)
        ours = _head(
            b"Transfer-Encoding: chunked",
            b"Content-Type: application/json",
            line=b"POST /api/v2/apis HTTP/1.1",
        )
        yield Entry(name=f"chunks for ourselves: {name}", wire=ours + body + HIDDEN, hides=name not in valid)


def _request_lines() -> Iterator[Entry]:
    path = b"/api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN"
    lines = {
        "absolute form": b"GET http://127.0.0.1:PPPPP" + path + b" HTTP/1.1",
        "absolute form, another host": b"GET http://elsewhere.example" + path + b" HTTP/1.1",
        "absolute form, user": b"GET http://user@127.0.0.1:PPPPP" + path + b" HTTP/1.1",
        "absolute form, https": b"GET https://127.0.0.1:PPPPP" + path + b" HTTP/1.1",
        "absolute form, file": b"GET file:///etc/passwd HTTP/1.1",
        "authority form": b"CONNECT 127.0.0.1:PPPPP HTTP/1.1",
        "authority form of a path": b"CONNECT " + path + b" HTTP/1.1",
        "asterisk": b"OPTIONS * HTTP/1.1",
        "asterisk for GET": b"GET * HTTP/1.1",
        "no slash": b"GET api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1",
        "two slashes": b"GET //api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1",
        "dots": b"GET /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/../../../hidden-NNN HTTP/1.1",
        "backslash": b"GET \\api\\v2\\gateway\\api_AAAAAAAAAAAAAAAAAAAAAAAAAA HTTP/1.1",
        "fragment": b"GET " + path + b"#x HTTP/1.1",
        "space in the path": b"GET " + path + b" x HTTP/1.1",
        "tab in the path": b"GET " + path + b"\tx HTTP/1.1",
        "tabs between": b"GET\t" + path + b"\tHTTP/1.1",
        "two spaces": b"GET  " + path + b"  HTTP/1.1",
        "space before": b" GET " + path + b" HTTP/1.1",
        "space after": b"GET " + path + b" HTTP/1.1 ",
        "NUL in the path": b"GET " + path + b"\x00 HTTP/1.1",
        "8-bit path": b"GET " + path + b"\xc3\xa9 HTTP/1.1",
        "control in the path": b"GET " + path + b"\x01 HTTP/1.1",
        "DEL in the path": b"GET " + path + b"\x7f HTTP/1.1",
        "line feed encoded": b"GET " + path + b"%0aX:%20y HTTP/1.1",
        "a request encoded": b"GET "
        + path
        + b"%20HTTP/1.1%0d%0aHost:%20x%0d%0a%0d%0aGET%20/hidden-NNN HTTP/1.1",
        "path of 9,000 bytes": b"GET " + path + b"a" * 9_000 + b" HTTP/1.1",
        "path of 200,000 bytes": b"GET " + path + b"a" * 200_000 + b" HTTP/1.1",
        "no version": b"GET " + path,
        "version 0.9": b"GET " + path + b" HTTP/0.9",
        "version 1.0": b"GET " + path + b" HTTP/1.0",
        "version 1.2": b"GET " + path + b" HTTP/1.2",
        "version 2.0": b"GET " + path + b" HTTP/2.0",
        "version 3": b"GET " + path + b" HTTP/3",
        "version 11": b"GET " + path + b" HTTP/11",
        "version 1.11": b"GET " + path + b" HTTP/1.11",
        "version in lower case": b"GET " + path + b" http/1.1",
        "another protocol": b"GET " + path + b" ICAP/1.0",
        "method in lower case": b"get " + path + b" HTTP/1.1",
        "method of one's own": b"FROBNICATE " + path + b" HTTP/1.1",
        "method of 5,000 bytes": b"G" * 5_000 + b" " + path + b" HTTP/1.1",
        "method with a bracket": b"GE(T " + path + b" HTTP/1.1",
        "method with NUL": b"GE\x00T " + path + b" HTTP/1.1",
        "no method": path + b" HTTP/1.1",
        "TRACE": b"TRACE " + path + b" HTTP/1.1",
        "TRACK": b"TRACK " + path + b" HTTP/1.1",
        "PRI": b"PRI * HTTP/2.0",
    }
    for name, line in lines.items():
        yield Entry(name=f"request line: {name}", wire=_head(line=line) + HIDDEN, hides=False)
    plain = _head(line=b"GET " + path + b" HTTP/1.1")
    yield Entry(name="request line: empty lines before", wire=b"\r\n\r\n" + plain + HIDDEN, hides=False)
    yield Entry(name="request line: LFs before", wire=b"\n\n" + plain + HIDDEN, hides=False)
    yield Entry(
        name="request line: a thousand empty lines before", wire=b"\r\n" * 1_000 + plain + HIDDEN, hides=False
    )
    yield Entry(
        name="request line: HTTP/2 preface",
        wire=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        hides=False,
    )
    yield Entry(
        name="request line: a TLS hello",
        wire=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        hides=False,
    )
    yield Entry(
        name="request line: PROXY protocol",
        wire=b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + plain + HIDDEN,
        hides=False,
    )
    yield Entry(name="request line: nothing but NULs", wire=bytes(4_096), hides=False)


def _hosts() -> Iterator[Entry]:
    line = b"GET /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1"
    for name, lines in {
        "none": (),
        "two": (b"Host: 127.0.0.1:PPPPP", b"Host: elsewhere.example"),
        "two the same": (b"Host: 127.0.0.1:PPPPP", b"Host: 127.0.0.1:PPPPP"),
        "two in other case": (b"Host: 127.0.0.1:PPPPP", b"HOST: elsewhere.example"),
        "empty": (b"Host:",),
        "a list": (b"Host: 127.0.0.1:PPPPP, elsewhere.example",),
        "with a user": (b"Host: user@127.0.0.1:PPPPP",),
        "with a path": (b"Host: 127.0.0.1:PPPPP/hidden",),
        "with a space": (b"Host: 127.0.0.1:PPPPP elsewhere",),
        "folded": (b"Host: 127.0.0.1:PPPPP\r\n elsewhere.example",),
        "space before the colon": (b"Host : 127.0.0.1:PPPPP",),
        "first line folded": (b" Host: 127.0.0.1:PPPPP",),
        "with NUL": (b"Host: 127.0.0.1:PPPPP\x00",),
        "with a bad port": (b"Host: 127.0.0.1:PPPPPx",),
        "with brackets": (b"Host: [::1",),
        "of another": (b"Host: elsewhere.example",),
        "and X-Forwarded-Host": (b"Host: 127.0.0.1:PPPPP", b"X-Forwarded-Host: elsewhere.example"),
        "and Forwarded": (b"Host: 127.0.0.1:PPPPP", b"Forwarded: host=elsewhere.example"),
    }.items():
        yield Entry(name=f"host: {name}", wire=_head(*lines, line=line, host=False) + HIDDEN, hides=False)


def _connections() -> Iterator[Entry]:
    body = str(len(HIDDEN)).encode()
    for name, lines in {
        "names the length": (b"Connection: Content-Length", b"Content-Length: " + body),
        "names the encoding": (b"Connection: Transfer-Encoding, keep-alive", b"Content-Length: " + body),
        "names the host": (b"Connection: Host", b"Content-Length: " + body),
        "names a payment": (b"Connection: X-Payment-Tx", b"Content-Length: " + body),
        "upgrade to h2c": (
            b"Connection: Upgrade, HTTP2-Settings",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAMAAABkAAQAAP__",
            b"Content-Length: " + body,
        ),
        "upgrade to a socket": (
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            b"Content-Length: " + body,
        ),
        "a list of nonsense": (b"Connection: close, keep-alive, ,,x", b"Content-Length: " + body),
        "with a TE": (b"TE: trailers", b"Connection: TE", b"Content-Length: " + body),
        "with a Trailer": (b"Trailer: Content-Length", b"Content-Length: " + body),
        "with Keep-Alive": (
            b"Keep-Alive: timeout=1000",
            b"Proxy-Connection: keep-alive",
            b"Content-Length: " + body,
        ),
    }.items():
        yield Entry(name=f"connection: {name}", wire=_head(*lines) + HIDDEN, hides=True)
        yield Entry(
            name=f"connection, without a length: {name}", wire=_head(*lines[:-1]) + HIDDEN, hides=False
        )


def _expectations() -> Iterator[Entry]:
    body = str(len(HIDDEN)).encode()
    for name, lines in {
        "continue": (b"Expect: 100-continue", b"Content-Length: " + body),
        "continue, chunked": (b"Expect: 100-continue", b"Transfer-Encoding: chunked"),
        "continue, no body": (b"Expect: 100-continue",),
        "continue, length zero": (b"Expect: 100-continue", b"Content-Length: 0"),
        "something else": (b"Expect: tea", b"Content-Length: " + body),
        "two": (b"Expect: 100-continue", b"Expect: 100-continue", b"Content-Length: " + body),
    }.items():
        has_body = b"Content-Length: " + body in lines
        sent = HIDDEN if has_body else (_CHUNKED_END + HIDDEN if name == "continue, chunked" else HIDDEN)
        yield Entry(name=f"expect: {name}", wire=_head(*lines) + sent, hides=has_body)


def _pipelines() -> Iterator[Entry]:
    get = _head(line=b"GET /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1")
    post = _head(b"Content-Length: 5") + b"12345"
    chunked = _head(b"Transfer-Encoding: chunked") + b"5\r\n12345\r\n0\r\n\r\n"
    for name, wire in {
        "two": get + get,
        "ten": get * 10,
        "a body, then another": post + post,
        "chunked, then a length": chunked + post,
        "a length, then chunked": post + chunked,
        "HEAD, then GET": get.replace(b"GET", b"HEAD") + get,
        "a hundred": get * 100,
        "CRLF between": post + b"\r\n" + get,
        "garbage between": post + b"xyz" + get,
    }.items():
        yield Entry(name=f"pipeline: {name}", wire=wire, hides=False)


def _early_answers() -> Iterator[Entry]:
    """What is refused before its body is read: the body must not be taken for the next request."""
    for size in (len(HIDDEN), 1_000, 100_000, 300_000):
        body = (HIDDEN * (size // len(HIDDEN) + 1))[:size]
        length = b"Content-Length: %d" % size
        for name, line in {
            "no such listing": b"POST /api/v2/gateway/api_nobody/first HTTP/1.1",
            "no such route": b"POST /nowhere HTTP/1.1",
            "not authenticated": b"POST /api/v2/apis HTTP/1.1",
            "no such method": b"PATCH /api/v2/apis HTTP/1.1",
            "a bad payment": b"POST /api/v2/gateway/api_AAAAAAAAAAAAAAAAAAAAAAAAAA/first-NNN HTTP/1.1",
        }.items():
            more = (b"X-Payment-Tx: 0x12",) if name == "a bad payment" else ()
            yield Entry(
                name=f"early answer: {name}, {size} bytes",
                wire=_head(length, *more, line=line) + body,
                hides=True,
            )
            chunked = b"%x\r\n" % size + body + b"\r\n0\r\n\r\n"
            yield Entry(
                name=f"early answer: {name}, {size} bytes chunked",
                wire=_head(b"Transfer-Encoding: chunked", *more, line=line) + chunked,
                hides=True,
            )
