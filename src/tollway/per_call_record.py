"""Records that are made for each call: frozen for the type checker, not at run time.

In a dataclass with `frozen=True` each field costs a call of `object.__setattr__` when a record is made. A paid call makes about ten records with
some 70 fields, for which that takes 7 µs. mypy refuses an assignment to a field of these records as it does for frozen ones (PEP 681, `frozen_default`).
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def per_call_record(cls: type[T]) -> type[T]:
    """A dataclass with slots and keyword arguments, compared and hashed by its fields. For records of one call only; all others are `frozen=True`."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
