"""The databases of the contract suites are lent to the attacks."""

from tests.contracts import conftest as databases

postgres_server = databases.postgres_server
postgres_template = databases.postgres_template
