"""How many sockets and files this process may have open at once: as many as it may need, where the system grants them.

Many systems let a process have 1,024 unless it asks for more, for the sake of programs that cannot count further. A thousand
connections that say nothing would take all of them, and nobody else would be heard until they are ended.
"""

import contextlib
import resource

OPEN_FILES_WANTED = 65_536
"""Two for each of a great many connections."""


def raise_open_file_limit() -> int:
    """Asks for what is wanted, or for all that is allowed. How many there may be now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
