"""Prepared statements: written once in SQLAlchemy Core, compiled once for each dialect, passed to the driver as text.

They serve the queries of every paid call: building, hashing and looking up a statement costs many times its execution
(docs/decisions/0020). A prepared statement runs in the transaction of its connection, raises the same errors as other statements, and is
visible to event listeners. It returns the driver's rows: sequences in the order of the columns, with the driver's types. On SQLite a
boolean is 0 or 1.

No value becomes a part of a text. On PostgreSQL a list is one array. SQLite has no arrays: there a statement has a text for each power of
two, and a list is padded with its last member.

`IndexHint` makes SQLite read a table by a named index. SQLite keeps no statistics of the tables and guesses where two indexes begin with
the same columns. PostgreSQL chooses by its statistics.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, NoReturn, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    String,
    Table,
    TableClause,
    any_,
    bindparam,
    column,
    func,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler

T = TypeVar("T")
Work = Callable[[Connection], T]
FetchScalar = Callable[[Executable], Awaitable[Any]]
Values = Mapping[str, Any]
Rows = Sequence[Sequence[Any]]


class Within(ColumnElement[bool]):
    """A condition: the column is a member of the list that is bound by this name."""

    inherit_cache = False

    def __init__(self, column: ColumnElement[Any], name: str) -> None:
        self.column = column
        self.name = name


@compiles(Within)
def _as_list(element: Within, compiler: SQLCompiler, **options: Any) -> str:
    listed = element.column.in_(bindparam(element.name, expanding=True))
    return compiler.process(listed, **options)


@compiles(Within, "postgresql")
def _as_array(element: Within, compiler: SQLCompiler, **options: Any) -> str:
    member = element.column.type
    if isinstance(member, String):
        # A cast to the length of the column would cut the value.
        member = String()
    array = bindparam(element.name, type_=ARRAY(member))
    return compiler.process(element.column == any_(array), **options)


class Prepared:
    """A statement that is compiled once in a process."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._compiled: dict[str, SQLCompiler] = {}
        self._texts: dict[tuple[object, ...], _Text] = {}

    def fetch(self, connection: Connection, **values: Any) -> Rows:
        """A bound list is a non-empty `list`."""
        text = self._text(connection, values)
        return fetch_text(connection, text.sql, text.arrange(values))

    def run(self, connection: Connection, rows: Sequence[Values]) -> int:
        """Returns how many table rows it changed; -1 when the driver does not count."""
        text = self._text(connection, {})
        return run_text(connection, text.sql, list(map(text.pick, rows)))

    def _text(self, connection: Connection, values: Values) -> "_Text":
        dialect = connection.dialect
        if dialect.name == "postgresql" or not values:
            key: tuple[object, ...] = (dialect.name,)
        else:
            sizes = ((name, _padded_size(one)) for name, one in values.items() if type(one) is list)
            key = (dialect.name, *sizes)
        text = self._texts.get(key)
        if text is None:
            compiled = self._compiled.get(dialect.name)
            if compiled is None:
                # Every statement of Core has `compile`; the type `Executable` does not.
                compiled = self._statement.compile(dialect=dialect)  # type: ignore[attr-defined]
                self._compiled[dialect.name] = compiled
            text = self._texts[key] = _expand(compiled, values)
        return text


def run_text(connection: Connection, sql: str, parameters: list[tuple[Any, ...]]) -> int:
    """Runs a text for each member of `parameters`. Returns how many table rows it changed; -1 when the driver does not count."""
    if connection.engine.dispatch.before_cursor_execute:
        return connection.exec_driver_sql(sql, parameters).rowcount
    cursor = connection.connection.cursor()
    try:
        if len(parameters) == 1:
            cursor.execute(sql, parameters[0])
        else:
            cursor.executemany(sql, parameters)
        changed = cursor.rowcount
    except BaseException as exc:  # noqa: BLE001 - raised again, always
        _raise(connection, exc, sql)
    cursor.close()
    return changed


def fetch_text(connection: Connection, sql: str, parameters: Sequence[Any]) -> Rows:
    """`parameters` have the driver's form."""
    if connection.engine.dispatch.before_cursor_execute:
        return connection.exec_driver_sql(sql, tuple(parameters)).all()
    cursor = connection.connection.cursor()
    try:
        cursor.execute(sql, parameters)
        found: Rows = cursor.fetchall()
    except BaseException as exc:  # noqa: BLE001 - raised again, always
        _raise(connection, exc, sql)
    cursor.close()
    return found


def execute_text(connection: Connection, sql: str) -> None:
    if connection.engine.dispatch.before_cursor_execute:
        connection.exec_driver_sql(sql)
        return
    cursor = connection.connection.cursor()
    try:
        cursor.execute(sql, ())
    except BaseException as exc:  # noqa: BLE001 - raised again, always
        _raise(connection, exc, sql)
    cursor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A text for one dialect and one size of lists. `arrange`: puts values by name into the order of the parameters. `pick`: the same for
    values without lists."""

    sql: str
    arrange: Callable[[Values], tuple[Any, ...]]
    pick: Callable[[Values], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a value among the parameters. `size`: the padded length of a list, 0 for a single value. `width`: how many parameters one
    member of the list takes."""

    name: str
    size: int = 0
    width: int = 1


def _expand(compiled: SQLCompiler, values: Values) -> _Text:
    """Makes the text for the sizes of the lists in `values`: a parameter for each member."""
    slots: dict[str, Any] = {}
    for name, bind in compiled.binds.items():
        if bind.required and bind.expanding:
            listed = values[name]
            slot = _Slot(name, _padded_size(listed), _width(listed))
            slots[name] = [(slot,) * slot.width if _is_of_tuples(listed) else slot] * slot.size
        elif bind.required:
            slots[name] = _Slot(name)
    expanded = compiled.construct_expanded_state(slots)
    order = _without_members(expanded.positional_parameters)
    names = [place.name for place in order if isinstance(place, _Slot) and not place.size]

    def arrange(given: Values) -> tuple[Any, ...]:
        parameters: list[Any] = []
        for place in order:
            if not isinstance(place, _Slot):
                # A constant of the statement.
                parameters.append(place)
            elif place.size:
                parameters.extend(_pad_list(given[place.name], place.size))
            else:
                parameters.append(given[place.name])
        return tuple(parameters)

    # With a single name `itemgetter` returns no tuple.
    is_pickable = len(names) == len(order) > 1
    return _Text(sql=expanded.statement, arrange=arrange, pick=itemgetter(*names) if is_pickable else arrange)


def _without_members(places: Sequence[Any]) -> list[Any]:
    """Keeps one place for each list instead of one for each member."""
    order: list[Any] = []
    number = 0
    while number < len(places):
        place = places[number]
        order.append(place)
        number += place.size * place.width if isinstance(place, _Slot) and place.size else 1
    return order


def _pad_list(listed: Sequence[Any], size: int) -> list[Any]:
    full = [*listed, *([listed[-1]] * (size - len(listed)))]
    return [part for one in full for part in one] if _is_of_tuples(listed) else full


def _is_of_tuples(listed: Sequence[Any]) -> bool:
    return isinstance(listed[0], tuple)


def _width(listed: Sequence[Any]) -> int:
    return len(listed[0]) if _is_of_tuples(listed) else 1


def _padded_size(listed: Sequence[Any]) -> int:
    return 1 << (len(listed) - 1).bit_length()


def _raise(connection: Connection, exc: BaseException, sql: str) -> NoReturn:
    """Raises an error as SQLAlchemy raises the error of its own statement, and invalidates the connection by the same rules. Other errors
    than the driver's (a deadline, a cancellation) are raised unchanged."""
    is_driver_error = isinstance(exc, connection.dialect.loaded_dbapi.Error)
    connection._handle_dbapi_exception(exc, sql if is_driver_error else None, None, None, None)


@cache
def hint_index(table: Table, index: str) -> "IndexHint":
    """The alias of this table and index. One for a process: it has every column of the table, and making it takes as long as executing the statement."""
    return IndexHint(table, index)


class IndexHint(TableClause):
    """An alias of a table that SQLite reads by the index. The alias has the index in its name, so that a cached statement keeps its index."""

    inherit_cache = True

    def __init__(self, table: Table, index: str) -> None:
        super().__init__(f"by_{index}", *(column(each.name, each.type) for each in table.columns))
        self.table_name = table.name
        self.index = index


@compiles(IndexHint)
def _render_index_hint(element: IndexHint, compiler: SQLCompiler, **options: Any) -> str:
    quote = compiler.preparer.quote
    alias = f"{quote(element.table_name)} AS {quote(element.name)}"
    return f"{alias} INDEXED BY {quote(element.index)}" if compiler.dialect.name == "sqlite" else alias


def list_numbers(connection: Connection, numbers: Sequence[int]) -> FromClause:
    """A source of rows with one column: a number of the list. One parameter on both dialects."""
    if connection.dialect.name == "postgresql":
        array = bindparam(None, list(numbers), type_=ARRAY(BigInteger))
        return func.unnest(array).table_valued("number").render_derived()
    return func.json_each(json.dumps(list(numbers))).table_valued("value")


def insert_for(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the connection's dialect, which has `ON CONFLICT`."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
