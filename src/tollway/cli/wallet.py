"""`tollway wallet`: key files, addresses, balances by the wallet's own nodes, and the payments that this machine made.

A key is read from a file or the environment, never from an argument, which every user of the machine can read. A key file that others can read is refused.
"""

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic_core import from_json
from rich.table import Table
from rich.text import Text

from tollway.chain.networks import PRESETS, describe_network
from tollway.cli.csv_output import check_output, write_csv
from tollway.cli.inputs import (
    LATER,
    AllowHttp,
    AsCsv,
    AsJson,
    BooksOf,
    Caller,
    CsvFile,
    KeyFile,
    OneNode,
    Rpc,
    Since,
    StoreFile,
    Until,
    caller_command,
    explained_caller_failures,
    read_moment,
    read_nodes,
    read_wallet,
    split_nodes,
)
from tollway.cli.output import (
    is_for_people,
    list_objects,
    open_console,
    print_document,
    print_entry,
    print_foot,
    print_json,
    print_text,
)
from tollway.client import (
    CallerFailure,
    CannotPay,
    KeyUnusable,
    NodeUnreachable,
    Wallet,
    create_key_file,
    requests,
)
from tollway.client.call_io import SignedAuthorization, Transfer
from tollway.client.control import Role
from tollway.client.driver import check_tls
from tollway.client.exchange import run_blocking
from tollway.client.fee_limit import format_fee, native_symbol
from tollway.client.responses import describe_host
from tollway.client.safe_text import format_value, plain_line
from tollway.client.transfer import PaymentSource, fetch_balance, find_asset
from tollway.ids import Address, ChainId
from tollway.money import Asset, format_decimal
from tollway.payments.channels import DEPOSIT_COLLECTOR

KEY_FILES_MAX = 1_000
DEFAULT_FOLDER = ".tollway"
_KEYSTORE_BYTES_MAX = 16_384

T = TypeVar("T")


# ---- Keys.


def new_wallet(
    out: Annotated[Path, typer.Option("--out", help="The key file to write; it must not exist.")] = Path(
        "tollway.key"
    ),
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        try:
            address = create_key_file(out)
        except FileExistsError:
            raise ValueError(
                f"{out} exists and a key is never overwritten; choose another file with --out"
            ) from None
        except OSError as exc:
            raise ValueError(f"{out} cannot be written: {exc.strerror}") from exc
        print_document({"address": str(address), "keyFile": str(out)}, as_json=as_json)


def show_address(key_file: KeyFile = None, as_json: AsJson = False) -> None:
    with explained_caller_failures(as_json=as_json):
        address = str(read_wallet(key_file).address)
        if is_for_people(as_json=as_json):
            print_text(address)
        else:
            print_json({"address": address})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFileEntry:
    """A key file. `address` None: the file cannot be used, for the reason in `problem`."""

    path: Path
    address: str | None
    problem: str | None = None


def list_wallets(
    folder: Annotated[
        list[Path] | None,
        typer.Option("--folder", help="Where to look. Repeatable. Default: this folder and ~/.tollway."),
    ] = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        folders = folder or [Path(), Path.home() / DEFAULT_FOLDER]
        entries = list(find_key_files(folders, key_file))
        if not is_for_people(as_json=as_json):
            print_json(
                [
                    {"address": entry.address, "keyFile": str(entry.path), "problem": entry.problem}
                    for entry in entries
                ]
            )
            return
        for entry in entries:
            print_text(f"{entry.address or entry.problem}  {plain_line(str(entry.path))}")
        if not entries:
            print_text("There is no key file here. Make a wallet with tollway wallet new.", is_error=True)


def find_key_files(folders: Iterable[Path], key_file: Path | None) -> Iterator[KeyFileEntry]:
    """The configured key file, then the files `*.key` of the folders, each once. The key of a gateway's database, which lies beside it, is no wallet."""
    paths = [] if key_file is None else [key_file]
    for folder in folders:
        found = sorted(path for path in folder.glob("*.key") if not path.with_suffix("").is_file())
        paths += found[:KEY_FILES_MAX]
    seen: set[Path] = set()
    for path in paths:
        if (known := path.resolve()) not in seen:
            seen.add(known)
            yield _read_key_file(path)


def _read_key_file(path: Path) -> KeyFileEntry:
    try:
        return KeyFileEntry(path=path, address=str(Wallet.from_file(path).address))
    except KeyUnusable as exc:
        address = _read_keystore_address(path)
        return KeyFileEntry(path=path, address=address, problem=None if address else str(exc))


def _read_keystore_address(path: Path) -> str | None:
    """The address of a keystore, which needs no password; None for another file."""
    try:
        document = from_json(path.read_bytes()[:_KEYSTORE_BYTES_MAX])
        return str(Address.parse("0x" + str(document["address"]).removeprefix("0x")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


# ---- Balances.


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetBalance:
    """What the wallet holds of one asset, by the node at `host`; `units` None: it gave no usable response."""

    asset: Asset
    host: str
    units: int | None

    @property
    def amount(self) -> str | None:
        return None if self.units is None else format_decimal(self.units, decimals=self.asset.decimals)


def show_balance(
    token: Annotated[
        list[str] | None,
        typer.Option("--token", help="The address of a further token, asked of every node. Repeatable."),
    ] = None,
    rpc: Rpc = "",
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        address = read_wallet(key_file).address
        nodes = read_nodes(split_nodes(rpc), allow_http=allow_http)
        if not nodes:
            raise ValueError("no node to read balances from: name one with --rpc or TOLLWAY_RPC")
        for url in nodes.values():
            check_tls(url, allow_http=allow_http)
        tokens = [Address.parse(text) for text in token or ()]
        balances = [
            balance
            for chain_id, url in sorted(nodes.items())
            for balance in read_balances(ChainId(chain_id), url, address, tokens=tokens)
        ]
        if is_for_people(as_json=as_json):
            _print_balances(address, balances)
        else:
            print_json({"address": str(address), "balances": [_describe_balance(one) for one in balances]})
    if any(balance.units is None for balance in balances):
        raise typer.Exit(LATER)


def read_balances(
    chain_id: ChainId, url: str, holder: Address, *, tokens: Iterable[Address] = ()
) -> Iterator[AssetBalance]:
    """The balances of the assets that the presets know on that chain, and of further tokens that the chain describes."""
    source = PaymentSource(payer=holder, chains=frozenset({chain_id}), gateway="", assets={})
    node, assets = OneNode(url), list_known_assets(chain_id)
    for address in tokens:
        asset = _ask(find_asset(node, chain_id, address, source))
        if asset is not None and asset.token not in [known.token for known in assets]:
            assets.append(asset)
    for asset in assets:
        yield AssetBalance(
            asset=asset, host=describe_host(url), units=_ask(fetch_balance(node, asset, holder))
        )


def list_known_assets(chain_id: ChainId) -> list[Asset]:
    """The assets of the presets of a chain, the native currency first."""
    native = Asset(chain_id=chain_id, token=None, symbol=native_symbol(chain_id), decimals=18)
    known = {
        asset.token: asset
        for preset in PRESETS.values()
        for asset in preset.assets
        if asset.chain_id == chain_id
    }
    return [known.pop(None, native), *known.values()]


def _ask(flow: Coroutine[Any, Any, T]) -> T | None:
    """The result of a flow over one node; None where the node gives no usable response."""
    try:
        return run_blocking(flow)
    except (NodeUnreachable, CannotPay):
        return None


def _print_balances(address: Address, balances: Iterable[AssetBalance]) -> None:
    print_text(str(address))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for balance in balances:
        words = (
            describe_network(balance.asset.chain_id),
            balance.amount or "–",
            balance.asset.symbol
            if balance.units is not None
            else f"{balance.asset.symbol}: no usable response from {balance.host}",
        )
        table.add_row(*(Text(plain_line(word)) for word in words))
    open_console().print(table)


def _describe_balance(balance: AssetBalance) -> dict[str, str | None]:
    asset = balance.asset
    return {
        "network": asset.network,
        "token": None if asset.token is None else str(asset.token),
        "symbol": asset.symbol,
        "amount": balance.amount,
        **({} if balance.units is not None else {"detail": f"no usable response from {balance.host}"}),
    }


# ---- Payments.


@caller_command()
def list_payments(
    caller: Caller,
    store: StoreFile = None,
    role: Annotated[
        Role | None,
        typer.Option("--role", help="Of the gateway's ledger: payer, or provider for received ones."),
    ] = None,
    since: Since = None,
    until: Until = None,
    wallet: BooksOf = None,
    is_csv: AsCsv = False,
    output: CsvFile = None,
) -> None:
    check_output(is_csv=is_csv, output=output, as_json=caller.as_json)
    from_time, to_time = read_moment(since), read_moment(until, is_end=True)
    is_remote = any(one is not None for one in (role, since, until, wallet))
    with caller.open(store=store) as client:
        if is_csv:
            rows = client.export_payments(role=role, since=from_time, until=to_time, wallet=wallet)
            write_csv(rows, output)
            return
        if is_remote:
            query = {
                "role": role,
                "from": requests.format_moment("--since", from_time),
                "to": requests.format_moment("--until", to_time),
                "wallet": wallet,
            }
            caller.print(client.fetch_document(requests.list_payments(query)), _print_recorded)
            return
        payments, authorizations = client.payments(), client.authorizations()
    _print_own(payments, authorizations, as_json=caller.as_json)


def _print_own(
    payments: Sequence[Transfer], authorizations: Sequence[SignedAuthorization], *, as_json: bool
) -> None:
    if not is_for_people(as_json=as_json):
        described = [describe_payment(payment) for payment in payments]
        print_json([*described, *(describe_authorization(signed) for signed in authorizations)])
        return
    for payment in payments:
        rest = format_decimal(payment.rest, decimals=payment.asset.decimals)
        _print_payment(payment, str(payment.tx_hash), f"{payment.state}", f"{rest} left")
    for signed in authorizations:
        rail = "channel deposit" if signed.pay_to == DEPOSIT_COLLECTOR else "x402"
        _print_payment(signed, signed.name(), f"{rail} {signed.state}")
    print_foot(f"{len(payments) + len(authorizations)} in all; --json has every field")


def _print_recorded(page: Mapping[str, Any]) -> None:
    """Prints a page of the gateway's ledger: the whole hash, then state, amounts in base units, network and payee."""
    rows = list_objects(page.get("payments"))
    for row in rows:
        words = (
            *(row.get("state"), row.get("reason")),
            *(["credit of a refund"] if row.get("kind") == "refund" else []),
            f"{format_value(row.get('amount'))} units, {format_value(row.get('credit'))} left",
            *(row.get("asset"), f"to {format_value(row.get('payee'))}"),
        )
        print_entry(format_value(row.get("transaction")), words)
    print_foot(f"{len(rows)} shown, the newest; --csv has all of them, with decimal amounts")


def _print_payment(payment: Transfer | SignedAuthorization, name: str, *words: str) -> None:
    """Two lines: the whole hash or nonce; then state, amount, credit, network and payee."""
    payee, network = str(payment.pay_to), describe_network(payment.asset.chain_id)
    print_entry(name, (*words, payment.describe(), network, f"to {payee[:6]}…{payee[-4:]}"))


def describe_payment(payment: Transfer) -> dict[str, str | None]:
    """A payment of the wallet as JSON."""
    decimals = payment.asset.decimals
    return {
        "rail": "tx",
        "transaction": str(payment.tx_hash),
        "network": payment.asset.network,
        "gateway": payment.gateway,
        "payTo": str(payment.pay_to),
        "amount": format_decimal(payment.amount, decimals=decimals),
        "left": format_decimal(payment.rest, decimals=decimals),
        "currency": payment.asset.symbol,
        "feeMax": None if payment.fee_max_wei is None else format_fee(payment.chain_id, payment.fee_max_wei),
        "state": payment.state.value,
    }


def describe_authorization(signed: SignedAuthorization) -> dict[str, str | None]:
    """An authorisation of the wallet as JSON, without its proof."""
    return {
        "rail": "channel" if signed.pay_to == DEPOSIT_COLLECTOR else "x402",
        "authorization": signed.name(),
        "transaction": None if signed.tx_hash is None else str(signed.tx_hash),
        "network": signed.asset.network,
        "gateway": signed.gateway,
        "payTo": str(signed.pay_to),
        "amount": format_decimal(signed.amount, decimals=signed.asset.decimals),
        "currency": signed.asset.symbol,
        "state": signed.state.value,
    }


@caller_command()
def abandon(
    caller: Caller,
    transaction: Annotated[
        str, typer.Argument(metavar="TRANSACTION", help="The hash; or the nonce of an open authorisation.")
    ],
    store: StoreFile = None,
) -> None:
    with caller.open(store=store) as client:
        is_done = client.abandon(transaction)
    if not is_done:
        raise CallerFailure(
            "This wallet has no unresolved payment with that hash or nonce; tollway wallet payments lists them."
        )
    caller.print({"transaction": transaction, "state": "abandoned"})
