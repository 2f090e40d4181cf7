"""The messages of the templates, translated when a template is compiled.

Each language has an environment of its own, so a message is a constant there: `_("Search")` becomes a part of the text around it, and `_("%(calls)s calls", calls=one.calls)` a
join of its parts. Called for each view, the messages took half of the time of a page. What depends on the view (`ngettext`, `_(section.label)`) is translated then, as before.
"""

import re
from gettext import NullTranslations
from types import CodeType
from typing import cast

from jinja2 import Environment, nodes
from jinja2.visitor import NodeTransformer

_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


class MessageEnvironment(Environment):
    """An environment whose templates are compiled for one language. `words`: its catalog."""

    words: NullTranslations

    def install(self, words: NullTranslations) -> None:
        self.words = words
        self.install_gettext_translations(words, newstyle=True)  # type: ignore[attr-defined]  # added by the extension

    def compile(  # type: ignore[override]  # the other overloads give raw code, which nothing asks for
        self, source: str | nodes.Template, name: str | None = None, filename: str | None = None
    ) -> CodeType:
        tree = self.parse(source, name, filename) if isinstance(source, str) else source
        return super().compile(_Translator(self.words).visit(tree), name, filename)


class _Translator(NodeTransformer):
    """Replaces the messages of a tree that are constants. They are texts like any other, which the compiler escapes."""

    def __init__(self, words: NullTranslations) -> None:
        self._words = words

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802 - named after the class of the node
        found = cast(nodes.Call, self.generic_visit(node))
        if not (isinstance(found.node, nodes.Name) and found.node.name == "_" and len(found.args) == 1):
            return found
        message, values = found.args[0], {one.key: one.value for one in found.kwargs}
        if not isinstance(message, nodes.Const) or found.dyn_args or found.dyn_kwargs:
            return found
        texts = _PLACEHOLDER.split(self._words.gettext(message.value))
        if any("%" in text.replace("%%", "") for text in texts[::2]) or not values.keys() >= {*texts[1::2]}:
            # An unknown placeholder is an error of the view, as it would be without this.
            return found
        parts: list[nodes.Expr] = [
            values[text] if number % 2 else nodes.Const(text.replace("%%", "%"))
            for number, text in enumerate(texts)
        ]
        return (parts[0] if len(parts) == 1 else nodes.Concat(parts)).set_lineno(node.lineno)
