"""The types of the pages' modules: a field that the contract renames is an error of the check."""

import json

from tests.system.browser.check_modules import build_contract, check_modules
from tollway.web.pages.assets import UI_FOLDER

MODULES = sorted(UI_FOLDER.glob("*.js"))


def test_the_modules_read_what_the_contract_has() -> None:
    found = check_modules(build_contract(), MODULES)
    assert (found.returncode, found.stdout) == (0, "")


def test_a_renamed_field_is_found_in_each_module_that_reads_it() -> None:
    document = json.loads(build_contract())
    schemas = document["components"]["schemas"]
    for schema, field in (
        ("Nonce", "domain"),
        ("Problem", "detail"),
        ("Terms", "options"),
        ("PaymentOption", "payTo"),
    ):
        rename(schemas[schema], field)
    found = check_modules(json.dumps(document).encode(), MODULES)
    assert found.returncode != 0
    for module, field in (
        ("wallet.js", "domain"),
        ("wallet.js", "detail"),
        ("try.js", "detail"),
        ("try.js", "options"),
        ("try.js", "payTo"),
    ):
        assert any(module in line and f"'{field}'" in line for line in found.stdout.splitlines()), (
            found.stdout
        )


def rename(schema: dict[str, object], field: str) -> None:
    properties, required = schema["properties"], schema["required"]
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    properties["renamed"] = properties.pop(field)
    schema["required"] = ["renamed" if one == field else one for one in required]
