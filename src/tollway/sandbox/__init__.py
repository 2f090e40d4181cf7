"""THE SANDBOX: a test chain with a test dollar, funded wallets, and a sample provider.

`tollway demo` and the live tests use it. No package of the gateway may import it, and it must never hold a key of a real wallet.
"""
