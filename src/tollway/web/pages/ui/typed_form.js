// Forms that a wallet signs: the page has the typed data (EIP-712), a wallet of the reader signs it, and the form carries the signature.

import { WalletRefused, connect, signTyped, watchWallets } from "./wallet.js";

/** @typedef {import("./wallet.js").Wallet} Wallet */

/** @param {HTMLFormElement} form */
function open(form) {
  const list = /** @type {HTMLElement} */ (form.querySelector("[data-wallets]"));
  const status = /** @type {HTMLElement} */ (form.querySelector("[role=status]"));
  const { typed = "", signer = "", label = "" } = form.dataset;
  const say = (/** @type {string | undefined} */ sentence) => { status.textContent = sentence ?? ""; };
  const onSilence = () => say(form.dataset.silent);

  /** @param {Wallet} wallet */
  async function sign(wallet) {
    const account = await connect(wallet, onSilence);
    if (account.toLowerCase() !== signer.toLowerCase()) throw new WalletRefused("failed", form.dataset.otherAccount?.replace("{0}", signer));
    const signature = await signTyped(wallet, account, JSON.parse(typed), onSilence);
    /** @type {HTMLInputElement} */ (form.elements.namedItem("signature")).value = signature;
    form.submit();
  }

  watchWallets((wallets) => {
    const buttons = wallets.map((wallet) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "main-button";
      button.textContent = label.replace("{0}", wallet.name);
      button.addEventListener("click", async (event) => {
        if (!event.isTrusted) return;
        say("");
        for (const other of buttons) other.disabled = true;
        try {
          await sign(wallet);
        } catch (error) {
          const isDeclined = error instanceof WalletRefused && error.kind === "declined";
          say(isDeclined ? form.dataset.declined : String(/** @type {any} */ (error)?.message || form.dataset.failed));
          for (const other of buttons) other.disabled = false;
        }
      });
      return button;
    });
    list.replaceChildren(...buttons);
    say(wallets.length === 0 ? form.dataset.noWallet : "");
  });
}

for (const form of document.querySelectorAll("form[data-typed]")) open(/** @type {HTMLFormElement} */ (form));
