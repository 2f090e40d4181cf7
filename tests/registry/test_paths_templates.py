"""The grammar of path templates."""

from tollway.registry.paths import find_path_fault, path_shape

ACCEPTED = [
    "/",
    "/v1",
    "/v1/cities/{city}",
    "/{a}/{b-c}/{_d}",
    "/v1/a.b~c-d_e!$&'()*+,=:@",
    "/caf%C3%A9",
    "/a%20b",
    "/...",
    "/.well-known/x",
]


def test_accepts() -> None:
    for path in ACCEPTED:
        assert find_path_fault(path) is None


REFUSED = [
    "",
    "v1",
    "//",
    "/v1/",
    "/v1//x",
    "/v1/../x",
    "/.",
    "/v1/%2e%2e/x",
    "/%2E",
    "/.%2e",
    "/v1?x=1",
    "/v1#x",
    "/v1;a=b",
    "/a b",
    "/ü",
    "/%zz",
    "/%c3%a9",  # lower case: not the normal form
    "/%41",  # an unreserved letter
    "/a%2Fb",
    "/a%5Cb",
    "/a%00b",
    "/a%25b",
    "/a%3Bb",
    "/{}",
    "/{a",
    "/a}",
    "/{a}b",
    "/{a}.json",
    "/{a b}",
    "/{1a}",
    "/{a}/{a}",
    "/x\n",
    "/" + "/".join(f"{{p{number}}}" for number in range(17)),
]


def test_refuses() -> None:
    for path in REFUSED:
        assert find_path_fault(path)


def test_templates_that_match_the_same_calls_have_one_shape() -> None:
    assert path_shape("/v1/{a}/x") == path_shape("/v1/{b}/x") != path_shape("/v1/a/x")
