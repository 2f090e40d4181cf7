"""Tollway: a self-hosted gateway and registry for HTTP APIs that are paid per request on EVM chains."""

__version__: str


def __getattr__(name: str) -> str:
    """`__version__`, read from the metadata of the distribution at its first use: reading takes some 20 ms, and most commands do not need it."""
    if name != "__version__":
        raise AttributeError(f"module 'tollway' has no attribute {name!r}")
    from importlib import metadata  # noqa: PLC0415 - loads the parser of e-mail

    try:
        version = metadata.version("tollway")
    except metadata.PackageNotFoundError:
        version = "0+unknown"  # a source folder that is on the path and not installed
    globals()["__version__"] = version
    return version
