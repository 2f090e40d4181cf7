"""The table of commands: the name, the help, the function and the extra of each one. `--help` and the parser read it (`cli/command_group.py`).

It imports nothing of Tollway: a command's module is imported when that command runs, and `tollway --help` imports none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A section of `--help`."""

    title: str
    example: str


CALLERS = Role(title="Callers", example='tollway call api_… /quote/ETH --max-price "0.05 USDC"')
PROVIDERS = Role(title="Providers", example="tollway listing publish --file listing.toml")
OPERATORS = Role(title="Operators", example="tollway gateway serve --config tollway.toml")
EVERYBODY = Role(title="Everybody", example="tollway demo --once")

ROLES = (CALLERS, PROVIDERS, OPERATORS, EVERYBODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """One command. `name` is what follows `tollway`; `help` is the first line of the function's docstring."""

    name: str
    role: Role
    help: str
    target: str
    """`module:function`."""
    extra: str = ""
    """The extra of the distribution that the command needs; empty for the base install."""
    alias: str = ""
    """A second name that `--help` leaves out: images, units and habits rely on it."""
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group of commands. `--help` adds the names of its commands to `help`. `target`: the function of the group alone, with options of its own."""

    help: str
    target: str = ""
    extra: str = ""
    alias: str = ""
    """A second name that `--help` leaves out."""


GROUPS = {
    "wallet": GroupRow(help="The wallet that pays"),
    "listing": GroupRow(help="Your listings"),
    "receipt": GroupRow(help="Signed receipts of calls"),
    "webhook": GroupRow(help="Events that are sent to a URL of yours"),
    "gateway": GroupRow(help="A gateway"),
    "gateway listings": GroupRow(
        help="Moderation of listings", target="tollway.cli.moderation:list_suspended", extra="gateway"
    ),
    "gateway wallets": GroupRow(
        help="Moderation of wallets", target="tollway.cli.moderation:list_blocked", extra="gateway"
    ),
    "gateway admin": GroupRow(
        help="The operator's pages and record",
        target="tollway.cli.admin:open_group",
        extra="gateway",
        alias="admin",
    ),
}
"""Groups, by their words."""

NAMED_ELSEWHERE = {
    "listing list": "search --provider $(tollway wallet address)",
    "listing list --suspended": "gateway listings --suspended",
    "wallet list --blocked": "gateway wallets --blocked",
}
"""What a provider or an operator may look for -> the command that has it."""

EXTRA_PACKAGES = {
    "mcp": ("mcp",),
    "gateway": ("granian", "sqlalchemy"),
    "demo": ("granian", "sqlalchemy"),
}
"""The packages whose absence shows that an extra is not installed."""

_CALLER = "tollway.cli.caller"
_PROVIDER = "tollway.cli.provider"
_MODERATION = "tollway.cli.moderation"
_OPERATOR = "tollway.cli.operator"
_WALLET = "tollway.cli.wallet"

COMMANDS = (
    CommandRow(
        name="search",
        role=CALLERS,
        help="Finds APIs, with their price, networks, measured quality, and the reason for each match.",
        target=f"{_CALLER}:search",
        example='tollway search weather --max-price "0.05" --currency USDC',
    ),
    CommandRow(
        name="show",
        role=CALLERS,
        help="Explains how to use one API: operations, examples, price, charging, limits, trust. JSON has every field of the listing.",
        target=f"{_CALLER}:show_listing",
        example="tollway show api_…",
    ),
    CommandRow(
        name="call",
        role=CALLERS,
        help="Calls an API, and pays if the gateway asks for payment.",
        target="tollway.cli.call:call",
        example='tollway call api_… /quote/ETH --max-price "0.05 USDC"',
    ),
    CommandRow(
        name="history",
        role=CALLERS,
        help="Lists the calls of your wallet, newest first; shows one call; or decides a held call to your listing (resolve CALL).",
        target="tollway.cli.history:history",
        example="tollway history --csv --since 2026-11-01 --until 2026-12-01 -o november.csv",
    ),
    CommandRow(
        name="receipt verify",
        role=CALLERS,
        help="Verifies the signed receipt of a call, offline with --keys did.json. Exit code 1 for a receipt that is not valid.",
        target="tollway.cli.receipt:verify",
        example="tollway receipt verify receipt.json --keys did.json",
    ),
    CommandRow(
        name="wallet new",
        role=CALLERS,
        help="Makes a wallet and prints its address. The key is in the file alone: keep a copy.",
        target=f"{_WALLET}:new_wallet",
        example="tollway wallet new --out wallet.key",
    ),
    CommandRow(
        name="wallet address",
        role=CALLERS,
        help="Prints the address of the wallet: the address to fund.",
        target=f"{_WALLET}:show_address",
        example="tollway wallet address",
    ),
    CommandRow(
        name="wallet balance",
        role=CALLERS,
        help="Shows what the wallet holds on the chains of your nodes (--rpc), with the address to fund.",
        target=f"{_WALLET}:show_balance",
        example="tollway wallet balance --rpc https://node.example",
    ),
    CommandRow(
        name="wallet list",
        role=CALLERS,
        help="Lists the key files (*.key) of this machine with their addresses.",
        target=f"{_WALLET}:list_wallets",
        example="tollway wallet list --folder keys",
    ),
    CommandRow(
        name="wallet payments",
        role=CALLERS,
        help="Lists the payments of this wallet from this machine, with the credit left; with --csv or --wallet, those in the gateway's ledger.",
        target=f"{_WALLET}:list_payments",
        example="tollway wallet payments --csv -o payments.csv",
    ),
    CommandRow(
        name="wallet show-to",
        role=CALLERS,
        help="Lets another wallet read your calls, payments and spending until a date. It reads only: it pays and decides nothing.",
        target="tollway.cli.viewers:show_to",
        example="tollway wallet show-to 0x… --until 2027-07-01",
    ),
    CommandRow(
        name="wallet hide-from",
        role=CALLERS,
        help="Ends at once that another wallet may read your books.",
        target="tollway.cli.viewers:hide_from",
        example="tollway wallet hide-from 0x…",
    ),
    CommandRow(
        name="wallet decline",
        role=CALLERS,
        help="Ends at once that you may read the books of another wallet, and removes it from your lists.",
        target="tollway.cli.viewers:decline",
        example="tollway wallet decline 0x…",
    ),
    CommandRow(
        name="wallet viewers",
        role=CALLERS,
        help="Lists the wallets that may read your books, and the wallets whose books you may read. One of these is listed once you have read its books (--wallet).",
        target="tollway.cli.viewers:list_viewers",
        example="tollway wallet viewers",
    ),
    CommandRow(
        name="wallet spending",
        role=CALLERS,
        help="Shows what your wallet spent at the gateway: charged, released, held and reorged, by day or hour.",
        target="tollway.cli.sums:spending",
        example="tollway wallet spending --by day --since 2026-11-01",
    ),
    CommandRow(
        name="wallet abandon",
        role=CALLERS,
        help="Gives up a payment that is stuck or refused, so that its payee can be paid again.",
        target=f"{_WALLET}:abandon",
        example="tollway wallet abandon 0x…",
    ),
    CommandRow(
        name="mcp",
        role=CALLERS,
        help="An MCP server on stdin and stdout, for desktop agents: find, describe, call and pay for APIs.",
        target="tollway.cli.mcp:serve_mcp",
        extra="mcp",
        example='tollway mcp --max-price "0.05 USDC" --budget "1 USDC"',
    ),
    CommandRow(
        name="listing publish",
        role=PROVIDERS,
        help="Publishes an API.",
        target=f"{_PROVIDER}:publish",
        example="tollway listing publish --file listing.toml --dry-run",
    ),
    CommandRow(
        name="listing edit",
        role=PROVIDERS,
        help="Changes what the options name in one of your listings, and nothing else. A repeatable option gives the whole new list.",
        target=f"{_PROVIDER}:edit",
        example="tollway listing edit api_… --price 0.02",
    ),
    CommandRow(
        name="listing pause",
        role=PROVIDERS,
        help="Refuses new calls of a listing until it is resumed. Credit for it stays.",
        target=f"{_PROVIDER}:pause",
        example="tollway listing pause api_…",
    ),
    CommandRow(
        name="listing resume",
        role=PROVIDERS,
        help="Accepts calls of a paused listing again.",
        target=f"{_PROVIDER}:resume",
        example="tollway listing resume api_…",
    ),
    CommandRow(
        name="listing retire",
        role=PROVIDERS,
        help="Removes a listing for good. Its history stays.",
        target=f"{_PROVIDER}:retire",
        example="tollway listing retire api_…",
    ),
    CommandRow(
        name="listing verify",
        role=PROVIDERS,
        help="Checks the proof that the endpoint of a listing is yours, and prints how to make one. Exit code 1 without a proof.",
        target=f"{_PROVIDER}:verify",
        example="tollway listing verify api_… --show",
    ),
    CommandRow(
        name="listing earnings",
        role=PROVIDERS,
        help="Shows what your listings earned: charged, released, held and reorged, by day or hour.",
        target="tollway.cli.sums:earnings",
        example="tollway listing earnings --by hour --csv",
    ),
    CommandRow(
        name="listing test",
        role=PROVIDERS,
        help="Sends one request to the upstream of a listing, as the gateway sends a paid call. It costs nothing, and no history records it.",
        target=f"{_PROVIDER}:try_out",
        example="tollway listing test api_… /quote/ETH",
    ),
    CommandRow(
        name="webhook add",
        role=PROVIDERS,
        help="Registers a URL that gets events once it has echoed a challenge.",
        target="tollway.cli.webhook:add",
        example="tollway webhook add https://owner.example/hooks --type call.charged",
    ),
    CommandRow(
        name="webhook list",
        role=PROVIDERS,
        help="Lists your webhooks, with the events that wait and that failed.",
        target="tollway.cli.webhook:show_all",
        example="tollway webhook list",
    ),
    CommandRow(
        name="webhook remove",
        role=PROVIDERS,
        help="Removes a webhook with everything that waits for it.",
        target="tollway.cli.webhook:remove",
        example="tollway webhook remove wh_…",
    ),
    CommandRow(
        name="webhook deliveries",
        role=PROVIDERS,
        help="Lists the events of a webhook with their last attempts, newest first.",
        target="tollway.cli.webhook:show_deliveries",
        example="tollway webhook deliveries wh_… --state dead",
    ),
    CommandRow(
        name="webhook resend",
        role=PROVIDERS,
        help="Sends one event again, with the data of the first time.",
        target="tollway.cli.webhook:resend",
        example="tollway webhook resend wh_… evt_…",
    ),
    CommandRow(
        name="gateway serve",
        role=OPERATORS,
        help="Runs the gateway until SIGINT or SIGTERM.",
        target=f"{_OPERATOR}:serve",
        extra="gateway",
        alias="serve",
        example="tollway gateway serve --config tollway.toml",
    ),
    CommandRow(
        name="gateway migrate",
        role=OPERATORS,
        help="Brings the database to this version. Safe to run again.",
        target=f"{_OPERATOR}:migrate",
        extra="gateway",
        alias="migrate",
        example="tollway gateway migrate",
    ),
    CommandRow(
        name="gateway doctor",
        role=OPERATORS,
        help="Checks settings, database, chains and clock, and changes nothing.",
        target=f"{_OPERATOR}:doctor",
        extra="gateway",
        alias="doctor",
        example="tollway gateway doctor",
    ),
    CommandRow(
        name="gateway backup",
        role=OPERATORS,
        help="Copies a SQLite database to FILE, also while a gateway uses it.",
        target=f"{_OPERATOR}:backup",
        extra="gateway",
        alias="backup",
        example="tollway gateway backup tollway.backup",
    ),
    CommandRow(
        name="gateway restore",
        role=OPERATORS,
        help="Replaces the SQLite database with FILE and holds every balance in it. Stop the gateway first.",
        target=f"{_OPERATOR}:restore",
        extra="gateway",
        alias="restore",
        example="tollway gateway restore tollway.backup",
    ),
    CommandRow(
        name="gateway audit",
        role=OPERATORS,
        help="Checks that every balance equals the sum of its calls, and lists held calls and payments.",
        target=f"{_OPERATOR}:audit",
        extra="gateway",
        alias="audit",
        example="tollway gateway audit",
    ),
    CommandRow(
        name="gateway admit",
        role=OPERATORS,
        help="Accepts a transaction that is too old, or that was mined before a restore.",
        target=f"{_OPERATOR}:admit",
        extra="gateway",
        example="tollway gateway admit 0x…",
    ),
    CommandRow(
        name="gateway secrets",
        role=OPERATORS,
        help="Counts the keys that stored secrets are encrypted with, and encrypts them again with the first key of secret_key.",
        target="tollway.cli.secrets:count_or_reencrypt",
        extra="gateway",
        example="tollway gateway secrets reencrypt",
    ),
    CommandRow(
        name="gateway listings suspend",
        role=OPERATORS,
        help="Hides a listing and refuses its calls. Credit for it stays.",
        target=f"{_MODERATION}:suspend",
        extra="gateway",
        example="tollway gateway listings suspend api_… --reason 'under review'",
    ),
    CommandRow(
        name="gateway listings restore",
        role=OPERATORS,
        help="Ends the suspension of a listing.",
        target=f"{_MODERATION}:restore",
        extra="gateway",
        example="tollway gateway listings restore api_…",
    ),
    CommandRow(
        name="gateway wallets block",
        role=OPERATORS,
        help="Refuses a wallet, as a caller and as a provider.",
        target=f"{_MODERATION}:block",
        extra="gateway",
        example="tollway gateway wallets block 0x… --reason spam",
    ),
    CommandRow(
        name="gateway wallets unblock",
        role=OPERATORS,
        help="Ends the block of a wallet.",
        target=f"{_MODERATION}:unblock",
        extra="gateway",
        example="tollway gateway wallets unblock 0x…",
    ),
    CommandRow(
        name="gateway admin link",
        role=OPERATORS,
        help="Prints a link to the operator's pages. It counts once, within five minutes.",
        target="tollway.cli.admin:make_link",
        extra="gateway",
        example="tollway gateway admin link",
    ),
    CommandRow(
        name="gateway admin log",
        role=OPERATORS,
        help="Lists the acts of the operators, newest first: suspensions, blocks, admissions, releases, key changes, restores.",
        target="tollway.cli.admin:list_acts",
        extra="gateway",
        example="tollway gateway admin log --limit 20",
    ),
    CommandRow(
        name="demo",
        role=EVERYBODY,
        help="Starts a chain, an API and a gateway, and shows each step of paid calls.",
        target="tollway.cli.demo:demo",
        extra="demo",
        example="tollway demo --once",
    ),
)
"""Every command, in the order of `--help`."""
