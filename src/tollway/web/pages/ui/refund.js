// The form of a ticket that refunds its call: a wallet of the provider sends the price to the payer, and the form carries the hash of the transfer.

import { WalletRefused, connect, moveToChain, readReceipt, sendTransfer, watchWallets } from "./wallet.js";

/** @typedef {import("./wallet.js").Wallet} Wallet */

const POLL_MS = 2000;
const POLLS_MAX = 150;

const form = /** @type {HTMLFormElement | null} */ (document.getElementById("refund"));

/** @param {HTMLFormElement} target */
function open(target) {
  const status = /** @type {HTMLElement} */ (document.getElementById("refund-status"));
  const list = /** @type {HTMLElement} */ (document.getElementById("refund-wallets"));
  const field = /** @type {HTMLInputElement} */ (target.elements.namedItem("transaction"));
  const transfer = JSON.parse(String(target.dataset.transfer));
  const say = (/** @type {string | undefined} */ sentence) => { status.textContent = sentence ?? ""; };
  const onSilence = () => say(target.dataset.silent);

  /** @param {Wallet} wallet */
  async function send(wallet) {
    const from = await connect(wallet, onSilence);
    if (!transfer.senders.includes(from.toLowerCase())) throw new WalletRefused("failed", target.dataset.sender);
    await moveToChain(wallet, transfer, onSilence);
    field.value = await sendTransfer(wallet, { from, chainId: transfer.chainId, token: transfer.token, to: transfer.to, amount: BigInt(transfer.amount) }, onSilence);
    say(target.dataset.waiting);
    for (let poll = 0; poll < POLLS_MAX && (await readReceipt(wallet, field.value)) === null; poll += 1) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    target.submit();
  }

  watchWallets((wallets) => {
    const buttons = wallets.map((wallet) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = wallet.name;
      button.addEventListener("click", async (event) => {
        // A transfer that is sent stands in the field: a second one is never sent from this page.
        if (!event.isTrusted || field.value) return;
        for (const other of buttons) other.disabled = true;
        try {
          await send(wallet);
        } catch (error) {
          say(error instanceof WalletRefused && error.kind === "declined" ? target.dataset.declined : String(/** @type {any} */ (error)?.message || target.dataset.failed));
          for (const other of buttons) other.disabled = Boolean(field.value);
        }
      });
      return button;
    });
    list.replaceChildren(...buttons);
  });
}

if (form !== null) open(form);
