// The page of the sign-in: a wallet signs the message of this gateway, and a plain form carries it.

import { Declined, WalletRefused, ask, fetchMessage, toHex, watchWallets } from "./wallet.js";

/** @typedef {import("./wallet.js").Wallet} Wallet */

const form = /** @type {HTMLFormElement} */ (document.getElementById("signin"));
const status = /** @type {HTMLElement} */ (document.getElementById("signin-status"));
const text = /** @type {HTMLElement} */ (document.getElementById("signin-text"));
const list = /** @type {HTMLElement} */ (document.getElementById("signin-wallets"));
const say = (/** @type {string | undefined} */ sentence) => { status.textContent = sentence ?? ""; };

/** @param {Wallet} wallet */
async function signIn(wallet) {
  const silent = () => say(form.dataset.silent);
  const accounts = /** @type {string[]} */ (await ask(wallet, "eth_requestAccounts", [], silent));
  const chainId = Number(await ask(wallet, "eth_chainId"));
  const message = await fetchMessage(String(form.dataset.nonce), { address: accounts[0], chainId, uri: form.dataset.uri });
  text.textContent = message;
  const signature = String(await ask(wallet, "personal_sign", [toHex(message), accounts[0]], silent));
  /** @type {HTMLInputElement} */ (form.elements.namedItem("message")).value = message;
  /** @type {HTMLInputElement} */ (form.elements.namedItem("signature")).value = signature;
  form.submit();
}

/** @param {unknown} error */
function explain(error) {
  if (error instanceof Declined) return form.dataset.declined;
  if (error instanceof WalletRefused) return form.dataset.otherDomain;
  return error instanceof Error && error.message ? error.message : form.dataset.failed;
}

watchWallets((wallets) => {
  const buttons = wallets.map((wallet) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "main-button";
    button.textContent = wallet.name;
    button.addEventListener("click", async (event) => {
      if (!event.isTrusted) return;
      say("");
      for (const other of buttons) other.disabled = true;
      try {
        await signIn(wallet);
      } catch (error) {
        say(explain(error));
      }
      for (const other of buttons) other.disabled = false;
    });
    return button;
  });
  list.replaceChildren(...buttons);
  say(wallets.length === 0 ? form.dataset.noWallet : "");
});
