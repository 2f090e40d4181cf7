"""Every guard that has to prove itself."""

from tests.guards.identity_guards import IDENTITY_GUARDS
from tests.guards.key_guards import KEY_GUARDS
from tests.guards.outbound_guards import OUTBOUND_GUARDS
from tests.guards.passage_guards import PASSAGE_GUARDS
from tests.guards.text_guards import TEXT_GUARDS

GUARDS = (*OUTBOUND_GUARDS, *PASSAGE_GUARDS, *IDENTITY_GUARDS, *TEXT_GUARDS, *KEY_GUARDS)
