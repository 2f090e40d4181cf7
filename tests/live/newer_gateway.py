"""The release after this one: the same code, whose tables have one migration more. A program of its own; its arguments are
the folder of its migrations and a command line, its settings those of the environment.
"""

import sys
from functools import partial
from pathlib import Path

from tollway import cli
from tollway.app import lifecycle
from tollway.cli import doctor, operator
from tollway.storage.migrate import SchemaCheck, schema_state, upgrade


def use_migrations(migrations: Path) -> None:
    """Makes this process one of the release with these migrations."""
    vars(lifecycle)["SchemaCheck"] = partial(SchemaCheck, migrations=migrations)
    vars(doctor)["schema_state"] = vars(operator)["schema_state"] = partial(
        schema_state, migrations=migrations
    )
    vars(operator)["upgrade"] = partial(upgrade, migrations=migrations)


if __name__ == "__main__":
    use_migrations(Path(sys.argv.pop(1)))
    cli.main()
