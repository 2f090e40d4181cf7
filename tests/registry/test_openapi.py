"""The operations and parameters of an untrusted document."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tollway.registry.openapi import DOCUMENT_OPERATIONS_MAX, ProviderDocument, count_operations


def document(paths: Any, **more: Any) -> ProviderDocument:
    return ProviderDocument({"openapi": "3.1.0", "paths": paths, **more})


def names(paths: Any, **more: Any) -> list[str]:
    return [f"{one.method} {one.path}" for one in document(paths, **more).operations]


PATHS = [
    ("/", "/"),
    ("/v1/cities/{city}", "/v1/cities/{city}"),
    ("/v1/cities/", "/v1/cities/"),
    ("/tiles/{z}/{x}.{format}", "/tiles/{z}/{x}.{format}"),
    ("/a/{user id}", "/a/{user_id}"),
    ("/a/{ignore all rules*}", "/a/{ignore_all_rules}"),
    ("/caf%C3%A9", "/caf%C3%A9"),
    ("", None),
    ("v1", None),
    ("//evil.example/x", None),
    ("/a//b", None),
    ("/a/../b", None),
    ("/a/%2e%2E/b", None),
    ("/a?b=c", None),
    ("/a#b", None),
    ("/a b", None),
    ("/café", None),
    ("/a/{b}{c}", None),
    ("/a/{b}/{b}", None),
    ("/a/{\u202e}", None),
    ("/a/{b", None),
    ("/<script>", None),
    ("/" + "a" * 3_000, None),
]


def test_only_paths_that_a_request_can_match_are_read() -> None:
    for path, read in PATHS:
        assert names({path: {"get": {}}}) == ([] if read is None else [f"GET {read}"])


def test_only_methods_that_a_gateway_forwards_are_read() -> None:
    methods = ("get", "head", "post", "trace", "query", "GET", "x-get")
    entry: dict[str, Any] = {method: {} for method in methods}
    assert names({"/a": entry, "/b": {"head": {}}}) == ["GET /a", "POST /a", "HEAD /b"]


def test_a_path_may_be_a_reference_within_the_document() -> None:
    items = {"pathItems": {"a/b": {"get": {}}}}
    paths = {"/a": {"$ref": "#/components/pathItems/a~1b"}, "/b": {"$ref": "https://elsewhere.example/x"}}
    assert names(paths, components=items) == ["GET /a"]


def test_parameters_of_the_operation_override_those_of_the_path() -> None:
    shared = [{"name": "a", "in": "query"}, {"name": "X-B", "in": "header", "required": True}]
    own = [{"name": "a", "in": "query", "required": True}, {"name": "c", "in": "cookie", "required": True}]
    read = document({"/q/{id}": {"parameters": shared, "get": {"parameters": own}}})
    found = read.list_parameters(read.operations[0])
    assert [(one.name, one.place, one.is_required) for one in found] == [
        ("id", "path", True),
        ("a", "query", True),
        ("X-B", "header", True),
    ]


def test_a_variable_and_its_parameter_keep_one_name() -> None:
    parameters = [{"name": "user id", "in": "path"}, {"name": "other", "in": "path"}]
    read = document({"/q/{user id}": {"get": {"parameters": parameters}}})
    found = read.list_parameters(read.operations[0])
    assert [(one.name, one.is_required) for one in found] == [("user_id", True)]


def test_operations_are_read_up_to_the_maximum() -> None:
    paths: dict[str, Any] = {f"/a{number}": {"get": {}} for number in range(10_000)}
    assert len(document(paths).operations) == DOCUMENT_OPERATIONS_MAX
    assert count_operations({"paths": paths}) == 10_000


def test_operations_are_counted_through_references() -> None:
    one = {"pathItems": {"a": {"get": {}, "put": {}}}}
    paths: dict[str, Any] = {f"/a{number}": {"$ref": "#/components/pathItems/a"} for number in range(3)}
    assert count_operations({"paths": paths, "components": one}) == 6


names_of_members = ["paths", "/a/{b}", "get", "parameters", "name", "in", "path", "query", "$ref", "#/paths"]
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(names_of_members),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(names_of_members) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(content=st.dictionaries(st.sampled_from(names_of_members), json, max_size=3), entry=json)
def test_no_document_raises_an_error(content: Any, entry: Any) -> None:
    for one in (content, {"paths": {"/a/{b}": entry}}, {"paths": {"/a/{b}": {"get": entry}}}):
        read = ProviderDocument(one)
        for operation in read.operations:
            list(read.list_parameters(operation))
        count_operations(one)
