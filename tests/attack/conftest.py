"""The attackers' tools, shared by path because test files are no package: each is imported as `tollway_attack_<name>`. The
databases of the contracts are lent too.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
TOOLS = ("attacked_gateway", "framing_corpus", "namespace", "strict_upstream")


def _load(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


for tool in TOOLS:
    _load(f"tollway_attack_{tool}", HERE / f"{tool}.py")
databases = _load("tollway_contract_databases", HERE.parent / "contracts" / "conftest.py")
postgres_server = databases.postgres_server
postgres_template = databases.postgres_template
