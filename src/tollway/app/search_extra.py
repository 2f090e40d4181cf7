"""The extra `tollway[search]`: used where it is installed. It brings numpy, which no other part of a gateway needs."""

from tollway.registry.meaning import is_extra_installed
from tollway.storage.catalog.meaning_search import MeaningSearch
from tollway.storage.engine.database import Database


def make_meaning_search(database: Database) -> MeaningSearch | None:
    """None without the extra. Loads nothing of the extra."""
    return MeaningSearch(database) if is_extra_installed() else None


def load_extra() -> bool:
    """Reads the files of the extra. False where it is not installed. Raises WeightsUnusable."""
    if not is_extra_installed():
        return False
    from tollway.registry.word_vectors import load_word_vectors  # noqa: PLC0415 - loads numpy

    load_word_vectors()
    return True
