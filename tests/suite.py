"""The classes of the test files: which command runs which file. Everything else about a run is in `suite_run`.

A file has the class of its own row, else of the row of the nearest folder. What a class may need:

- `quick`: Python packages of `requirements/quick.in`. No process (a test that starts one is marked `process`, and `make test` runs it), no database server,
  no chain node, no browser, no npm.
- `test`: the chain node, PostgreSQL and Chromium, all from packages.
- `all`: the same, and the time for every combination of databases, rails, clients and pages.
- `check`: the files of the repository. These tests read sources and pages and run no gateway.
- `own`: a target of its own (`OWN_TARGETS`), which prepares what the file needs.
"""

from pathlib import Path
from typing import Literal, get_args

TESTS = Path(__file__).parent

Class = Literal["quick", "test", "all", "check", "own"]
Suite = Literal["quick", "test", "all", "rest", "check"]

SUITES: dict[Suite, frozenset[Class]] = {
    "quick": frozenset({"quick"}),
    "test": frozenset({"quick", "test"}),
    "all": frozenset({"quick", "test", "all"}),
    "rest": frozenset({"quick", "test", "all"}),
    "check": frozenset({"check"}),
}
"""Name of a suite -> the classes of files that it runs: `make quick`, `make test`, `make test-all`, the gate after `make quick`, `make check`."""

CLASSES: dict[str, Class] = {
    # Folders that mirror `src`.
    "app": "quick",
    "app/test_fleet_view.py": "test",
    "app/test_lifecycle_outages.py": "test",
    "app/test_search_extra.py": "test",
    "app/test_span_queue_collectors.py": "test",
    "app/test_webhooks_kill.py": "all",
    "chain": "quick",
    "cli": "quick",
    "cli/test_demo.py": "test",
    "cli/test_demo_chain_node.py": "test",
    "client": "quick",
    "client/test_samples.py": "test",
    "config": "quick",
    "discovery": "quick",
    "discovery/test_form_fields.py": "test",
    "gateway": "quick",
    "identity": "quick",
    "ledger": "quick",
    "observability": "quick",
    "outbound": "quick",
    "payments": "quick",
    "payments/test_channel_crowd.py": "all",
    "rate_limits": "quick",
    "rate_limits/test_redis_windows.py": "test",
    "registry": "quick",
    "registry/test_word_vectors.py": "test",
    "sandbox": "quick",
    "sandbox/test_chain.py": "test",
    "sandbox/test_chain_anvil.py": "test",
    "sandbox/test_chain_artifacts.py": "test",
    "sandbox/test_chain_channels.py": "test",
    "sandbox/test_chain_playground.py": "test",
    "sandbox/test_chain_stranded_transactions.py": "test",
    "sandbox/test_demo_wallet.py": "test",
    "storage": "quick",
    "storage/catalog/test_vector_index.py": "test",
    "web": "quick",
    "web/api/test_mcp_uploads.py": "test",
    "webhooks": "quick",
    "webhooks/test_receivers.py": "test",
    # Rules of the stores, and histories of the ledger.
    "contracts": "test",
    "contracts/test_finality_load.py": "all",
    "long/simulation": "test",
    "long/torture": "all",
    # Gateways in processes of their own.
    "system/live": "all",
    "system/live/test_budget_kill.py": "test",
    "system/live/test_channel_kill.py": "test",
    "long/release/test_image.py": "own",
    "system/live/test_channel_attacks.py": "test",
    "system/live/test_kill.py": "test",
    "long/release/test_prometheus.py": "own",
    "system/live/test_races.py": "test",
    "system/live/test_readme.py": "test",
    "system/live/test_recovery.py": "test",
    "long/release/test_release.py": "own",
    "system/live/test_settlement.py": "test",
    "system/live/test_tutorial.py": "test",
    "long/release/test_units.py": "own",
    "system/live/test_verdict_live.py": "test",
    "long/torture/test_alerts.py": "own",
    "system/transcripts": "test",
    "system/browser": "all",
    "system/browser/test_check_modules.py": "test",
    "system/browser/test_selling_keyboard.py": "test",
    "system/browser/test_try_outcomes.py": "test",
    "system/browser/test_viewers.py": "test",
    "system/attack": "all",
    "long/fuzz": "test",
    # The files of the repository.
    "deploy": "check",
    "long/guards": "check",
    "test_docs.py": "check",
    "test_docsite.py": "check",
    "test_lock_audit.py": "check",
    "observability/test_log_events.py": "check",
    "observability/test_metric_table.py": "check",
    "test_package.py": "check",
    "test_release.py": "check",
    "test_suite.py": "check",
    "test_threat_model.py": "check",
    "test_tidy.py": "check",
    # Modules at the root of the package.
    "test_body_text.py": "quick",
    "test_bench.py": "test",
    "test_bounded_cache.py": "quick",
    "test_channel_calls.py": "test",
    "test_csv_text.py": "quick",
    "test_errors.py": "quick",
    "test_ids.py": "quick",
    "test_limits.py": "quick",
    "test_money.py": "quick",
    "test_object_counter.py": "test",
    "test_per_call_record.py": "test",
    "test_spending_policy.py": "quick",
    "test_stack_guards.py": "quick",
    "test_validation.py": "quick",
}
"""Folder or file -> its class. The row of a file beats the row of its folder."""

OWN_TARGETS = {
    "long/release/test_image.py": "image-test",
    "long/release/test_prometheus.py": "alerts",
    "long/release/test_release.py": "release-test",
    "long/release/test_units.py": "units-test",
    "long/torture/test_alerts.py": "alerts",
}
"""File of the class `own` -> the target of the Makefile that runs it."""


def class_of(file: str) -> Class | None:
    """The class of a file, from the nearest row; None without a row. `file`: path below `tests`."""
    path = Path(file)
    return next((CLASSES[row.as_posix()] for row in (path, *path.parents) if row.as_posix() in CLASSES), None)


def list_test_files() -> list[str]:
    """Every test file, by its path below `tests`."""
    return sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


CLASS_NAMES: tuple[Class, ...] = get_args(Class)
