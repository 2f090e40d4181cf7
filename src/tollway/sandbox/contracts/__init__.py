"""Solidity sources of the practice ground, each beside its compiled artifact (`tests/sandbox/compile.mjs` makes them)."""
