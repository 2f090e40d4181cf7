"""The ledger: its records, its pure rules, and the ports that `storage` implements.

A method of a port raises `StorageUnavailable`, and is safe to call from many tasks and, on PostgreSQL, from many gateways at once.
"""
