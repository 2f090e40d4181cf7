"""The bazaar extension of x402 for Python, asking a gateway as if it were a facilitator.

Usage: python browse_bazaar.py BASE list|search [PARAMETERS AS JSON]. Only the synchronous facilitator client can be
extended: x402 2.25 does not await what the other one gives.
"""

import json
import sys
from dataclasses import asdict

from x402.extensions.bazaar import with_bazaar
from x402.extensions.bazaar.facilitator_client import (
    ListDiscoveryResourcesParams,
    SearchDiscoveryResourcesParams,
)
from x402.http import FacilitatorConfig, HTTPFacilitatorClientSync


def main() -> None:
    base, what, *rest = sys.argv[1:]
    asked = json.loads(rest[0]) if rest else {}
    facilitator = HTTPFacilitatorClientSync(FacilitatorConfig(url=base))
    bazaar = with_bazaar(facilitator).extensions.bazaar
    try:
        if what == "search":
            found = asdict(bazaar.search(SearchDiscoveryResourcesParams(**asked)))
        else:
            found = asdict(bazaar.list_resources(ListDiscoveryResourcesParams(**asked)))
        told = {"found": found, "error": None}
    except Exception as error:
        told = {"found": None, "error": f"{type(error).__name__}: {error}"}
    finally:
        facilitator.close()
    sys.stdout.write(json.dumps(told) + "\n")


main()
