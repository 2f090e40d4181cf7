"""THE PRACTICE GROUND: a test chain with a dollar of its own, funded wallets, and a provider whose API can be sold.

Serves `tollway demo` and the live tests. No package of the gateway may import it, and nothing here may ever hold a key that
is worth something.
"""
