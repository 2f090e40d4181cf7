"""The languages of the pages: PO files, the choice of a language, and templates whose every text is a message."""

import re
from gettext import NullTranslations
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from jinja2 import Environment, nodes

from tests.kit.message_catalog import HEADER, PSEUDO, LongWords, extract_messages
from tests.kit.pages import PageHarness, PageReader
from tollway.web.pages.languages import (
    LOCALE,
    choose_language,
    compile_catalog,
    parse_catalog,
    read_catalogs,
    write_catalog,
)
from tollway.web.pages.renderer import TEMPLATES

POLISH = r"""# A comment.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\n"

#: search.j2
msgid "Search"
msgstr "Szukaj"
#, fuzzy
msgid "Sign in"
msgstr "Wpisz"

msgid "a \"quoted\"\ttext\n"
"in two lines"
msgstr "cytat: \"\\\""

msgid "%(num)s call"
msgid_plural "%(num)s calls"
msgstr[0] "%(num)s wywołanie"
msgstr[1] "%(num)s wywołania"
msgstr[2] "%(num)s wywołań"

msgid "Calls"
msgstr ""
"""

# ---- Catalogs.


@pytest.mark.parametrize(
    ("message", "translation"),
    [
        ("Search", "Szukaj"),
        ('a "quoted"\ttext\nin two lines', 'cytat: "\\"'),
        ("Sign in", "Sign in"),
        ("Calls", "Calls"),
        ("not in the file", "not in the file"),
    ],
    ids=("plain", "escapes and lines", "fuzzy", "not translated", "unknown"),
)
def test_a_catalog_translates_what_it_has(message: str, translation: str) -> None:
    assert compile_catalog(POLISH).gettext(message) == translation


@pytest.mark.parametrize(
    ("n", "form"), [(1, "wywołanie"), (3, "wywołania"), (5, "wywołań"), (22, "wywołania")]
)
def test_a_catalog_has_the_plurals_of_its_language(n: int, form: str) -> None:
    assert compile_catalog(POLISH).ngettext("%(num)s call", "%(num)s calls", n) == f"%(num)s {form}"


@pytest.mark.parametrize(
    ("source", "line"),
    [("msgid open", 1), ('msgid "a"\nmsgstr "b', 2), ('msgid "a"\n\nhello\n', 3), ('msgid "a" x', 1)],
)
def test_a_file_that_is_no_catalog_names_the_line(source: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"^line {line} "):
        compile_catalog(source)


def test_what_is_written_is_read_again() -> None:
    messages = [('a "b"\\\n\tc', None), ("%(num)s d", "%(num)s ds")]
    entries = list(parse_catalog(write_catalog(HEADER, messages)))
    assert [(one.message, one.plural) for one in entries[1:]] == messages


def test_the_english_catalog_has_every_message() -> None:
    """After a change of a template: python -m tests.kit.message_catalog"""
    assert (LOCALE / "en.po").read_text("utf-8") == write_catalog(HEADER, extract_messages())
    messages = dict(extract_messages())
    assert len(messages) > 200
    for message in ("Search", "Such as %(tags)s", "At least %(total)s APIs"):  # with and without a value
        assert message in messages
    assert messages["%(num)s API"] == "%(num)s APIs"


def test_every_catalog_of_the_package_compiles_and_keeps_the_placeholders() -> None:
    assert "en" in read_catalogs()
    for path in LOCALE.glob("*.po"):
        for entry in parse_catalog(path.read_text("utf-8")):
            for translation in filter(None, entry.translations if entry.message else ()):
                assert set(re.findall(r"%\(\w+\)s", translation)) <= set(
                    re.findall(r"%\(\w+\)s", entry.message + (entry.plural or ""))
                ), (path.name, entry.message)


# ---- The choice.


@pytest.mark.parametrize(
    ("chosen", "accept", "language"),
    [
        ("", "", "en"),
        ("", "de", "de"),
        ("", "de-AT, en;q=0.8", "de"),
        ("", "pt-br", "pt-BR"),
        ("", "pt", "en"),
        ("", "fr, de;q=0.2", "de"),
        ("", "en;q=0.3, de;q=0.9", "de"),
        ("", "de;q=0, *", "en"),
        ("", "de;q=x, ;;, -", "en"),
        ("de", "pt-BR", "de"),
        ("fr", "pt-BR", "pt-BR"),
        ("../../etc", "de", "de"),
    ],
)
def test_the_readers_choice_comes_before_the_browsers(chosen: str, accept: str, language: str) -> None:
    found = choose_language(chosen=chosen, accept_language=accept, available=("de", "en", "pt-BR"))
    assert found == language


@pytest.mark.parametrize(
    ("headers", "language"),
    [
        ({}, "en"),
        ({"Accept-Language": "en-XA"}, PSEUDO),
        ({"Cookie": f"lang={PSEUDO}"}, PSEUDO),
        ({"Accept-Language": "en-XA", "Cookie": "a=b; lang=en"}, "en"),
    ],
)
async def test_a_page_has_the_words_of_its_language(headers: dict[str, str], language: str) -> None:
    harness = PageHarness(catalogs={"en": NullTranslations(), PSEUDO: LongWords()})
    async with harness.open_pages() as browser:
        answer: httpx.Response = await browser.get("/status", headers=headers)
    assert f'<html lang="{language}"' in answer.text
    words = PageReader(answer.text).words
    assert ("Skipxx tox thexx contentxxx" in words) is (language == PSEUDO)
    assert ("Skip to the content" in words) is (language == "en")
    assert f'data-language="{PSEUDO}"' in answer.text


async def test_one_language_needs_no_switch() -> None:
    async with PageHarness().open_pages() as browser:
        assert "data-language" not in (await browser.get("/status")).text


# ---- Every text of a template is a message.

NO_WORDS = frozenset({"Tollway", "TOLLWAY", "HTTP", "JSON", "MCP", "MPP", "OpenAPI", "UTC"})
"""Names, which no language translates."""
_LETTERS = re.compile(r"[^\W\d_]{3,}")
_ATTRIBUTE = re.compile(r'[\w-]+="[^"]*"')
"""An attribute that a macro writes into the tag of another template."""
_SPOKEN = ("title", "alt", "aria-label", "placeholder", "aria-description")


class TextFinder(HTMLParser):
    """The texts of a template outside of its expressions, and those of attributes that a person reads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._unread: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("code", "svg", "pre"):
            self._unread.append(tag)
        self.found.extend(value or "" for name, value in attrs if name in _SPOKEN)

    def handle_endtag(self, tag: str) -> None:
        if self._unread and self._unread[-1] == tag:
            self._unread.pop()

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self.found.append(data)


def list_words(path: Path) -> list[str]:
    """The words of a template that stand outside of its expressions."""
    tree = Environment(extensions=["jinja2.ext.i18n"]).parse(path.read_text())
    pieces = []
    for output in tree.find_all(nodes.Output):
        pieces += [one.data if isinstance(one, nodes.TemplateData) else "\0" for one in output.nodes]
    finder = TextFinder()
    finder.feed("".join(pieces))
    return [
        word
        for text in finder.found
        for word in _LETTERS.findall(_ATTRIBUTE.sub("", text.replace("llms.txt", "")))
    ]


def test_every_text_of_a_template_is_a_message() -> None:
    words = [(path.name, word) for path in TEMPLATES.glob("*.j2") for word in list_words(path)]
    assert [one for one in words if one[1] not in NO_WORDS] == []


def test_a_message_is_a_literal() -> None:
    """Otherwise no catalog has it. The labels of the navigation come from tables, which the catalog reads."""
    found = []
    for path in TEMPLATES.glob("*.j2"):
        tree = Environment(extensions=["jinja2.ext.i18n"]).parse(path.read_text())
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in ("_", "gettext", "ngettext"):
                literal = call.args[: 2 if call.node.name == "ngettext" else 1]
                found += [path.name for one in literal if not isinstance(one, nodes.Const)]
    assert found == ["base.j2"] * 3
