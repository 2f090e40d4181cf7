"""`make schema`: writes the tables of a new SQLite file down, as the migrations give them (`storage.migrate`)."""

import asyncio
import tempfile
from functools import partial
from pathlib import Path

from tollway.storage.database import SqliteDatabase
from tollway.storage.migrate import FILE_NAME, MIGRATIONS, upgrade, write_down


async def describe(folder: Path, migrations: Path = MIGRATIONS) -> str:
    """By the migrations themselves, whatever is written down."""
    database = SqliteDatabase(folder / "written.sqlite3")
    await database.open()
    try:
        await upgrade(database, migrations=migrations, is_step_by_step=True)
        return await database.read(partial(write_down, migrations=migrations))
    finally:
        await database.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = asyncio.run(describe(Path(folder)))
    (MIGRATIONS / FILE_NAME).write_text(text)


if __name__ == "__main__":
    main()
