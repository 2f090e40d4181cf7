"""Schemas that are whole in themselves: each with the definitions that it names. Pure.

A short document can make two thousand operations name all of its definitions, each in another order. So equal sets are
written once and shared, and what is written out is counted over the whole document: when it is too much, the definitions of
later schemas are open.
"""

from typing import Any

from tollway.discovery.plain_schema import SchemaCopier, SchemaCopy

DEFINITIONS_MAX = 50_000
"""Written out for one document, equal sets counted once. It takes some tenths of a second."""

_WEIGHT_STEP = 1_024  # so that schemas of about the same length share their definitions


class SchemaBundler:
    """For the schemas of one copier. `weight_max`: about the characters of one schema with its definitions."""

    def __init__(
        self, copier: SchemaCopier, *, weight_max: int, definitions_max: int = DEFINITIONS_MAX
    ) -> None:
        self._copier = copier
        self._weight_max = weight_max
        self._left = definitions_max
        self._made: dict[tuple[frozenset[str], int], dict[str, Any]] = {}

    def bundle(self, copied: SchemaCopy) -> dict[str, Any]:
        """The schema with its definitions; open where it is too long by itself."""
        if copied.weight > self._weight_max:
            return {}
        if not copied.refs:
            return copied.schema
        weight_left = (self._weight_max - copied.weight) // _WEIGHT_STEP * _WEIGHT_STEP
        key = (frozenset(copied.refs), weight_left)
        if key not in self._made:
            self._made[key] = self._define(copied.refs, weight_left)
        return {**copied.schema, "$defs": self._made[key]}

    def _define(self, refs: set[str], weight_left: int) -> dict[str, Any]:
        if self._left <= 0:
            return {name: {} for name in sorted(refs)}
        made = self._copier.define(refs, weight_max=weight_left)
        self._left -= len(made)
        return made
