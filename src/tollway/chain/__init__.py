"""Chains: their ports, the adapter for JSON-RPC nodes, networks, and the encodings of tokens and transactions.

An adapter is safe to use from many tasks of one event loop at once.
"""
