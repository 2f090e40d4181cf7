"""The replay is no part of `make test` yet: under load it does not end the same each time. `TRANSCRIPTS=1` runs it."""

import os

collect_ignore = [] if os.environ.get("TRANSCRIPTS") else ["test_transcripts.py"]
