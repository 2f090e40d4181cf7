"""The extra `tollway[search]`: loaded where it is installed. It brings numpy, which no other part of a gateway needs."""

from typing import TYPE_CHECKING

from tollway.registry.meaning import is_extra_installed
from tollway.storage.engine.database import Database

if TYPE_CHECKING:
    from tollway.storage.catalog.meaning_search import MeaningSearch


def make_meaning_search(database: Database) -> "MeaningSearch | None":
    """None without the extra. The files of the extra are read by the first `refresh`."""
    if not is_extra_installed():
        return None
    from tollway.storage.catalog.meaning_search import MeaningSearch  # noqa: PLC0415 - loads numpy

    return MeaningSearch(database)


def load_extra() -> bool:
    """Reads the files of the extra. False where it is not installed. Raises WeightsUnusable."""
    if not is_extra_installed():
        return False
    from tollway.registry.word_vectors import load_word_vectors  # noqa: PLC0415 - loads numpy

    load_word_vectors()
    return True
