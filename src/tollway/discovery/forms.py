"""Writes arguments as text, and a form from its fields as JSON: `multipart/form-data` (RFC 7578) or `application/x-www-form-urlencoded` (WHATWG URL §5.2). Pure.

Equal fields make equal bytes: the boundary follows from the content, as the Python client writes it, because a payment and an idempotency key are bound to the
body. Names and file names cannot end their header: the writer refuses control characters and backslashes, and escapes quotation marks as browsers do. Text stands
before files, in the order of the document: some servers read the fields of a file only where they precede it.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, unquote

from tollway.registry.text import find_refused_character

MULTIPART = "multipart/form-data"
URLENCODED = "application/x-www-form-urlencoded"

FIELD_NAME_LENGTH_MAX, FILE_NAME_LENGTH_MAX = 128, 255
PARTS_MAX = 1_000
"""The most values of one form. Servers refuse longer forms too."""

_JSON_TYPE, _BINARY_TYPE = "application/json", "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,62}/[A-Za-z0-9][A-Za-z0-9.+_-]{0,62}")
_BOUNDARY_LENGTH = 32
_DELIMITERS = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}
_TYPES_BY_ENDING = {
    "csv": "text/csv",
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "json": "application/json",
    "m4a": "audio/mp4",
    "md": "text/markdown",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "ogg": "audio/ogg",
    "pdf": "application/pdf",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "xml": "application/xml",
    "zip": "application/zip",
}
"""A table of our own: the one of Python reads files of the machine, and two gateways must write equal bytes."""
_ENDINGS_BY_TYPE = {kind: ending for ending, kind in _TYPES_BY_ENDING.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A field of a form. `is_file`: its values are base64 and become files. `media_types`: those that the document names for it, for a file to choose from.
    `style`: `deepObject` writes the members of an object as `name[member]`; with `is_exploded` a list becomes several values, else one value with
    delimiters."""

    name: str
    is_file: bool = False
    is_list: bool = False
    media_types: tuple[str, ...] = ()
    style: str = "form"
    is_exploded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPart:
    """A value of a form. `media_type` empty: none is written. `file_name` None: text, not a file."""

    name: str
    content: bytes
    media_type: str = ""
    file_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValue:
    """`name` and `media_type` are empty where the argument does not give them."""

    content: bytes
    name: str = ""
    media_type: str = ""


def bare_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def is_form(media_type: str | None) -> bool:
    return bare_type(media_type or "") in (MULTIPART, URLENCODED)


def is_json(media_type: str) -> bool:
    bare = bare_type(media_type)
    return bare == _JSON_TYPE or bare.endswith("+json")


def is_media_type(text: object) -> bool:
    """Whether a text is a concrete media type without parameters."""
    return isinstance(text, str) and _MEDIA_TYPE.fullmatch(text) is not None


def choose_media_type(types: Mapping[str, Any]) -> str | None:
    """The type of a request body that an agent sends, of the `content` of a document: JSON, a form, or the first other; None without a valid one."""
    known = [
        one for one in types if isinstance(one, str) and re.fullmatch(r"[\w.+*-]+/[\w.+*-]+(;[ -~]*)?", one)
    ]
    plain = [one for one in known if "*" not in one]
    best = next((one for one in plain if is_json(one)), None)
    if best is None and any(one in ("*/*", "application/*") for one in known):
        return "application/json"
    return best or next((one for one in plain if is_form(one)), None) or next(iter(plain), None)


def is_field_name(name: object) -> bool:
    """Whether a form can carry this name. A backslash is refused: some servers read it in a header as the start of an escape, others as itself."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= FIELD_NAME_LENGTH_MAX
        and "\\" not in name
        and find_refused_character(name, is_multiline=False) is None
    )


def write_form(
    argument: str, media_type: str, fields: Sequence[FormField], content: Mapping[str, Any]
) -> tuple[str, bytes]:
    """The `Content-Type` and the bytes of a form. `argument`: its name in errors. `fields`: those of the document; others are written as text. Null values are left out.
    Raises Unwritable."""
    parts = _list_parts(argument, fields, content)
    if bare_type(media_type) == MULTIPART:
        return write_multipart(parts)
    return media_type, "&".join(f"{_encode(part.name)}={_encode(part.content)}" for part in parts).encode()


def write_multipart(parts: Sequence[FormPart]) -> tuple[str, bytes]:
    between = [
        b"\r\n" + _write_head(part) + part.content + b"\r\n--" for part in parts
    ]  # what stands between two boundaries
    segments = [b"--", *between, b"--\r\n"]
    boundary = hashlib.sha256(b"\0".join(segments)).hexdigest()[:_BOUNDARY_LENGTH]
    return f"{MULTIPART}; boundary={boundary}", boundary.encode().join(segments)


def read_file(argument: str, value: Any, *, member: str = "") -> FileValue:
    """A file from base64 (RFC 4648 §4), or from a `data:` URL (RFC 2397) with base64, whose parameter `name` is the file name. Raises Unwritable."""
    if not isinstance(value, str):
        raise Unwritable(argument, "A file is a text: base64, or a data: URL with base64.", member=member)
    head, given = "", value
    if value[:5].lower() == "data:":
        head, comma, given = value[5:].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise Unwritable(
                argument,
                "Write a file as data:TYPE;name=NAME;base64,DATA, or as base64 alone.",
                member=member,
            )
    try:
        content = base64.b64decode("".join(given.split()), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise Unwritable(
            argument, "This is not base64 (RFC 4648 §4, with its padding).", member=member
        ) from exc
    media_type, *parameters = head.split(";")
    names = [one[5:] for one in parameters if one[:5].lower() == "name="]
    return FileValue(
        content=content,
        name=_read_file_name(argument, unquote(names[0], errors="replace"), member) if names else "",
        media_type=media_type if is_media_type(media_type) else "",
    )


def _read_file_name(argument: str, text: str, member: str) -> str:
    """The last part of a path. Raises Unwritable for a name that no header can carry."""
    name = re.split(r"[/\\]", text)[-1]
    if len(name) > FILE_NAME_LENGTH_MAX or find_refused_character(name, is_multiline=False) is not None:
        raise Unwritable(
            argument,
            f"A file name has at most {FILE_NAME_LENGTH_MAX} characters and no control characters.",
            member=member,
        )
    return "" if name in (".", "..") else name


# ---- The parts.


def _list_parts(argument: str, fields: Sequence[FormField], content: Mapping[str, Any]) -> list[FormPart]:
    known = {field.name: field for field in fields}
    order = [
        *(name for name in known if name in content),
        *sorted(name for name in content if name not in known),
    ]
    texts: list[FormPart] = []
    files: list[FormPart] = []
    for name in order:
        if not is_field_name(name):
            raise Unwritable(
                argument,
                f"The name of a field has 1 to {FIELD_NAME_LENGTH_MAX} characters, no control character and no backslash.",
            )
        field = known.get(name) or FormField(name=name)
        made = _make_files if field.is_file else _make_texts
        for part in made(argument, field, content[name]):
            (files if field.is_file else texts).append(part)
            if len(texts) + len(files) > PARTS_MAX:
                raise Unwritable(argument, f"A form has at most {PARTS_MAX} values.")
    return [*texts, *files]


def _make_files(argument: str, field: FormField, value: Any) -> Iterator[FormPart]:
    for one in list_values(value):
        given = read_file(argument, one, member=field.name)
        by_ending = _TYPES_BY_ENDING.get(given.name.rpartition(".")[2].lower())
        single = field.media_types[0] if len(field.media_types) == 1 else None
        media_type = given.media_type or single or by_ending or _BINARY_TYPE
        yield FormPart(
            name=field.name,
            content=given.content,
            media_type=media_type,
            file_name=given.name or _default_file_name(field, media_type),
        )


def _default_file_name(field: FormField, media_type: str) -> str:
    """Servers take a part without a file name for text."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "", field.name)[:64] or "file"
    ending = _ENDINGS_BY_TYPE.get(media_type)
    return f"{plain}.{ending}" if ending else plain


def _make_texts(argument: str, field: FormField, value: Any) -> Iterator[FormPart]:
    declared = field.media_types[0] if len(field.media_types) == 1 else ""
    if is_json(declared):
        if value is not None:
            text = write_json(argument, value)
            yield FormPart(name=field.name, content=text.encode(), media_type=declared)
    elif field.style == "deepObject":
        for name, one in _flatten(field.name, value):
            if not is_field_name(name):
                raise Unwritable(argument, "The name of a member cannot stand in a form.", member=field.name)
            yield FormPart(name=name, content=write_text(argument, one).encode(), media_type=declared)
    elif isinstance(value, list | tuple) and not field.is_exploded:
        if value:
            delimiter = _DELIMITERS.get(field.style, ",")
            text = delimiter.join(write_text(argument, one) for one in value)
            yield FormPart(name=field.name, content=text.encode(), media_type=declared)
    else:
        for one in list_values(value):
            if one is not None:
                is_nested = isinstance(one, Mapping | list | tuple)
                kind = declared or (_JSON_TYPE if is_nested else "")
                yield FormPart(name=field.name, content=write_text(argument, one).encode(), media_type=kind)


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`name[member]` for each member, `name[0]` for each entry of a list, at any depth. The depth of the arguments is bounded where their JSON is read."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _flatten(f"{name}[{key}]", value[key])
    elif isinstance(value, list | tuple):
        for position, one in enumerate(value):
            yield from _flatten(f"{name}[{position}]", one)
    elif value is not None:
        yield name, value


# ---- The bytes.


def _write_head(part: FormPart) -> bytes:
    head = f'Content-Disposition: form-data; name="{_escape(part.name)}"'
    if part.file_name is not None:
        head += f'; filename="{_escape(part.file_name)}"'
    if part.media_type:
        head += f"\r\nContent-Type: {part.media_type}"
    return f"{head}\r\n\r\n".encode()


def _escape(text: str) -> str:
    """WHATWG HTML, "multipart/form-data encoding algorithm". Names have no line breaks here; the escapes stand for a caller that does not check them."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")


def _encode(text: str | bytes) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


# ---- Values as text.


class Unwritable(Exception):
    """A value that no request can carry. `name`: of the argument; `member`: of its member, empty for the whole argument."""

    def __init__(self, name: str, detail: str, *, member: str = "") -> None:
        self.pointer = "".join("/" + _escape_pointer(part) for part in (name, member) if part)
        self.detail = detail
        super().__init__(detail)


def _escape_pointer(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def write_text(name: str, value: Any) -> str:
    """Text as it is; other values as JSON. Raises Unwritable for text without a UTF-8 form."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise Unwritable(name, "Half a surrogate pair has no UTF-8 form.") from exc
        return value
    if isinstance(value, Mapping | list | tuple):
        return write_json(name, value)
    return json.dumps(value)


def write_json(name: str, value: Any) -> str:
    """Canonical JSON: members sorted by name, no spaces. Raises Unwritable."""
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as exc:
        raise Unwritable(name, "This cannot be written as JSON.") from exc
    return text


def list_values(value: Any) -> list[Any]:
    """The values of an argument: those of a list, one value, or none for null."""
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]
