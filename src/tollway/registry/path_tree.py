"""Path templates as a tree, segment by segment: which of many a path is, in time that the number of them hardly matters
for. Pure.

Plain text goes before text with a variable in it, and that before a bare variable, from the left: as prices are matched.
"""

import re
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

_TREE_VARIABLE = re.compile(r"\{[^{}/]*\}")


@dataclass(slots=True, kw_only=True)
class _PathNode(Generic[T]):
    plain: dict[str, "_PathNode[T]"] = field(default_factory=dict)
    mixed: dict[str, tuple[re.Pattern[str], "_PathNode[T]"]] = field(default_factory=dict)
    bare: "_PathNode[T] | None" = None
    values: list[T] = field(default_factory=list)


class PathTree(Generic[T]):
    """No two variables of a template stand next to each other."""

    def __init__(self) -> None:
        self._root: _PathNode[T] = _PathNode()

    def add(self, template: str, value: T) -> None:
        """`template` in normal form. Of two of one shape, the first counts."""
        node = self._root
        for segment in template.split("/"):
            text = _TREE_VARIABLE.sub("", segment)
            if text == segment:
                node = node.plain.setdefault(segment, _PathNode())
            elif not text:
                node.bare = node.bare or _PathNode()
                node = node.bare
            else:
                shape = _TREE_VARIABLE.sub("{}", segment)
                node = node.mixed.setdefault(shape, (_segment_pattern(shape), _PathNode()))[1]
        node.values.append(value)

    def find(self, path: str) -> T | None:
        """`path` in normal form."""
        return _find_value(self._root, path.split("/"), 0)


def _find_value(node: _PathNode[T], segments: list[str], depth: int) -> T | None:
    if depth == len(segments):
        return node.values[0] if node.values else None
    segment = segments[depth]
    following = [node.plain[segment]] if segment in node.plain else []
    if segment:
        # The longer the text around a variable, the more it says.
        mixed = sorted(node.mixed.items(), key=lambda one: -len(one[0]))
        following += [inner for _, (pattern, inner) in mixed if pattern.fullmatch(segment)]
        following += [node.bare] if node.bare else []
    for inner in following:
        found = _find_value(inner, segments, depth + 1)
        if found is not None:
            return found
    return None


def _segment_pattern(shape: str) -> re.Pattern[str]:
    """A variable ends at the first character of the text after it: so no text is slow to match."""
    texts = shape.split("{}")
    written = re.escape(texts[0])
    for text in texts[1:]:
        written += (f"[^{re.escape(text[0])}]+" if text else ".+") + re.escape(text)
    return re.compile(written, re.S)
