"""What each error code means and what its reader can do about it. Words only; `/problems/{code}` and docs/errors.md
show them. A text here never promises more than the code does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tollway.errors import Code


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemPage:
    meaning: str
    remedy: str


def _problem_page(meaning: str, remedy: str) -> ProblemPage:
    return ProblemPage(meaning=meaning, remedy=remedy)


_SIGN_ANEW = "Make a fresh signature and send the request again."
_SAME_PROOF = "Send the same request with the same proof again after Retry-After. Do not pay a second time."
_RETRY_OR_TELL_PROVIDER = (
    "The payment stays yours: credit, or a signed one unused. Try again, or tell the provider."
)

PROBLEM_PAGES: Mapping[Code, ProblemPage] = MappingProxyType(
    {
        Code.INVALID_REQUEST: _problem_page(
            "The request cannot be read: broken JSON or path, a malformed or duplicated header, more than one way to "
            "pay, or a head over the limits.",
            "The detail names the part. Correct it; nothing was spent.",
        ),
        Code.AUTHENTICATION_REQUIRED: _problem_page(
            "This needs the proof of a wallet and none was sent.",
            "Sign the request (ERC-8128), open a session, or answer the sign-in challenge in the headers.",
        ),
        Code.INVALID_SIGNATURE: _problem_page(
            "The proof of the wallet does not hold: signature, covered parts or key do not fit the request.",
            _SIGN_ANEW,
        ),
        Code.SIGNATURE_EXPIRED: _problem_page(
            "The signature is outside the time in which it counts.",
            "Check your clock, then make a fresh signature. On a gateway call the payment is still yours.",
        ),
        Code.NONCE_REUSED: _problem_page(
            "This nonce was used before, or this gateway did not give it out.",
            "Take a fresh nonce. On a gateway call the detail names the call that the nonce bought.",
        ),
        Code.SESSION_EXPIRED: _problem_page("The session is over or was ended.", "Sign in again."),
        Code.CONFLICTING_IDENTITIES: _problem_page(
            "The request carries proofs of different wallets.", "Send the proofs of one wallet only."
        ),
        Code.PAYMENT_REQUIRED: _problem_page(
            "This call costs money and no payment was shown.",
            "Pay one of the options in the body, then repeat the call with the proof.",
        ),
        Code.PAYMENT_MALFORMED: _problem_page(
            "The payment header (x402 or MPP) cannot be read, or has a member that its protocol does not have. "
            "Nothing was spent.",
            "`detail` names what is wrong with it; repeat the call without a payment, and make the header from the "
            "terms of that answer. An unreadable MPP credential gets 402 with the terms.",
        ),
        Code.PAYMENT_EXPIRED: _problem_page(
            "The authorisation, or the challenge it answers, ends too early to be settled. Nothing was spent.",
            "Sign a new one with the times that the terms ask for, and check your clock.",
        ),
        Code.PAYMENT_METHOD_UNSUPPORTED: _problem_page(
            "This listing does not take that scheme, network or token, or not at present. Nothing was spent.",
            "Pay by one of the ways that the terms offer.",
        ),
        Code.PAYMENT_SETTLEMENT_FAILED: _problem_page(
            "The API answered, but the payment surely did not move any money, so the answer was dropped.",
            "`reason` says why. Mend that (mostly the balance), then pay anew.",
        ),
        Code.PAYMENT_INSUFFICIENT: _problem_page(
            "The payment counts, but it is less than the price.",
            "Send the difference to the same payee and repeat the call; what is there already stays yours.",
        ),
        Code.PAYMENT_VERIFICATION_FAILED: _problem_page(
            "The payment does not pay for this: another payee, token, chain or amount, or it failed. `reason` says which.",
            "Check the payment against the options, and pay as they say.",
        ),
        Code.PAYER_MISMATCH: _problem_page(
            "X-Signature is not by the wallet that paid.",
            "Sign with the wallet that the transfer came from. Nothing was spent.",
        ),
        Code.PAYER_IN_DEBT: _problem_page(
            "A transaction that paid for earlier calls left the chain, so these calls are owed.",
            "Send `debt` to `payTo` on `network`; the next transfer pays it first.",
        ),
        Code.WALLET_BLOCKED: _problem_page(
            "The operator of this gateway does not serve this wallet.", "Ask the operator."
        ),
        Code.NOT_PROVIDER: _problem_page(
            "Only the provider of this listing, or only wallets that the operator has admitted, may do that.",
            "Use the wallet that published the listing; where only admitted wallets may publish, ask the operator.",
        ),
        Code.OWNERSHIP_UNVERIFIED: _problem_page(
            "Its provider has not proved yet that the endpoint is theirs, and this gateway sells nothing before.",
            "Choose another listing. If it is yours: GET /api/v2/apis/{apiId}/ownership says what to do.",
        ),
        Code.API_NOT_FOUND: _problem_page("There is no listing with this id.", "Look it up in the list of APIs."),
        Code.CALL_NOT_FOUND: _problem_page(
            "There is no such call, or it is not yours to see.", "Look it up in your history."
        ),
        Code.PAYMENT_NOT_FOUND: _problem_page(
            "Nothing is known about this transaction.", "Check the hash, the network and the wallet."
        ),
        Code.ROUTE_NOT_FOUND: _problem_page("Nothing lives at this path.", "Check the path against the API document."),
        Code.METHOD_NOT_ALLOWED: _problem_page(
            "This path exists, but not with this method.", "Use a method that the Allow header names."
        ),
        Code.PAYLOAD_TOO_LARGE: _problem_page(
            "The body is over the limit.", "Send less. For a large body of a bound call, add bodyHash."
        ),
        Code.UNSUPPORTED_MEDIA_TYPE: _problem_page(
            "The body is of a kind that is not read here.", "Send application/json."
        ),
        Code.PAYMENT_ALREADY_USED: _problem_page(
            "All value of this payment is spent, or held by a call that has no outcome yet.",
            "`callId` names what it bought. While `paymentState` is `held`, wait and do not pay again; else pay anew if you want another call.",
        ),
        Code.PAYMENT_TOO_OLD: _problem_page(
            "The transaction is too old to be shown for the first time.",
            "Ask the operator or the provider to admit it.",
        ),
        Code.PAYMENT_HELD: _problem_page(
            "Nodes of the chain disagree about this payment, or the database was restored to an older moment; it waits until "
            "they agree, or until the operator has checked it.",
            "Wait, or ask the operator. Do not pay again.",
        ),
        Code.PAYMENT_PENDING: _problem_page(
            "The transaction is not mined yet, or not deep enough for its value.", _SAME_PROOF
        ),
        Code.IDEMPOTENCY_IN_PROGRESS: _problem_page("The same request is still running.", _SAME_PROOF),
        Code.ALREADY_EXISTS: _problem_page(
            "It exists already; or another wallet has proved that the endpoint's origin is theirs.",
            "Look at what is there before you create another.",
        ),
        Code.API_RETIRED: _problem_page(
            "The provider has retired this listing.", "Choose another. What you paid stays in your history."
        ),
        Code.PRECONDITION_FAILED: _problem_page(
            "It changed since you last read it, or is not in the state that this needs.",
            "Read it again, then decide.",
        ),
        Code.PRICE_ABOVE_MAX: _problem_page(
            "The call costs more than your Tollway-Max-Price.",
            "Raise the maximum or leave it. Nothing was spent.",
        ),
        Code.VALIDATION_FAILED: _problem_page(
            "The request can be read, but breaks a rule; `errors` names each field.", "Correct the fields."
        ),
        Code.ENDPOINT_NOT_ALLOWED: _problem_page(
            "This gateway does not dial that endpoint: private or reserved address, port, or scheme.",
            "Use a public http(s) address.",
        ),
        Code.IDEMPOTENCY_KEY_REUSED: _problem_page(
            "This Idempotency-Key was used for another request.", "Use a fresh key."
        ),
        Code.RATE_LIMITED: _problem_page("Too many requests.", "Wait as long as Retry-After says."),
        Code.FAILED_CALL_BUDGET_EXHAUSTED: _problem_page(
            "Too many of your calls to this listing, or to all listings together, ended without being billed.",
            "Wait as long as Retry-After says. Your payments stay yours.",
        ),
        Code.INTERNAL_ERROR: _problem_page(
            "Something went wrong in the gateway. `paymentState` says what became of the payment.",
            "Look at the call in your history, and tell the operator the request id.",
        ),
        Code.UPSTREAM_UNREACHABLE: _problem_page(
            "The provider's API could not be reached; nothing was sent.", _RETRY_OR_TELL_PROVIDER
        ),
        Code.UPSTREAM_BAD_RESPONSE: _problem_page("The provider's API gave an answer that is not HTTP.", _RETRY_OR_TELL_PROVIDER),
        Code.UPSTREAM_PAYMENT_REQUIRED: _problem_page(
            "The provider's API itself asked for a payment; that is not yours to make.",
            "Tell the provider. Your payment stays yours: credit, or a signed one unused.",
        ),
        Code.PAYMENT_OUTCOME_UNKNOWN: _problem_page(
            "It is not known yet whether the payment, or the call that holds it, went through.",
            _SAME_PROOF + " The call in your history says how it ended.",
        ),
        Code.CHAIN_UNAVAILABLE: _problem_page(
            "No chain node gave a usable answer, so the payment cannot be judged yet.", _SAME_PROOF
        ),
        Code.STORAGE_UNAVAILABLE: _problem_page(
            "The books cannot be read or written right now.", _SAME_PROOF
        ),
        Code.API_PAUSED: _problem_page(
            "The provider has paused this listing, or the operator has suspended it.",
            "Try again later. Do not pay now.",
        ),
        Code.UPSTREAM_UNAVAILABLE: _problem_page(
            "The provider's API is known to be down.", "Try again later. Do not pay now."
        ),
        Code.OVERLOADED: _problem_page("This gateway has more work than it can do.", _SAME_PROOF),
        Code.UPSTREAM_TIMEOUT: _problem_page(
            "The provider's API did not answer in time. Where it may have acted, the price is held, not lost.",
            "Look at the call in your history before you decide anything.",
        ),
        Code.LOOP_DETECTED: _problem_page(
            "The listing's endpoint leads back to this gateway.", "Tell the provider."
        ),
    }
)  # fmt: skip
