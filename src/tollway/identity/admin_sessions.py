"""Sign-in to the operator's pages by a code that a command prints or by a wallet of the setting `operators`, and the port of the store of codes and sessions.

Access to the machine makes an operator: a user who can run `tollway gateway admin link` gets a code that counts once, within five minutes. A wallet of `operators`
signs a message of the admin origin with its own key, so that no answer of a node opens a session; without such wallets no message does. A session lasts eight hours and has the user and host of the command, or the
address of the wallet, so that each change on a page has an actor. The store has SHA-256 hashes, never a code or a token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from tollway.errors import Code, Problem, Refusal
from tollway.identity.sessions import SignIn, SignInChallenge, format_token, hash_token, read_message
from tollway.identity.signatures import recover
from tollway.identity.siwe import PublicOrigin
from tollway.ids import Address

CODE_TTL_S = 300
SESSION_TTL_S = 8 * 3_600
ENTRY_PATH = "/enter"
"""The page of the link: its form spends the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSession:
    """A session on the operator's pages. `actor`: the user and host that asked for the link (`alice@host`), or the address of the wallet that signed in."""

    token_hash: bytes = field(repr=False)
    actor: str
    created_ms: int
    expires_ms: int

    @property
    def wallet(self) -> Address | None:
        """The wallet that signed in; None for a session of a link. A user and host have an `@` between them and are no address."""
        try:
            return Address.parse(self.actor)
        except ValueError:
            return None


class AdminSessionStore(Protocol):
    """A store of codes and sessions. Every method is atomic."""

    async def put_code(self, code_hash: bytes, *, actor: str, expires_ms: int) -> None: ...

    async def spend_code(self, code_hash: bytes, *, token_hash: bytes, now_ms: int, expires_ms: int) -> bool:
        """Deletes the code and opens a session of its actor, in one transaction. False for an unknown, spent or expired code. Deletes what has
        expired."""
        ...

    async def put_admin_session(self, session: AdminSession) -> None:
        """Opens the session of a wallet. Deletes what has expired."""
        ...

    async def find_admin_session(self, token_hash: bytes, *, now_ms: int) -> AdminSession | None:
        """None for an unknown, closed or expired session."""
        ...

    async def delete_admin_session(self, token_hash: bytes) -> None: ...


async def create_code(
    store: AdminSessionStore, *, actor: str, now_ms: int, entropy: Callable[[int], bytes]
) -> str:
    """A new code for one sign-in. `entropy(n)`: n random bytes that are fit for secrets."""
    code = format_token(entropy(32))
    code_hash = hash_token(code)
    assert code_hash is not None
    await store.put_code(code_hash, actor=actor, expires_ms=now_ms + CODE_TTL_S * 1000)
    return code


class AdminSignIn:
    """The sign-in of operators at one gateway. `operators`: the wallets that may sign in."""

    def __init__(
        self,
        store: AdminSessionStore,
        sign_in: SignIn,
        *,
        operators: frozenset[Address],
        public_origin: PublicOrigin,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._sign_in = sign_in
        self.operators = operators
        self._public_origin = public_origin
        self._statement = f"Sign in to the operator's pages of {public_origin}"
        self._now_ms = now_ms
        self._entropy = entropy

    @property
    def has_wallets(self) -> bool:
        """Whether any wallet may sign in. False: the routes for wallets do not exist."""
        return bool(self.operators)

    async def open_session(self, code: str) -> str | None:
        """Spends the code and returns the token of a new session; None where the code does not count."""
        code_hash = hash_token(code)
        if code_hash is None:
            return None
        token = format_token(self._entropy(32))
        token_hash, now_ms = hash_token(token), self._now_ms()
        assert token_hash is not None
        is_spent = await self._store.spend_code(
            code_hash, token_hash=token_hash, now_ms=now_ms, expires_ms=now_ms + SESSION_TTL_S * 1000
        )
        return token if is_spent else None

    async def create_challenge(self, origin: PublicOrigin) -> SignInChallenge:
        """Issues a nonce whose URI is the admin origin: it counts in `open_wallet_session` at that origin, and nowhere else. The statement names the public origin,
        since many gateways are opened as `localhost`. Raises Refusal where callers are served at the same origin."""
        self._check_origin(origin)
        challenge = await self._sign_in.at_origin(origin).create_challenge(str(origin))
        return replace(challenge, statement=self._statement)

    async def open_wallet_session(
        self, *, origin: PublicOrigin, text: str, signature: bytes, client_address: str
    ) -> str:
        """The token of a new session of the wallet whose key signed. Raises Refusal: what `SignIn.prove` raises, and `authentication_required` for a wallet that
        `operators` does not contain. No chain is read: a node could vouch for every signature."""
        self._check_origin(origin)
        message = read_message(text)
        if recover(message.digest, signature) != message.signer:
            raise Refusal(_NOT_BY_KEY)
        if message.statement != self._statement:
            raise Refusal(_ANOTHER_GATEWAY)
        await self._sign_in.at_origin(origin).prove(
            text=text, signature=signature, uris=(str(origin),), client_address=client_address
        )
        if message.signer not in self.operators:
            raise Refusal(_NO_OPERATOR)
        token = format_token(self._entropy(32))
        token_hash, now_ms = hash_token(token), self._now_ms()
        assert token_hash is not None
        await self._store.put_admin_session(
            AdminSession(
                token_hash=token_hash,
                actor=str(message.signer),
                created_ms=now_ms,
                expires_ms=now_ms + SESSION_TTL_S * 1000,
            )
        )
        return token

    def _check_origin(self, origin: PublicOrigin) -> None:
        """A nonce of the public API can name any URI of the public origin: that origin must not be the admin origin too."""
        if origin.authority == self._public_origin.authority:
            raise Refusal(_PUBLIC_ORIGIN)

    async def find_session(self, token: str) -> AdminSession | None:
        """The open session of a token. A wallet that `operators` does not contain has no session here. Its row stays: gateways restart one after the other, and another
        gateway may have other settings."""
        token_hash = hash_token(token)
        if token_hash is None:
            return None
        session = await self._store.find_admin_session(token_hash, now_ms=self._now_ms())
        if session is None or session.wallet is None or session.wallet in self.operators:
            return session
        return None

    async def close_session(self, session: AdminSession) -> None:
        await self._store.delete_admin_session(session.token_hash)


_NOT_BY_KEY = Problem(
    code=Code.INVALID_SIGNATURE,
    detail="The message was not signed by the key of the wallet that it names. Contract wallets do not sign in to these pages: name a wallet with a key in operators, or "
    "use a link: tollway gateway admin link",
    reason="invalid_siwx_signature",
)
_ANOTHER_GATEWAY = Problem(
    code=Code.INVALID_SIGNATURE,
    detail="The message is not for the operator's pages of this gateway: its statement names no gateway or another one. Sign the text that the nonce response contains.",
    reason="invalid_siwx_statement",
)
_NO_OPERATOR = Problem(
    code=Code.AUTHENTICATION_REQUIRED,
    detail="The setting operators does not contain this wallet. Add it there and restart the gateway, or use a link: tollway gateway admin link",
)
_PUBLIC_ORIGIN = Problem(
    code=Code.INVALID_REQUEST,
    detail="Wallets sign in to these pages under a name that is not the one of public_url. Open the pages under another name of admin_hosts, or use a link: "
    "tollway gateway admin link",
)
