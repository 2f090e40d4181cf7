"""A gateway of the release after this one: the same code, whose tables have one migration more. A program of its own, with
settings from the environment and the folder of its migrations as its argument.
"""

import os
import sys
from functools import partial
from pathlib import Path

import uvloop

from tollway import house
from tollway.settings import load_settings
from tollway.storage import schema_keeper
from tollway.storage.migrate import schema_state, upgrade
from tollway.telemetry import configure_logging


def main() -> None:
    migrations = Path(sys.argv[1])
    vars(schema_keeper)["schema_state"] = partial(schema_state, migrations=migrations)
    vars(schema_keeper)["upgrade"] = partial(upgrade, migrations=migrations)
    settings = load_settings(os.environ)
    configure_logging(level=settings.log_level, style=settings.log_format)
    uvloop.run(house.run(settings))


if __name__ == "__main__":
    main()
