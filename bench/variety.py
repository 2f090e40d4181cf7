"""How the requests of one load differ from each other: their headers and their paths, each by its number. Pure.

A gateway that remembers its decision about a request is fast while requests are the same. So figures are quoted twice: with
equal requests, and with requests of which no two are equal.

| heads | headers beside those that pay |
|---|---|
| `same` | none but `Host` |
| `full` | what clients send beside it: `traceparent`, `tracestate`, `User-Agent`, `Accept`, `Accept-Encoding`, `Accept-Language`; the same in each request |
| `neutral` | the same names; the trace headers differ in each request, the others are taken from lists in turn, 420 combinations |
| `vary` | as `neutral`, and `X-Session-Id`, which no gateway knows; its value differs in each request |

| paths | after the listing |
|---|---|
| `same` | `/quote/ETH` |
| `query` | `/quote/ETH?symbol=<8 hex digits>`: another value in each request, always one name |
| `vary` | `/quote/<8 hex digits>?symbol=<8 hex digits>`: another path and another value in each request |
"""

HEADS = ("same", "full", "neutral", "vary")
PATHS = ("same", "query", "vary")
PATH = "/quote/ETH"

# Their numbers have no common divisor: a combination comes again after 420 requests.
USER_AGENTS = (
    "python-httpx/0.28.1",
    "python-requests/2.32.5",
    "node",
    "axios/1.12.2",
    "Go-http-client/1.1",
    "okhttp/4.12.0",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36",
)
ACCEPTS = ("*/*", "application/json", "application/json, text/plain, */*")
ENCODINGS = ("gzip, deflate", "gzip, deflate, br", "gzip, deflate, br, zstd", "gzip", "identity")
LANGUAGES = ("en-US,en;q=0.9", "de-DE,de;q=0.9,en;q=0.8", "*", "ja,en-US;q=0.9,en;q=0.8")

Headers = tuple[tuple[str, str], ...]
_SPREAD = 0x9E3779B97F4A7C15
"""An odd number times 0, 1, 2 … modulo 2^64: no value comes twice, and neighbours look nothing alike."""


def vary_headers(heads: str, number: int) -> Headers:
    """The headers of request `number` beside those that pay. Raises ValueError on another word than those of `HEADS`."""
    if heads not in HEADS:
        raise ValueError(heads)
    if heads == "same":
        return ()
    turn = 0 if heads == "full" else number
    span = _scramble(turn)
    headers: Headers = (
        ("traceparent", f"00-{_scramble(turn + 1):016x}{span:016x}-{span:016x}-01"),
        ("tracestate", f"bench={span:016x}"),
        ("User-Agent", USER_AGENTS[turn % len(USER_AGENTS)]),
        ("Accept", ACCEPTS[turn % len(ACCEPTS)]),
        ("Accept-Encoding", ENCODINGS[turn % len(ENCODINGS)]),
        ("Accept-Language", LANGUAGES[turn % len(LANGUAGES)]),
    )
    return (*headers, ("X-Session-Id", f"{span:016x}")) if heads == "vary" else headers


def vary_path(paths: str, number: int, path: str = PATH) -> str:
    """The target of request `number`, after the listing. Raises ValueError on another word than those of `PATHS`."""
    if paths not in PATHS:
        raise ValueError(paths)
    if paths == "same":
        return path
    word = f"{_scramble(number) >> 32:08x}"
    return f"{path}?symbol={word}" if paths == "query" else f"{path.rpartition('/')[0]}/{word}?symbol={word}"


def _scramble(number: int) -> int:
    return (number + 1) * _SPREAD % 2**64
