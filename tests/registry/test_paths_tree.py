"""The most specific of many templates for a path."""

from tollway.registry.paths import PathTree

TEMPLATES = "/ /a /a/{x} /a/b /{x}/c /a/{x}/d /{x}/b/e /t/{x}.png /t/{x}.{y} /t/v{x} /t/{x}"


FOUND = [
    ("/", "/"),
    ("/a", "/a"),
    ("/A", None),
    ("/a/b", "/a/b"),
    ("/a/c", "/a/{x}"),
    ("/b/c", "/{x}/c"),
    ("/a/b/d", "/a/{x}/d"),
    ("/a/b/e", "/{x}/b/e"),  # the first way leads nowhere
    ("/a/", None),
    ("//c", None),
    ("/t/1.png", "/t/{x}.png"),
    ("/t/1.jpg", "/t/{x}.{y}"),
    ("/t/1.2.jpg", "/t/{x}.{y}"),
    ("/t/v1", "/t/v{x}"),
    ("/t/v", "/t/{x}"),
    ("/t/1\n2", "/t/{x}"),
    ("/x/y/z/w", None),
]


def test_plain_text_comes_before_variables_from_the_left() -> None:
    for path, found in FOUND:
        tree: PathTree[str] = PathTree()
        for template in TEMPLATES.split():
            tree.add(template, template)
        assert tree.find(path) == found


def test_of_two_of_one_shape_the_first_counts() -> None:
    tree: PathTree[int] = PathTree()
    tree.add("/a/{x}", 1)
    tree.add("/a/{y}", 2)
    assert tree.find("/a/b") == 1


def test_matching_takes_linear_time() -> None:
    tree: PathTree[int] = PathTree()
    tree.add("/" + "{x}a" * 16 + "z", 1)
    assert tree.find("/" + "ba" * 4_000) is None
