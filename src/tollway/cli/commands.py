"""The tables of commands and their groups, by the words that follow `tollway`. `--help` and the parser read them (`cli/command_group.py`).

They import nothing of Tollway: a command's module is imported when that command runs, and `tollway --help` imports none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A section of `--help`: the commands that start with one of `words`."""

    title: str
    words: frozenset[str]
    example: str


CALLERS = Role(
    title="Callers",
    words=frozenset({"search", "show", "call", "history", "receipt", "wallet", "mcp"}),
    example='tollway call api_… /quote/ETH --max-price "0.05 USDC"',
)
PROVIDERS = Role(
    title="Providers",
    words=frozenset({"listing", "webhook"}),
    example="tollway listing publish --file listing.toml",
)
OPERATORS = Role(
    title="Operators",
    words=frozenset({"gateway"}),
    example="tollway gateway serve --config tollway.toml",
)
EVERYBODY = Role(title="Everybody", words=frozenset({"demo"}), example="tollway demo --once")

ROLES = (CALLERS, PROVIDERS, OPERATORS, EVERYBODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """One command."""

    help: str
    """The docstring of the function, where it has one, follows it in `--help` of the command."""
    target: str
    """`module:function`."""
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group of commands. `--help` adds the names of its commands to `help`. `target`: the function of the group alone, with options of its own."""

    help: str
    target: str = ""


GROUPS = {
    "wallet": GroupRow(help="The wallet that pays"),
    "listing": GroupRow(help="Your listings"),
    "receipt": GroupRow(help="Signed receipts of calls"),
    "webhook": GroupRow(help="Events that are sent to a URL of yours"),
    "gateway": GroupRow(help="A gateway"),
    "gateway listings": GroupRow(
        help="Moderation of listings", target="tollway.cli.moderation:list_suspended"
    ),
    "gateway wallets": GroupRow(help="Moderation of wallets", target="tollway.cli.moderation:list_blocked"),
    "gateway admin": GroupRow(help="The operator's pages and record", target="tollway.cli.admin:open_group"),
}

ALIASES = {
    word: f"gateway {word}" for word in ("serve", "migrate", "doctor", "backup", "restore", "audit", "admin")
}
"""Second names that `--help` leaves out -> the words that they stand for: images, units and habits rely on them."""

NAMED_ELSEWHERE = {
    "listing list --suspended": "gateway listings --suspended",
    "wallet list --blocked": "gateway wallets --blocked",
}
"""What a provider or an operator may look for -> the command that has it."""

EXTRA_PACKAGES = {
    "mcp": ("mcp",),
    "gateway": ("granian", "sqlalchemy"),
    "demo": ("granian", "sqlalchemy"),
}
"""The extras of the distribution -> the packages whose absence shows that one is not installed. The commands that need an extra start with its name."""

COMMANDS = {
    "search": CommandRow(
        help="Finds APIs, with their price, networks, measured quality, and the reason for each match.",
        target="tollway.cli.caller:search",
        example='tollway search weather --max-price "0.05" --currency USDC',
    ),
    "show": CommandRow(
        help="Explains how to use one API: operations, examples, price, charging, limits, trust. JSON has every field of the listing.",
        target="tollway.cli.caller:show_listing",
        example="tollway show api_…",
    ),
    "call": CommandRow(
        help="Calls an API, and pays if the gateway asks for payment.",
        target="tollway.cli.call:call",
        example='tollway call api_… /quote/ETH --max-price "0.05 USDC"',
    ),
    "history": CommandRow(
        help="Lists the calls of your wallet, newest first; shows one call; or decides a held call to your listing (resolve CALL).",
        target="tollway.cli.history:history",
        example="tollway history --csv --since 2026-11-01 --until 2026-12-01 -o november.csv",
    ),
    "receipt verify": CommandRow(
        help="Verifies the signed receipt of a call, offline with --keys did.json. Exit code 1 for a receipt that is not valid.",
        target="tollway.cli.receipt:verify",
        example="tollway receipt verify receipt.json --keys did.json",
    ),
    "wallet new": CommandRow(
        help="Makes a wallet and prints its address. The key is in the file alone: keep a copy.",
        target="tollway.cli.wallet:new_wallet",
        example="tollway wallet new --out wallet.key",
    ),
    "wallet address": CommandRow(
        help="Prints the address of the wallet: the address to fund.",
        target="tollway.cli.wallet:show_address",
        example="tollway wallet address",
    ),
    "wallet balance": CommandRow(
        help="Shows what the wallet holds on the chains of your nodes (--rpc), with the address to fund.",
        target="tollway.cli.wallet:show_balance",
        example="tollway wallet balance --rpc https://node.example",
    ),
    "wallet list": CommandRow(
        help="Lists the key files (*.key) of this machine with their addresses.",
        target="tollway.cli.wallet:list_wallets",
        example="tollway wallet list --folder keys",
    ),
    "wallet payments": CommandRow(
        help="Lists the payments of this wallet from this machine, with the credit left; with --csv or --wallet, those in the gateway's ledger.",
        target="tollway.cli.wallet:list_payments",
        example="tollway wallet payments --csv -o payments.csv",
    ),
    "wallet show-to": CommandRow(
        help="Lets another wallet read your calls, payments and spending until a date. It reads only: it pays and decides nothing.",
        target="tollway.cli.viewers:show_to",
        example="tollway wallet show-to 0x… --until 2027-07-01",
    ),
    "wallet hide-from": CommandRow(
        help="Ends at once that another wallet may read your books.",
        target="tollway.cli.viewers:hide_from",
        example="tollway wallet hide-from 0x…",
    ),
    "wallet decline": CommandRow(
        help="Ends at once that you may read the books of another wallet, and removes it from your lists.",
        target="tollway.cli.viewers:decline",
        example="tollway wallet decline 0x…",
    ),
    "wallet viewers": CommandRow(
        help="Lists the wallets that may read your books, and the wallets whose books you may read. One of these is listed once you have read its books (--wallet).",
        target="tollway.cli.viewers:list_viewers",
        example="tollway wallet viewers",
    ),
    "wallet spending": CommandRow(
        help="Shows what your wallet spent at the gateway: charged, released, held and reorged, by day or hour.",
        target="tollway.cli.sums:spending",
        example="tollway wallet spending --by day --since 2026-11-01",
    ),
    "wallet abandon": CommandRow(
        help="Gives up a payment that is stuck or refused, so that its payee can be paid again.",
        target="tollway.cli.wallet:abandon",
        example="tollway wallet abandon 0x…",
    ),
    "mcp": CommandRow(
        help="An MCP server on stdin and stdout, for desktop agents: find, describe, call and pay for APIs.",
        target="tollway.cli.mcp:serve_mcp",
        example='tollway mcp --max-price "0.05 USDC" --budget "1 USDC"',
    ),
    "listing list": CommandRow(
        help="Lists your listings with price, state and the calls of the last 30 days.",
        target="tollway.cli.own_listings:list_own",
        example="tollway listing list",
    ),
    "listing publish": CommandRow(
        help="Publishes an API.",
        target="tollway.cli.provider:publish",
        example="tollway listing publish --file listing.toml --dry-run",
    ),
    "listing edit": CommandRow(
        help="Changes what the options name in one of your listings, and nothing else. A repeatable option gives the whole new list.",
        target="tollway.cli.provider:edit",
        example="tollway listing edit api_… --price 0.02",
    ),
    "listing pause": CommandRow(
        help="Refuses new calls of a listing until it is resumed. Credit for it stays.",
        target="tollway.cli.provider:pause",
        example="tollway listing pause api_…",
    ),
    "listing resume": CommandRow(
        help="Accepts calls of a paused listing again.",
        target="tollway.cli.provider:resume",
        example="tollway listing resume api_…",
    ),
    "listing retire": CommandRow(
        help="Removes a listing for good. Its history stays.",
        target="tollway.cli.provider:retire",
        example="tollway listing retire api_…",
    ),
    "listing verify": CommandRow(
        help="Checks the proof that the endpoint of a listing is yours, and prints how to make one. Exit code 1 without a proof.",
        target="tollway.cli.provider:verify",
        example="tollway listing verify api_… --show",
    ),
    "listing earnings": CommandRow(
        help="Shows what your listings earned: charged, released, held and reorged, by day or hour.",
        target="tollway.cli.sums:earnings",
        example="tollway listing earnings --by hour --csv",
    ),
    "listing test": CommandRow(
        help="Sends one request to the upstream of a listing, as the gateway sends a paid call. It costs nothing, and no history records it.",
        target="tollway.cli.provider:try_out",
        example="tollway listing test api_… /quote/ETH",
    ),
    "webhook add": CommandRow(
        help="Registers a URL that gets events once it has echoed a challenge.",
        target="tollway.cli.webhook:add",
        example="tollway webhook add https://owner.example/hooks --type call.charged",
    ),
    "webhook list": CommandRow(
        help="Lists your webhooks, with the events that wait and that failed.",
        target="tollway.cli.webhook:show_all",
        example="tollway webhook list",
    ),
    "webhook remove": CommandRow(
        help="Removes a webhook with everything that waits for it.",
        target="tollway.cli.webhook:remove",
        example="tollway webhook remove wh_…",
    ),
    "webhook deliveries": CommandRow(
        help="Lists the events of a webhook with their last attempts, newest first.",
        target="tollway.cli.webhook:show_deliveries",
        example="tollway webhook deliveries wh_… --state dead",
    ),
    "webhook resend": CommandRow(
        help="Sends one event again, with the data of the first time.",
        target="tollway.cli.webhook:resend",
        example="tollway webhook resend wh_… evt_…",
    ),
    "gateway serve": CommandRow(
        help="Runs the gateway until SIGINT or SIGTERM.",
        target="tollway.cli.operator:serve",
        example="tollway gateway serve --config tollway.toml",
    ),
    "gateway migrate": CommandRow(
        help="Brings the database to this version. Safe to run again.",
        target="tollway.cli.operator:migrate",
        example="tollway gateway migrate",
    ),
    "gateway doctor": CommandRow(
        help="Checks settings, database, chains and clock, and changes nothing.",
        target="tollway.cli.operator:doctor",
        example="tollway gateway doctor",
    ),
    "gateway backup": CommandRow(
        help="Copies a SQLite database to FILE, also while a gateway uses it.",
        target="tollway.cli.operator:backup",
        example="tollway gateway backup tollway.backup",
    ),
    "gateway restore": CommandRow(
        help="Replaces the SQLite database with FILE and holds every balance in it. Stop the gateway first.",
        target="tollway.cli.operator:restore",
        example="tollway gateway restore tollway.backup",
    ),
    "gateway audit": CommandRow(
        help="Checks that every balance equals the sum of its calls, and lists held calls and payments.",
        target="tollway.cli.operator:audit",
        example="tollway gateway audit",
    ),
    "gateway admit": CommandRow(
        help="Accepts a transaction that is too old, or that was mined before a restore.",
        target="tollway.cli.operator:admit",
        example="tollway gateway admit 0x…",
    ),
    "gateway secrets": CommandRow(
        help="Counts the keys that stored secrets are encrypted with, and encrypts them again with the first key of secret_key.",
        target="tollway.cli.secrets:count_or_reencrypt",
        example="tollway gateway secrets reencrypt",
    ),
    "gateway listings suspend": CommandRow(
        help="Hides a listing and refuses its calls. Credit for it stays.",
        target="tollway.cli.moderation:suspend",
        example="tollway gateway listings suspend api_… --reason 'under review'",
    ),
    "gateway listings restore": CommandRow(
        help="Ends the suspension of a listing.",
        target="tollway.cli.moderation:restore",
        example="tollway gateway listings restore api_…",
    ),
    "gateway wallets block": CommandRow(
        help="Refuses a wallet, as a caller and as a provider.",
        target="tollway.cli.moderation:block",
        example="tollway gateway wallets block 0x… --reason spam",
    ),
    "gateway wallets unblock": CommandRow(
        help="Ends the block of a wallet.",
        target="tollway.cli.moderation:unblock",
        example="tollway gateway wallets unblock 0x…",
    ),
    "gateway admin link": CommandRow(
        help="Prints a link to the operator's pages. It counts once, within five minutes.",
        target="tollway.cli.admin:make_link",
        example="tollway gateway admin link",
    ),
    "gateway admin log": CommandRow(
        help="Lists the operators' audit log, newest first: suspensions, blocks, admissions, releases, key changes, restores.",
        target="tollway.cli.admin:list_audit_entries",
        example="tollway gateway admin log --limit 20",
    ),
    "demo": CommandRow(
        help="Starts a chain, an API and a gateway, and shows each step of paid calls.",
        target="tollway.cli.demo:demo",
        example="tollway demo --once",
    ),
}
"""Every command, in the order of `--help`."""
