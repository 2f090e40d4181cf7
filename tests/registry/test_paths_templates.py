"""The grammar of path templates."""

from tollway.registry.paths import find_path_fault, path_shape

ACCEPTED = (
    "/ /v1 /v1/cities/{city} /{a}/{b-c}/{_d} /v1/a.b~c-d_e!$&'()*+,=:@ /caf%C3%A9 /a%20b /... /.well-known/x"
)


def test_accepts() -> None:
    for path in ACCEPTED.split():
        assert find_path_fault(path) is None


DOTS_AND_SLASHES = "v1 // /v1/ /v1//x /v1/../x /. /v1/%2e%2e/x /%2E /.%2e /v1?x=1 /v1#x /v1;a=b /ü /%zz"
NOT_NORMAL = "/%c3%a9 /%41 /a%2Fb /a%5Cb /a%00b /a%25b /a%3Bb"  # lower case, an unreserved letter, separators
BRACES = "/{} /{a /a} /{a}b /{a}.json /{1a} /{a}/{a}"
REFUSED = ["", "/a b", "/{a b}", "/x\n", "/" + "/".join(f"{{p{number}}}" for number in range(17))]


def test_refuses() -> None:
    for path in (*REFUSED, *DOTS_AND_SLASHES.split(), *NOT_NORMAL.split(), *BRACES.split()):
        assert find_path_fault(path), path


def test_templates_that_match_the_same_calls_have_one_shape() -> None:
    assert path_shape("/v1/{a}/x") == path_shape("/v1/{b}/x") != path_shape("/v1/a/x")
