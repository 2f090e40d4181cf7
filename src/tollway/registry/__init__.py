"""Listings: their terms, drafts, documents, ownership and quality, and the ports of their stores.

A method of a port raises `StorageUnavailable`, and is safe to call from many tasks and, on PostgreSQL, from many gateways at once.
"""
