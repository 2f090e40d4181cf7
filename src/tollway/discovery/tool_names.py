"""Names of MCP tools: made of the provider's `operationId`, or of method and path, such as `get_quote_by_symbol`. Pure.

FastAPI makes an `operationId` of function, path and method (`words_words_get`): the function alone is the name, where it is that of one operation.

The names of a listing depend on the set of its operations alone: not on their order, the gateway, or the time. A name that two operations want belongs to
neither: each gets a digest of its method and path at the end, so that a client with an older list of tools calls no operation that it did not mean.

An `operationId` is untrusted: one that has spaces or characters beyond ASCII is not used. A name has the alphabet that all known clients accept, at most `TOOL_NAME_LENGTH_MAX` characters, is not (and does not look like)
a tool of Tollway, and does not say that an operation reads when its method changes something.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TOOL_NAME_LENGTH_MAX = 48
"""Clients accept 64 characters (MCP allows 128), and some of them put the name of the server in front."""

WHOLE_LISTING_TOOL = "call"
"""The tool of a listing without documented operations."""

RESERVED_NAMES = (
    WHOLE_LISTING_TOOL,
    *("search_resources", "get_api", "proxy_tool_call", "list_my_calls"),
    *("search_apis", "describe_api", "call_api", "my_calls", "wallet_status"),
)
"""The tools of the gateway (`tools.py`) and of `tollway mcp` (`client/agent_tools.py`)."""

_READING_WORDS = frozenset({"get", "list", "read", "find", "search", "fetch", "show", "query", "head"})
_CHANGING_METHODS = frozenset({"PUT", "PATCH", "DELETE"})
_DIGEST_LENGTHS = (0, 8, 16, 24, 32, 40)
_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,199}")
_WORD = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
_NO_WORD = re.compile(r"\W")
_VARIABLE = re.compile(r"\{([^{}/]*)\}")
_LOOKALIKES = str.maketrans("10i", "lol", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOperation:
    """What the name of an operation is made of. `operation_id`: the unchecked value of the provider's document, None without one."""

    method: str
    path: str
    operation_id: object = None


def name_tools(operations: Sequence[NamedOperation]) -> list[str]:
    """The name of each operation: unique, `[a-z][a-z0-9_]*`, at most `TOOL_NAME_LENGTH_MAX` characters. Operations differ in method or path."""
    wanted = _wanted_names(operations)
    digests = [
        hashlib.sha256(f"{one.method} {one.path}".encode("utf-8", "replace")).hexdigest()
        for one in operations
    ]
    names: dict[int, str] = {}
    for length in _DIGEST_LENGTHS:
        left = {
            position: _with_digest(wanted[position], digests[position][:length])
            for position in range(len(operations))
            if position not in names
        }
        taken = Counter([*names.values(), *left.values()])
        names.update(
            (position, name)
            for position, name in left.items()
            if taken[name] == 1 and (length > 0 or not _needs_digest(name))
        )
    return [names[position] for position in range(len(operations))]


def title_of(tool: str) -> str:
    """The name as words, without other text of the provider."""
    return tool.replace("_", " ").capitalize()


def _wanted_names(operations: Sequence[NamedOperation]) -> list[str]:
    """The name of each operation without a digest. One whose `operationId` repeats its method and path has the name of its function, where no other operation
    wants that."""
    whole = [_wanted_name(one, one.operation_id) for one in operations]
    short = [_wanted_name(one, _function_name(one)) for one in operations]
    wants = Counter([*short, *(name for name, other in zip(whole, short, strict=True) if name != other)])
    return [
        name if wants[name] == 1 and not _needs_digest(name) else long
        for name, long in zip(short, whole, strict=True)
    ]


def _function_name(operation: NamedOperation) -> object:
    """The `operationId` without the method and the path that FastAPI puts behind the name of the function (`fastapi.utils.generate_unique_id`): `words` of
    `words_words_get`. Another `operationId` as it is."""
    given = operation.operation_id
    repeated = f"{_NO_WORD.sub('_', operation.path)}_{operation.method.lower()}"
    if isinstance(given, str) and operation.path.startswith("/") and given.endswith(repeated):
        return given.removesuffix(repeated) or given
    return given


def _wanted_name(operation: NamedOperation, given: object) -> str:
    if not isinstance(given, str) or not _ID.fullmatch(given):
        return _name_of_path(operation)
    name = _join_words([given])
    if operation.method in _CHANGING_METHODS and name.partition("_")[0] in _READING_WORDS:
        return f"{operation.method.lower()}_{name}"
    return name


def _name_of_path(operation: NamedOperation) -> str:
    """`GET /quote/{symbol}` becomes `get_quote_by_symbol`, `GET /` becomes `get_root`. Characters beyond ASCII letters and digits are left out."""
    parts = [operation.method.lower()]
    for position, part in enumerate(_VARIABLE.split(operation.path)):
        parts += ["by", part] if position % 2 else [part]  # every second part is a variable
    name = _join_words(parts)
    return name if name != parts[0] else f"{name}_root"


def _join_words(parts: Sequence[str]) -> str:
    return "_".join(word.lower() for part in parts for word in _WORD.findall(part))


def _needs_digest(name: str) -> bool:
    """Whether a name without a digest is too long or looks like a name of Tollway."""
    return len(name) > TOOL_NAME_LENGTH_MAX or name.translate(_LOOKALIKES) in _RESERVED


_RESERVED = frozenset(name.translate(_LOOKALIKES) for name in RESERVED_NAMES)


def _with_digest(name: str, digest: str) -> str:
    if not digest:
        return name
    length = TOOL_NAME_LENGTH_MAX - len(digest) - 1
    return f"{name[:length].rstrip('_')}_{digest}"
