"""Places of guards that have moved since they were written: the old `module:name` to the new one.

A rename that reaches the tables of guards needs no line here. What moved by hand gets one, until its guard is rewritten.
"""

from collections.abc import Mapping
from types import MappingProxyType

MOVES: Mapping[str, str] = MappingProxyType({})
