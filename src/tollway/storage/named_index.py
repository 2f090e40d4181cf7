"""A table of a query that SQLite is to read by one index. SQLite keeps no numbers about its tables, so where two indexes
begin alike it has to guess, and may walk what another one would have found. PostgreSQL chooses by its own numbers.
"""

from typing import Any

from sqlalchemy import Table, TableClause, column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler


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
