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
    words=frozenset({"search", "show", "call", "history", "receipt", "wallet", "budget", "mcp"}),
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
    "budget": GroupRow(help="What the wallet of an agent may spend"),
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
    "demo": ("granian", "sqlalchemy", "segno"),
}
"""The extras of the distribution -> the packages whose absence shows that one is not installed. The commands that need an extra start with its name."""


def _row(target: str, help_text: str, example: str) -> CommandRow:
    return CommandRow(help=help_text, target=f"tollway.cli.{target}", example=example)


COMMANDS = {
    "search": _row("caller:search", "Finds APIs, with their price, networks, measured quality, and the reason for each match.", 'tollway search weather --max-price "0.05" --currency USDC'),
    "show": _row("caller:show_listing", "Explains how to use one API: operations, examples, price, charging, limits, trust.", "tollway show api_…"),
    "call": _row("call:call", "Calls an API, and pays if the gateway asks for payment.", 'tollway call api_… /quote/ETH --max-price "0.05 USDC"'),
    "history": _row("history:history", "Lists the calls of your wallet, newest first; shows one call; decides a held call to your listing (resolve CALL), or refunds calls (refund CALL…).", "tollway history --csv --since 2026-11-01 --until 2026-12-01 -o november.csv"),
    "receipt verify": _row("receipt:verify", "Verifies the signed receipt of a call, offline with --keys did.json. Exit code 1 for a receipt that is not valid.", "tollway receipt verify receipt.json --keys did.json"),
    "wallet new": _row("wallet:new_wallet", "Makes a wallet and prints its address. The key is in the file alone: keep a copy.", "tollway wallet new --out wallet.key"),
    "wallet address": _row("wallet:show_address", "Prints the address of the wallet: the address to fund.", "tollway wallet address"),
    "wallet balance": _row("wallet:show_balance", "Shows what the wallet holds on the chains of your nodes (--rpc), with the address to fund.", "tollway wallet balance --rpc https://node.example"),
    "wallet list": _row("wallet:list_wallets", "Lists the key files (*.key) of this machine with their addresses.", "tollway wallet list --folder keys"),
    "wallet payments": _row("wallet:list_payments", "Lists the payments of this wallet from this machine, with the credit left; with --csv or --wallet, those in the gateway's ledger.", "tollway wallet payments --csv -o payments.csv"),
    "wallet channels": _row("channels:list_channels", "Lists the payment channels of this wallet from this machine: what was deposited, charged and is left.", "tollway wallet channels"),
    "wallet refund": _row("channels:refund", "Asks the gateway to pay back what is left in a payment channel.", "tollway wallet refund 0x…"),
    "wallet withdraw": _row("channels:withdraw", "Takes back what is left in a payment channel by the wallet's own transactions.", "tollway wallet withdraw 0x… --rpc https://node.example"),
    "wallet show-to": _row("viewers:show_to", "Lets another wallet read your calls, payments and spending until a date.", "tollway wallet show-to 0x… --until 2027-07-01"),
    "wallet hide-from": _row("viewers:hide_from", "Ends at once that another wallet may read your books.", "tollway wallet hide-from 0x…"),
    "wallet decline": _row("viewers:decline", "Ends at once that you may read the books of another wallet, and removes it from your lists.", "tollway wallet decline 0x…"),
    "wallet viewers": _row("viewers:list_viewers", "Lists the wallets that may read your books, and the wallets whose books you may read.", "tollway wallet viewers"),
    "wallet spending": _row("sums:spending", "Shows what your wallet spent at the gateway: charged, released, held and reorged, by day or hour.", "tollway wallet spending --by day --since 2026-11-01"),
    "wallet abandon": _row("wallet:abandon", "Gives up a payment that is stuck or refused, so that its payee can be paid again.", "tollway wallet abandon 0x…"),
    "budget set": _row("budgets:set_budget", "Signs what the wallet of an agent may spend at this gateway, and stores it.", "tollway budget set 0x… --max-per-day 5 --until 2027-07-01"),
    "budget show": _row("budgets:show", "Shows what is left of a policy.", "tollway budget show 0x…"),
    "budget revoke": _row("budgets:revoke", "Revokes your policy: from the next call on the agent buys nothing here.", "tollway budget revoke 0x…"),
    "budget accept": _row("budgets:accept", "As the agent: accepts the owner of a policy. Only the owner or the operator can undo it.", "tollway budget accept 0x…"),
    "mcp": _row("mcp:serve_mcp", "An MCP server on stdin and stdout, for desktop agents: find, describe, call and pay for APIs.", 'tollway mcp --max-price "0.05 USDC" --budget "1 USDC"'),
    "listing list": _row("own_listings:list_own", "Lists your listings with price, state and the calls of the last 30 days.", "tollway listing list"),
    "listing publish": _row("provider:publish", "Publishes an API.", "tollway listing publish --file listing.toml --dry-run"),
    "listing edit": _row("provider:edit", "Changes what the options name in one of your listings, and nothing else. A repeatable option gives the whole new list.", "tollway listing edit api_… --price 0.02"),
    "listing pause": _row("provider:pause", "Refuses new calls of a listing until it is resumed. Credit for it stays.", "tollway listing pause api_…"),
    "listing resume": _row("provider:resume", "Accepts calls of a paused listing again.", "tollway listing resume api_…"),
    "listing retire": _row("provider:retire", "Removes a listing for good. Its history stays.", "tollway listing retire api_…"),
    "listing verify": _row("provider:verify", "Checks the proof that the endpoint of a listing is yours, and prints how to make one. Exit code 1 without a proof.", "tollway listing verify api_… --show"),
    "listing earnings": _row("sums:earnings", "Shows what your listings earned: charged, released, held and reorged, by day or hour.", "tollway listing earnings --by hour --csv"),
    "listing test": _row("provider:try_out", "Sends one request to the upstream of a listing, as the gateway sends a paid call. It costs nothing, and no history records it.", "tollway listing test api_… /quote/ETH"),
    "webhook add": _row("webhook:add", "Registers a URL that gets events once it has echoed a challenge.", "tollway webhook add https://owner.example/hooks --type call.charged"),
    "webhook list": _row("webhook:show_all", "Lists your webhooks, with the events that wait and that failed.", "tollway webhook list"),
    "webhook remove": _row("webhook:remove", "Removes a webhook with everything that waits for it.", "tollway webhook remove wh_…"),
    "webhook deliveries": _row("webhook:show_deliveries", "Lists the events of a webhook with their last attempts, newest first.", "tollway webhook deliveries wh_… --state dead"),
    "webhook resend": _row("webhook:resend", "Sends one event again, with the data of the first time.", "tollway webhook resend wh_… evt_…"),
    "gateway serve": _row("operator:serve", "Runs the gateway until SIGINT or SIGTERM.", "tollway gateway serve --config tollway.toml"),
    "gateway migrate": _row("operator:migrate", "Brings the database to this version. Safe to run again.", "tollway gateway migrate"),
    "gateway doctor": _row("operator:doctor", "Checks settings, database, chains and clock, and changes nothing.", "tollway gateway doctor"),
    "gateway gas": _row("gas:show_gas", "Shows what settling, depositing and claiming cost now, and the smallest sensible price of each rail.", "tollway gateway gas"),
    "gateway backup": _row("operator:backup", "Copies a SQLite database to FILE, also while a gateway uses it.", "tollway gateway backup tollway.backup"),
    "gateway restore": _row("operator:restore", "Replaces the SQLite database with FILE and holds every balance in it. Stop the gateway first.", "tollway gateway restore tollway.backup"),
    "gateway audit": _row("operator:audit", "Checks that every balance equals the sum of its calls, and lists held calls and payments.", "tollway gateway audit"),
    "gateway admit": _row("operator:admit", "Accepts a transaction that is too old, or that was mined before a restore.", "tollway gateway admit 0x…"),
    "gateway secrets": _row("secrets:count_or_reencrypt", "Counts the keys that stored secrets are encrypted with, and encrypts them again with the first key of secret_key.", "tollway gateway secrets reencrypt"),
    "gateway listings suspend": _row("moderation:suspend", "Hides a listing and refuses its calls. Credit for it stays.", "tollway gateway listings suspend api_… --reason 'under review'"),
    "gateway listings restore": _row("moderation:restore", "Ends the suspension of a listing.", "tollway gateway listings restore api_…"),
    "gateway wallets block": _row("moderation:block", "Refuses a wallet, as a caller and as a provider.", "tollway gateway wallets block 0x… --reason spam"),
    "gateway wallets unbind": _row("moderation:unbind", "Ends that a wallet has an owner with a spending policy.", "tollway gateway wallets unbind 0x…"),
    "gateway wallets unblock": _row("moderation:unblock", "Ends the block of a wallet.", "tollway gateway wallets unblock 0x…"),
    "gateway admin link": _row("admin:make_link", "Prints a link to the operator's pages. It counts once, within five minutes.", "tollway gateway admin link"),
    "gateway admin log": _row("admin:list_audit_entries", "Lists the operators' audit log, newest first: suspensions, blocks, admissions, releases, key changes, restores.", "tollway gateway admin log --limit 20"),
    "demo": _row("demo:demo", "Starts a chain, an API and a gateway, and shows each step of paid calls.", "tollway demo --once"),
}  # fmt: skip
"""Every command, in the order of `--help`."""
