"""Forms from JSON: equal fields make equal bytes, servers read what was meant, and no name or file name leaves its header."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote

import httpx
import pytest
from python_multipart.multipart import FormParser

from tollway.client.quote import Cap
from tollway.client.requests import plan_call
from tollway.client.transfer import CallRules
from tollway.discovery.forms import (
    FIELD_NAME_LENGTH_MAX,
    MULTIPART,
    PARTS_MAX,
    URLENCODED,
    FormField,
    FormPart,
    Unwritable,
    is_field_name,
    read_file,
    write_form,
    write_multipart,
)

IMAGE = base64.b64encode(b"\x89PNG\r\n--x").decode()


def data_url(name: str, media_type: str = "image/png") -> str:
    return f"data:{media_type};name={name};base64,{IMAGE}"


def parse(content_type: str, body: bytes) -> tuple[list[tuple[str, str]], list[tuple[str, str, str, bytes]]]:
    """The fields and the files, as a server of others reads them."""
    if content_type == URLENCODED:
        return parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body)), []
    fields: list[tuple[str, str]] = []
    files: list[tuple[str, str, str, bytes]] = []

    def add_file(found: Any) -> None:
        found.file_object.seek(0)
        content = found.file_object.read()
        files.append((found.field_name.decode(), found.file_name.decode(), str(found.content_type), content))

    parser = FormParser(
        content_type.partition(";")[0],
        lambda found: fields.append((found.field_name.decode(), (found.value or b"").decode())),
        add_file,
        boundary=content_type.partition("boundary=")[2],
    )
    parser.write(body)
    parser.finalize()
    return fields, files


FIELDS = (
    FormField(name="file", is_file=True),
    FormField(name="files", is_file=True, is_list=True),
    FormField(name="photo", is_file=True, media_types=("image/webp",)),
    FormField(name="meta", media_types=("application/json",)),
    FormField(name="joined", is_exploded=False),
    FormField(name="spaced", style="spaceDelimited", is_exploded=False),
    FormField(name="deep", style="deepObject", is_exploded=True),
    FormField(name="note"),
)

TEXTS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"note": "x"}, [("note", "x")]),
    ({"note": ""}, [("note", "")]),
    ({"note": None}, []),
    ({"note": True}, [("note", "true")]),
    ({"note": 0.5}, [("note", "0.5")]),
    ({"note": "é\r\nü&=+ %"}, [("note", "é\r\nü&=+ %")]),
    ({"note": [1, None, "b"]}, [("note", "1"), ("note", "b")]),
    ({"note": {"b": 1, "a": [2]}}, [("note", '{"a":[2],"b":1}')]),
    ({"note": [{"a": 1}, {"a": 2}]}, [("note", '{"a":1}'), ("note", '{"a":2}')]),
    ({"meta": [1, {"b": 2}]}, [("meta", '[1,{"b":2}]')]),
    ({"joined": [1, "b"]}, [("joined", "1,b")]),
    ({"spaced": [1, "b"]}, [("spaced", "1 b")]),
    ({"joined": []}, []),
    (
        {"deep": {"b": {"c": [1, {"d": 2}]}, "a": None, "e": "f"}},
        [("deep[b][c][0]", "1"), ("deep[b][c][1][d]", "2"), ("deep[e]", "f")],
    ),
    ({"z": 1, "a": 2, "note": 3}, [("note", "3"), ("a", "2"), ("z", "1")]),
    ({"items[]": ["p", "q"]}, [("items[]", "p"), ("items[]", "q")]),
]


@pytest.mark.parametrize(("content", "read"), TEXTS)
def test_a_server_reads_the_fields(content: dict[str, Any], read: list[tuple[str, str]]) -> None:
    for media_type in (MULTIPART, URLENCODED):
        content_type, body = write_form("body", media_type, FIELDS, content)
        assert parse(content_type, body) == (read, []), media_type
        again = dict(reversed(content.items()))
        assert write_form("body", media_type, FIELDS, again) == (content_type, body), media_type


FILES: list[tuple[dict[str, Any], list[tuple[str, str, str]]]] = [
    ({"file": IMAGE}, [("file", "file", "application/octet-stream")]),
    ({"file": data_url("cat.png")}, [("file", "cat.png", "image/png")]),
    ({"file": data_url("cat.PDF", "")}, [("file", "cat.PDF", "application/pdf")]),
    ({"file": data_url("a%20%C3%A9.x", "")}, [("file", "a é.x", "application/octet-stream")]),
    ({"file": data_url("%2Fetc%2Fpasswd")}, [("file", "passwd", "image/png")]),
    ({"file": data_url("C%3A%5Cx%5Cy.png")}, [("file", "y.png", "image/png")]),
    ({"file": data_url("..%2F..")}, [("file", "file.png", "image/png")]),
    ({"photo": IMAGE}, [("photo", "photo.webp", "image/webp")]),
    ({"photo": data_url("a.gif", "")}, [("photo", "a.gif", "image/webp")]),
    ({"photo": data_url("a.gif", "image/gif")}, [("photo", "a.gif", "image/gif")]),
    (
        {"files": [IMAGE, data_url("b.png")]},
        [("files", "files", "application/octet-stream"), ("files", "b.png", "image/png")],
    ),
    ({"file": None}, []),
]


@pytest.mark.parametrize(("content", "read"), FILES)
def test_a_file_has_a_name_and_a_type(content: dict[str, Any], read: list[tuple[str, str, str]]) -> None:
    content_type, body = write_form("body", MULTIPART, FIELDS, content)
    fields, files = parse(content_type, body)
    assert fields == []
    assert [one[:2] for one in files] == [one[:2] for one in read]
    assert all(one[3] == base64.b64decode(IMAGE) for one in files)
    for _, _, media_type in read:
        assert f"\r\nContent-Type: {media_type}\r\n".encode() in body


def test_text_stands_before_files() -> None:
    content_type, body = write_form("body", MULTIPART, FIELDS, {"file": IMAGE, "note": "x", "extra": 1})
    boundary = content_type.partition("boundary=")[2].encode()
    names = [part.partition(b'name="')[2].partition(b'"')[0] for part in body.split(boundary)[1:-1]]
    assert names == [b"note", b"extra", b"file"]


def test_the_bytes_of_urlencoded_are_those_of_a_browser() -> None:
    _, body = write_form("body", URLENCODED, (), {"a b": "~*-._ é&=\n"})
    assert body == b"a+b=%7E*-._+%C3%A9%26%3D%0A"


@pytest.mark.parametrize(
    "name", ["", "a\r\nX-Evil: 1", "a\0", "a\\", "a\u202eb", "a\nb", "x" * (FIELD_NAME_LENGTH_MAX + 1), 5]
)
def test_a_name_that_no_header_can_carry_is_refused(name: Any) -> None:
    assert not is_field_name(name)
    for media_type in (MULTIPART, URLENCODED):
        with pytest.raises(Unwritable):
            write_form("body", media_type, FIELDS, {name: "x"})


def test_a_member_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(Unwritable) as caught:
        write_form("body", MULTIPART, FIELDS, {"deep": {'a"\r\nb': 1}})
    assert caught.value.pointer == "/body/deep"


def test_a_quotation_mark_stays_in_its_name() -> None:
    name, file_name = 'a"; filename="b', 'c"; x="d.png'
    field = FormField(name=name, is_file=True)
    content_type, body = write_form("body", MULTIPART, (field,), {name: data_url(quote(file_name))})
    assert b'name="a%22; filename=%22b"; filename="c%22; x=%22d.png"' in body
    _, ((read, read_file_name, _, _),) = parse(content_type, body)
    assert (read, read_file_name) == (name.replace('"', "%22"), file_name.replace('"', "%22"))


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "YQ",
        "not base64!",
        "YQ==YQ==",
        "data:image/png,abc",
        "data:image/png;base64",
        "data:;base64,é",
        5,
        {"a": 1},
        data_url("a%0D%0Ab"),
        data_url("x" * 256),
        data_url("a%00b"),
    ],
)
def test_what_is_no_file_is_refused_at_its_member(value: Any) -> None:
    with pytest.raises(Unwritable) as caught:
        write_form("body", MULTIPART, FIELDS, {"file": value})
    assert caught.value.pointer == "/body/file"


def test_base64_may_have_line_breaks() -> None:
    assert read_file("body", "dG\nV4 dA==").content == b"text"
    assert read_file("body", "DATA:text/plain;BASE64,dGV4dA==").media_type == "text/plain"
    assert read_file("body", "data:text/plain\r\nX: 1;base64,dGV4dA==").media_type == ""


def test_a_form_of_too_many_values_is_refused() -> None:
    write_form("body", URLENCODED, (), {"a": [1] * PARTS_MAX})
    with pytest.raises(Unwritable, match=str(PARTS_MAX)):
        write_form("body", URLENCODED, (), {"a": [1] * (PARTS_MAX + 1)})
    with pytest.raises(Unwritable):
        write_form("body", MULTIPART, (), {f"f{number}": 1 for number in range(10_000)})


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(Unwritable):
        write_form("body", MULTIPART, FIELDS, {"note": "\ud800"})


def test_content_cannot_end_its_part() -> None:
    """The boundary follows from the whole content, so that no part can contain it."""
    content_type, _ = write_form("body", MULTIPART, FIELDS, {"note": "x"})
    boundary = content_type.partition("boundary=")[2]
    forged = f'\r\n--{boundary}\r\nContent-Disposition: form-data; name="admin"\r\n\r\n1\r\n--{boundary}--'
    fields, _ = parse(*write_form("body", MULTIPART, FIELDS, {"note": forged}))
    assert fields == [("note", forged)]


def test_the_client_writes_the_same_bytes() -> None:
    """`tollway call --form`, the Python client and the gateway have one form of a form."""
    files: Sequence[tuple[str, Any]] = [
        ("note", (None, b"x y")),
        ("file", ("cat.png", b"\x89PNG\r\n", "image/png")),
    ]
    plan = plan_call(
        "https://gw.example.com",
        "api_1",
        "/ocr",
        {"files": files, "method": "POST"},
        defaults=CallRules(max_price=Cap.parse("1 USDC")),
        timeout=httpx.Timeout(5),
    )
    parts = (
        FormPart(name="note", content=b"x y"),
        FormPart(name="file", content=b"\x89PNG\r\n", media_type="image/png", file_name="cat.png"),
    )
    headers: Mapping[str, str] = httpx.Headers(list(plan.headers))
    assert write_multipart(parts) == (headers["content-type"], plan.body)


def test_json_of_a_field_is_canonical() -> None:
    _, body = write_form("body", MULTIPART, FIELDS, {"meta": {"b": 1, "a": 2}})
    assert (
        b"Content-Type: application/json\r\n\r\n"
        + json.dumps({"a": 2, "b": 1}, separators=(",", ":")).encode()
        in body
    )
