"""The guards are a package that also runs by itself (`python -m tests.guards`), so its tests import it by that name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
