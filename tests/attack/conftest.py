"""The PostgreSQL server of the kit, for the attacks."""

from tests.kit.databases import postgres_server, postgres_template

__all__ = ["postgres_server", "postgres_template"]
