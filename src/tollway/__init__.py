"""Tollway: a self-hosted gateway and registry for HTTP APIs that are paid per request on EVM chains."""

__version__ = "0.1.0"
