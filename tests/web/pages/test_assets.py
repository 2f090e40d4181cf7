"""The files of the pages: marks, caching, compression, and templates that cannot switch the escaping off."""

import gzip
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.kit.pages import PageHarness
from tollway.web.pages.assets import UI_FOLDER, PageAsset, PageAssets, read_assets
from tollway.web.pages.renderer import TEMPLATES, content_security_policy

JS_BYTES_MAX, CSS_BYTES_MAX = 40_000, 12_000


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with PageHarness().open_pages() as client:
        yield client


async def raw(client: httpx.AsyncClient, path: str, coding: str) -> tuple[httpx.Response, bytes]:
    async with client.stream("GET", path, headers={"Accept-Encoding": coding}) as answer:
        return answer, b"".join([chunk async for chunk in answer.aiter_raw()])


async def test_a_file_is_immutable_under_its_mark_and_compressed(client: httpx.AsyncClient) -> None:
    path = read_assets().path_of("app.css")
    answer, body = await raw(client, path, "gzip")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(body) == (UI_FOLDER / "app.css").read_bytes()
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    answer, body = await raw(client, path, "identity")
    assert "content-encoding" not in answer.headers
    assert body == (UI_FOLDER / "app.css").read_bytes()


async def test_a_mark_of_another_release_gets_the_current_file_for_a_minute(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/ui/000000000000/app.css")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=60")


@pytest.mark.parametrize("name", ["none.js", "base.j2", "..%2Fdocs.js", "%2e%2e%2fpage_assets.py"])
async def test_only_files_of_the_pages_are_served(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/ui/{read_assets().mark}/{name}")).status_code == 404


def test_the_mark_changes_with_a_name_and_with_a_byte() -> None:
    def mark(name: str, body: bytes) -> str:
        asset = PageAsset(media_type="text/css", body=body, gzipped=b"")
        return PageAssets({name: asset, "other.js": asset}).mark

    marks = {mark("a.css", b"x"), mark("b.css", b"x"), mark("a.css", b"y")}
    assert len(marks) == 3
    assert all(re.fullmatch(r"[0-9a-f]{12}", one) for one in marks)


def test_the_files_together_stay_small() -> None:
    assets = read_assets()
    sizes = {name: len(asset.gzipped) for name in assets if (asset := assets.find(name)) is not None}
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) <= JS_BYTES_MAX
    assert sizes["app.css"] <= CSS_BYTES_MAX


UNESCAPED = re.compile(r"\|\s*(?:safe|tojson|xmlattr|urlize)\b|autoescape|Markup")
INLINE = re.compile(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]* src=)")


def test_a_template_marks_nothing_as_safe_and_has_no_inline_script_or_style() -> None:
    texts = {path.name: path.read_text() for path in TEMPLATES.glob("*.j2")}
    assert [(name, found) for name, text in texts.items() for found in UNESCAPED.findall(text)] == []
    assert [(name, found) for name, text in texts.items() for found in INLINE.findall(text)] == []


SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\b|new Function|"
    r"setTimeout\(\s*[\"'`]|srcdoc|setAttribute\(\s*[\"'](?:on|style|href|src)|(?<!\{)\bimport\((?!\"\./[a-z_]+\.js\"\))"
)


IMPORTED = re.compile(r"^import .*? from \"([^\"]+)\"", re.M)


def test_a_module_turns_no_text_into_markup_and_loads_nothing_from_other_hosts() -> None:
    texts = {path.name: path.read_text() for path in UI_FOLDER.glob("*.js")}
    assert [(name, found) for name, text in texts.items() for found in SINKS.findall(text)] == []
    imported = [(name, module) for name, text in texts.items() for module in IMPORTED.findall(text)]
    assert [one for one in imported if not one[1].startswith("./")] == []
    assert [name for name, text in texts.items() if re.search("https?://", text)] == []


@pytest.mark.parametrize(
    ("public_url", "sources"),
    [
        ("https://gw.example.com", "https://gw.example.com/ui/"),
        ("http://127.0.0.1:8402", "http://127.0.0.1:8402/ui/ http://localhost:8402/ui/"),
        ("http://localhost", "http://localhost/ui/ http://127.0.0.1/ui/"),
        ("http://127.0.0.10", "http://127.0.0.10/ui/"),
    ],
)
def test_the_policy_names_scripts_by_path(public_url: str, sources: str) -> None:
    rules = dict(
        rule.strip().split(" ", 1)
        for rule in content_security_policy(public_url).split(";")
        if " " in rule.strip()
    )
    assert rules["script-src"] == rules["script-src-elem"] == rules["style-src"] == sources
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["trusted-types"] == "'none'"
