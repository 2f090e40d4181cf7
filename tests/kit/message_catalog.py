"""The messages of the templates and of the module that pays: extracted for `en.po`, and lengthened as a language that no browser has.

`python -m tests.kit.message_catalog` writes `en.po`.
"""

import re
import sys
from collections.abc import Iterator
from gettext import NullTranslations

from jinja2 import Environment

from tollway.web.operator.operator_app import SECTIONS as ADMIN_SECTIONS
from tollway.web.pages.call_form import WORDS
from tollway.web.pages.languages import LOCALE, write_catalog
from tollway.web.pages.renderer import PUBLIC_SECTIONS, TEMPLATES

PSEUDO = "en-XA"
LONGER = 0.4
HEADER = {
    "Language": "en",
    "MIME-Version": "1.0",
    "Content-Type": "text/plain; charset=UTF-8",
    "Content-Transfer-Encoding": "8bit",
    "Plural-Forms": "nplurals=2; plural=(n != 1);",
}
_PLACEHOLDER_OR_WORD = re.compile(r"%\([a-z_0-9]+\)s|%%|[^\W\d_]{2,}")


def extract_messages() -> Iterator[tuple[str, str | None]]:
    """Each message once, with its plural, in the order of the templates. The labels of the navigation and the words of the module that pays are messages too."""
    environment = Environment(extensions=["jinja2.ext.i18n"])
    environment.policies["ext.i18n.trimmed"] = False
    sections = (*PUBLIC_SECTIONS, *ADMIN_SECTIONS)
    found: dict[str, str | None] = {one.label: None for one in sections}
    found |= {tab.label: None for one in sections for tab in one.tabs}
    for path in sorted(TEMPLATES.glob("*.j2")):
        for _, function, arguments in environment.extract_translations(path.read_text()):  # type: ignore[attr-defined]  # added by the extension
            message, *others = arguments if isinstance(arguments, tuple) else (arguments,)
            if function == "ngettext":
                found[message] = others[0]
            elif message is not None:
                found.setdefault(message, None)
    for message in WORDS.values():
        found.setdefault(message, None)
    yield from found.items()


class LongWords(NullTranslations):
    """A language whose words are 40 % longer than those of English."""

    def gettext(self, message: str) -> str:
        return _PLACEHOLDER_OR_WORD.sub(_lengthen, message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return self.gettext(msgid1 if n == 1 else msgid2)


def _lengthen(match: re.Match[str]) -> str:
    word = match[0]
    return word if word.startswith("%") else word + "x" * -int(-len(word) * LONGER // 1)


def main() -> int:
    (LOCALE / "en.po").write_text(write_catalog(HEADER, extract_messages()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
