"""The path template of an operation, such as `/v1/cities/{city}`: its grammar, and when two templates are one.

A template is written in normal form, because that is what calls are matched in: a segment is literal text or one
`{name}`. Pure.
"""

import re

PATH_PARAMETERS_MAX = 16

# RFC 3986 `pchar` without `;`: matrix parameters are dropped before matching, so they could never match.
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-F]{2})+")
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}")
_DOTS = re.compile(r"(?:\.|%2[eE]){1,2}")
_UPPER_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_UNRESERVED_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEPARATORS = frozenset(b"/\\;%")


def find_path_fault(path: str) -> str | None:
    """What is wrong with a template; None when nothing is."""
    if not path.startswith("/"):
        return "must begin with /"
    if path == "/":
        return None
    parameters: list[str] = []
    for segment in path[1:].split("/"):
        if segment == "":
            return "must not hold // or end with /"
        if parameter := _PARAMETER.fullmatch(segment):
            parameters.append(parameter[1])
        elif fault := _find_literal_fault(segment):
            return fault
    if len(set(parameters)) != len(parameters) or len(parameters) > PATH_PARAMETERS_MAX:
        return f"must name each parameter once, and at most {PATH_PARAMETERS_MAX}"
    return None


def path_shape(path: str) -> str:
    """The template without the names of its parameters: two operations of one shape would match the same calls."""
    return _PARAMETER.sub("{}", path)


def _find_literal_fault(segment: str) -> str | None:
    if "{" in segment or "}" in segment:
        return "must hold a parameter as a whole segment: /{name}/"
    if _DOTS.fullmatch(segment):
        return "must not hold . or .. segments"
    if not _LITERAL.fullmatch(segment):
        return "must be a path: no query, no fragment, other characters percent-encoded in upper case"
    for escape in _UPPER_ESCAPE.findall(segment):
        byte = int(escape, 16)
        if byte in _UNRESERVED_BYTES:
            return f"must write %{escape} as the plain character"
        if byte in _SEPARATORS or byte < 0x20 or byte == 0x7F:
            return f"must not hold %{escape}"
    return None
