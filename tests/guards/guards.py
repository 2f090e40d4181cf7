"""Every guard that has to prove itself."""

from tests.guards.answer_guards import ANSWER_GUARDS
from tests.guards.background_guards import BACKGROUND_GUARDS
from tests.guards.book_guards import BOOK_GUARDS
from tests.guards.caller_guards import CALLER_GUARDS
from tests.guards.chain_guards import CHAIN_GUARDS
from tests.guards.decision_guards import DECISION_GUARDS
from tests.guards.deployment_guards import DEPLOYMENT_GUARDS
from tests.guards.exhaustion_guards import EXHAUSTION_GUARDS
from tests.guards.form_guards import FORM_GUARDS
from tests.guards.identity_guards import IDENTITY_GUARDS
from tests.guards.key_guards import KEY_GUARDS
from tests.guards.limit_guards import LIMIT_GUARDS
from tests.guards.middleware_guards import MIDDLEWARE_GUARDS
from tests.guards.operator_guards import OPERATOR_GUARDS
from tests.guards.outbound_guards import OUTBOUND_GUARDS
from tests.guards.outcome_guards import OUTCOME_GUARDS
from tests.guards.page_guards import PAGE_GUARDS
from tests.guards.passage_guards import PASSAGE_GUARDS
from tests.guards.payment_guards import PAYMENT_GUARDS
from tests.guards.plain_guards import PLAIN_GUARDS
from tests.guards.price_guards import PRICE_GUARDS
from tests.guards.rate_guards import RATE_GUARDS
from tests.guards.read_guards import READ_GUARDS
from tests.guards.receipt_guards import RECEIPT_GUARDS
from tests.guards.reorg_guards import REORG_GUARDS
from tests.guards.repeat_guards import REPEAT_GUARDS
from tests.guards.response_guards import RESPONSE_GUARDS
from tests.guards.setting_guards import SETTING_GUARDS
from tests.guards.shown_guards import SHOWN_GUARDS
from tests.guards.signature_guards import SIGNATURE_GUARDS
from tests.guards.text_guards import TEXT_GUARDS
from tests.guards.webhook_guards import WEBHOOK_GUARDS

GUARDS = (
    *ANSWER_GUARDS,
    *OUTBOUND_GUARDS,
    *WEBHOOK_GUARDS,
    *PASSAGE_GUARDS,
    *IDENTITY_GUARDS,
    *OPERATOR_GUARDS,
    *TEXT_GUARDS,
    *LIMIT_GUARDS,
    *EXHAUSTION_GUARDS,
    *BACKGROUND_GUARDS,
    *PAYMENT_GUARDS,
    *CHAIN_GUARDS,
    *PLAIN_GUARDS,
    *PRICE_GUARDS,
    *REPEAT_GUARDS,
    *REORG_GUARDS,
    *KEY_GUARDS,
    *DECISION_GUARDS,
    *DEPLOYMENT_GUARDS,
    *SETTING_GUARDS,
    *SIGNATURE_GUARDS,
    *MIDDLEWARE_GUARDS,
    *RATE_GUARDS,
    *RECEIPT_GUARDS,
    *OUTCOME_GUARDS,
    *RESPONSE_GUARDS,
    *CALLER_GUARDS,
    *BOOK_GUARDS,
    *READ_GUARDS,
    *SHOWN_GUARDS,
    *PAGE_GUARDS,
    *FORM_GUARDS,
)
