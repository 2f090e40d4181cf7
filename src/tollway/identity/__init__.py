"""Identity: signatures and sign-ins of wallets, their sessions, and the permission to read the books of another wallet.

An object is safe to use from many tasks of one event loop at once. A method of a store raises `StorageUnavailable`, and is safe to call from many
gateways at once.
"""
