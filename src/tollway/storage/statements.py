"""Statements that are written once in SQLAlchemy Core, compiled once for each dialect, and passed to the driver as text.

For the queries of every paid call: to build, hash and look up a statement anew costs many times what running it costs
(docs/decisions/0018). A statement belongs to the transaction of its connection, fails as every other statement fails, and
event listeners see it. It returns the driver's own rows: plain sequences, in the order of the columns, of the driver's own
types. On SQLite a boolean is 0 or 1.

No value becomes a part of a text: on PostgreSQL a list is one array; on SQLite, which has no arrays, a statement has a text
for each power of two, and a list is filled up with its last member.

`IndexHint` makes SQLite read a table by a named index. SQLite keeps no statistics of the tables, so where two indexes begin
with the same columns it has to guess. PostgreSQL chooses by its own statistics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

from sqlalchemy import ColumnElement, Connection, String, Table, TableClause, any_, bindparam, column
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, Any]
Rows = Sequence[Sequence[Any]]


class Within(ColumnElement[bool]):
    """Whether a column is one of a list that is given by that name when the statement is run."""

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
        member = String()  # a cast to the length of the column would cut the value
    array = bindparam(element.name, type_=ARRAY(member))
    return compiler.process(element.column == any_(array), **options)


class Prepared:
    """One statement, for as long as the process lives. Safe to use from many threads."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._compiled: dict[str, SQLCompiler] = {}
        self._texts: dict[tuple[object, ...], _Text] = {}

    def fetch(self, connection: Connection, **values: Any) -> Rows:
        """Every row of the answer. Lists are given as lists, and none of them is empty."""
        text = self._text(connection, values)
        return fetch_text(connection, text.sql, text.arrange(values))

    def run(self, connection: Connection, rows: Sequence[Values]) -> int:
        """Runs it for each of these rows. How many rows of tables it has changed; -1 where the driver does not say."""
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
                # Every statement of Core has it; `Executable` alone does not say so.
                compiled = self._statement.compile(dialect=dialect)  # type: ignore[attr-defined]
                self._compiled[dialect.name] = compiled
            text = self._texts[key] = _expand(compiled, values)
        return text


def run_text(connection: Connection, sql: str, parameters: list[tuple[Any, ...]]) -> int:
    """Runs a text in the dialect of this connection for each of these rows. How many rows of tables it has changed; -1 where the
    driver does not say."""
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
    """Every row of the answer to a text in the dialect of this connection, its parameters in the driver's own form."""
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
    """Runs a text of ours without parameters and without rows."""
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
    """`arrange`: values by name, in the order of the text's parameters. `pick`: the same for a row without lists."""

    sql: str
    arrange: Callable[[Values], tuple[Any, ...]]
    pick: Callable[[Values], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a value goes. `size`: of a list that is written out from there, each member in `width` places."""

    name: str
    size: int = 0
    width: int = 1


def _expand(compiled: SQLCompiler, values: Values) -> _Text:
    """Compiled once for all sizes; a place in the text for each member of a list."""
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
                parameters.append(place)  # a constant of the statement
            elif place.size:
                parameters.extend(_pad_list(given[place.name], place.size))
            else:
                parameters.append(given[place.name])
        return tuple(parameters)

    is_pickable = len(names) == len(order) > 1  # of a single name itemgetter gives no tuple
    return _Text(sql=expanded.statement, arrange=arrange, pick=itemgetter(*names) if is_pickable else arrange)


def _without_members(places: Sequence[Any]) -> list[Any]:
    """One place for each list, instead of one for each of its members."""
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
    """As SQLAlchemy raises what a statement of its own raises, with all that follows for the connection. What is no
    error of the driver's (a deadline, a cancellation) goes on as it is."""
    is_driver_error = isinstance(exc, connection.dialect.loaded_dbapi.Error)
    connection._handle_dbapi_exception(exc, sql if is_driver_error else None, None, None, None)


class IndexHint(TableClause):
    """An alias of `table`, named after the index: so a cached statement is always that of the same index."""

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


def insert_for(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT of the connection's dialect, for `ON CONFLICT`."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
