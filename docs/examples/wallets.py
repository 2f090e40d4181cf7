"""Uses several wallets: a key in a file, each client with its own wallet and its own record of payments."""

import os
import tempfile
from pathlib import Path

from tollway.client import CannotPay, TollwayClient, Wallet, create_key_file

API_ID = os.environ["API_ID"]
CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")


def open_client(wallet: Wallet, folder: str) -> TollwayClient:
    return TollwayClient(
        os.environ["TOLLWAY_GATEWAY"],
        wallet=wallet,
        rpc_urls={int(CHAIN): NODE},
        store_path=Path(folder) / f"{wallet.address}.sqlite3",
    )


with tempfile.TemporaryDirectory() as folder:
    key_file = Path(folder) / "second.key"
    print("new wallet:", create_key_file(key_file))
    for wallet in (Wallet.from_environment(os.environ), Wallet.from_file(key_file)):
        with open_client(wallet, folder) as client:
            try:
                print("paid:", client.call(API_ID, "/quote/ETH").payment.state, "by", client.address)
            except CannotPay as failure:
                print("no money:", failure.detail)
