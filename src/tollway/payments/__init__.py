"""Payments: verifies transactions and authorisations, settles authorisations, and watches payments until they are final.

An object that the app builds exists once per process, and any number of tasks of one event loop may use it at once. What reads the ledger raises
`StorageUnavailable`, what reads a chain raises `ChainUnavailable`; a docstring says where that is not so.
"""
