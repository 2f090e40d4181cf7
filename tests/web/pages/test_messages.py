"""The messages of the templates: constants of a compiled template, escaped like any other text, and equal to what the extension of Jinja2 makes of them."""

from gettext import NullTranslations

import pytest
from jinja2 import DictLoader, StrictUndefined, nodes
from jinja2.exceptions import UndefinedError

from tests.kit.message_catalog import LongWords
from tollway.web.pages.messages import MessageEnvironment
from tollway.web.pages.renderer import FILTERS, TEMPLATES


class Upper(NullTranslations):
    """Counts what is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[str] = []

    def gettext(self, message: str) -> str:
        self.looked_up.append(message)
        return message.replace("calls", "CALLS")


def make_environment(words: NullTranslations, **templates: str) -> MessageEnvironment:
    environment = MessageEnvironment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
    )
    environment.install(words)
    environment.filters.update(FILTERS)
    return environment


MARKUP = "<b title='x'>&\"%</b>"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('{{ _("all calls") }}', "all CALLS"),
        ('<a title="{{ _("calls") }}">', '<a title="CALLS">'),
        ('{{ _("%(n)s calls of %(who)s", n=3, who=name) }}', "3 CALLS of &lt;b title=&#39;x&#39;&gt;&amp;&#34;%&lt;/b&gt;"),
        ('{{ _("%(n)s", n=name) }}', "&lt;b title=&#39;x&#39;&gt;&amp;&#34;%&lt;/b&gt;"),
        ('{{ _("100 %% of calls") }}', "100 % of CALLS"),
        ('{{ _("<b>calls</b>") }}', "&lt;b&gt;CALLS&lt;/b&gt;"),
        ('{{ _("calls") ~ name }}', "CALLS&lt;b title=&#39;x&#39;&gt;&amp;&#34;%&lt;/b&gt;"),
        ('{{ _(label) }}', "CALLS"),
        ('{% macro row(words) %}<td>{{ words }}</td>{% endmacro %}{{ row(_("calls")) }}', "<td>CALLS</td>"),
        ('{{ ngettext("%(num)s call", "%(num)s calls", 2) }}', "2 calls"),
    ],
)  # fmt: skip
def test_a_message_is_translated_and_escaped(source: str, text: str) -> None:
    environment = make_environment(Upper(), page=source)
    assert environment.get_template("page").render(name=MARKUP, label="calls") == text


def test_a_constant_message_is_looked_up_once_for_all_views() -> None:
    words = Upper()
    template = make_environment(
        words, page='{{ _("all calls") }} {{ _("%(n)s calls", n=number) }}'
    ).get_template("page")
    assert [template.render(number=number) for number in (1, 2)] == ["all CALLS 1 CALLS", "all CALLS 2 CALLS"]
    assert words.looked_up == ["all calls", "%(n)s calls"]


@pytest.mark.parametrize("source", ['{{ _("%(n)s calls", m=1) }}', '{{ _("%(n)d calls of 100 %", n=name) }}'])
def test_a_placeholder_without_a_value_stays_an_error(source: str) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        make_environment(Upper(), page=source).get_template("page").render(name="x")


def test_an_unknown_name_in_a_message_stays_an_error() -> None:
    with pytest.raises(UndefinedError):
        make_environment(Upper(), page='{{ _("%(n)s calls", n=missing) }}').get_template("page").render()


def test_no_constant_message_of_the_templates_is_left_to_a_view() -> None:
    environment = make_environment(LongWords())
    left = []
    for path in TEMPLATES.glob("*.j2"):
        tree = environment.parse(path.read_text())
        environment.compile(tree, path.name)
        calls = [call for call in tree.find_all(nodes.Call) if getattr(call.node, "name", "") == "_"]
        left += [(path.name, call.args[0]) for call in calls if isinstance(call.args[0], nodes.Const)]
    assert left == []
