"""A reader of a JSON object: it returns the members one by one and collects all errors. Pure.

The rules of a listing's body use it (`draft.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from tollway.errors import FieldError

T = TypeVar("T")

POINTER_NAME_MAX = 64
UNKNOWN_NAMED_MAX = 20
ERRORS_MAX = 100


class ObjectReader:
    """A reader of the object at `pointer` (RFC 6901). Readers of nested objects share its list of errors."""

    def __init__(
        self, members: Mapping[str, Any], *, pointer: str = "", errors: list[FieldError] | None = None
    ) -> None:
        self._members = members
        self._pointer = pointer
        self.errors: list[FieldError] = [] if errors is None else errors

    def refuse(self, name: str | None, code: str, detail: str) -> None:
        """Adds an error of a member, or of the object itself when `name` is None."""
        pointer = self._pointer if name is None else f"{self._pointer}/{_escape(name)}"
        self.refuse_at(pointer, code, detail)

    def refuse_at(self, pointer: str, code: str, detail: str) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(FieldError(code=code, detail=detail, pointer=pointer))

    def refuse_unknown(self, known: Sequence[str]) -> None:
        """Adds an error for each member that is not `known`: a misspelt `payTo` must not silently pay another wallet."""
        for member in [member for member in self._members if member not in known][:UNKNOWN_NAMED_MAX]:
            name = member[:POINTER_NAME_MAX]
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.refuse(name, "unknown_field", f"there is no such field{hint}")

    def has(self, name: str) -> bool:
        return name in self._members

    def is_null(self, name: str) -> bool:
        return name in self._members and self._members[name] is None

    def is_empty(self, name: str) -> bool:
        """True for an empty list."""
        return self._members.get(name) == []

    def text(self, name: str, *, length_max: int, length_min: int = 0) -> str | None:
        """The text of a member; None, and an error, when it is not a text of that length. The member must exist (`has`)."""
        return self._text_at(f"{self._pointer}/{_escape(name)}", self._members[name], length_min, length_max)

    def required_text(self, name: str, *, length_max: int, length_min: int = 1) -> str | None:
        if not self.has(name):
            self.refuse(name, "required", "is required")
            return None
        return self.text(name, length_max=length_max, length_min=length_min)

    def integer(self, name: str, *, least: int, most: int) -> int | None:
        """An integer in `least..most`. A JSON `true` or `1.0` is an error."""
        number = self._members.get(name)
        if type(number) is not int:
            self.refuse(name, "type", "must be an integer")
        elif not least <= number <= most:
            self.refuse(name, "out_of_range", f"must lie between {least} and {most}")
        else:
            return number
        return None

    def one_of(self, name: str, options: Sequence[str]) -> str | None:
        value = self._members.get(name)
        if not isinstance(value, str) or value not in options:
            self.refuse(name, "unknown_value", "must be one of: " + ", ".join(options))
            return None
        return value

    def parsed(self, name: str, parse: Callable[[str], T], *, code: str, length_max: int) -> T | None:
        """The result of `parse` for a text; a ValueError of it becomes an error with `code`."""
        text = self.text(name, length_max=length_max)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as exc:
            self.refuse(name, code, str(exc))
            return None

    def texts(self, name: str, *, count_max: int, length_max: int) -> list[tuple[str, str]] | None:
        """`(pointer, text)` of each element of a list of distinct texts."""
        elements = self._elements(name, count_max)
        if elements is None:
            return None
        found: list[tuple[str, str]] = []
        seen: set[str] = set()
        for pointer, element in elements:
            text = self._text_at(pointer, element, 1, length_max)
            if text is not None and text.casefold() in seen:
                self.refuse_at(pointer, "duplicate", "is in the list twice")
            elif text is not None:
                seen.add(text.casefold())
                found.append((pointer, text))
        return found

    def readers(self, name: str, *, count_max: int) -> "list[tuple[str, ObjectReader]] | None":
        """`(pointer, reader)` of each element of a list of objects."""
        elements = self._elements(name, count_max)
        if elements is None:
            return None
        found = []
        for pointer, element in elements:
            if isinstance(element, dict):
                found.append((pointer, ObjectReader(element, pointer=pointer, errors=self.errors)))
            else:
                self.refuse_at(pointer, "type", "must be an object")
        return found

    def object(self, name: str) -> dict[str, Any] | None:
        """The members of a nested object, unread."""
        value = self._members.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "type", "must be an object")
            return None
        return value

    def reader(self, name: str) -> "ObjectReader | None":
        value = self.object(name)
        if value is None:
            return None
        return ObjectReader(value, pointer=f"{self._pointer}/{_escape(name)}", errors=self.errors)

    def _elements(self, name: str, count_max: int) -> list[tuple[str, Any]] | None:
        value = self._members.get(name)
        if not isinstance(value, list):
            self.refuse(name, "type", "must be a list")
            return None
        if len(value) > count_max:
            self.refuse(name, "too_many", f"must have at most {count_max} elements")
            return None
        return [(f"{self._pointer}/{_escape(name)}/{index}", element) for index, element in enumerate(value)]

    def _text_at(self, pointer: str, value: Any, length_min: int, length_max: int) -> str | None:
        if not isinstance(value, str):
            self.refuse_at(pointer, "type", "must be a string")
        elif len(value) > length_max:
            self.refuse_at(pointer, "too_long", f"must have at most {length_max} characters")
        elif len(value) < length_min:
            self.refuse_at(pointer, "too_short", "must not be empty")
        else:
            return value
        return None


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
