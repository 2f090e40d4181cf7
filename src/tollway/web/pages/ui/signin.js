// The page of the sign-in: a wallet signs the message of this gateway, and a plain form carries it.

import { Declined, ask, toHex, watchWallets } from "./wallet.js";

/** @typedef {import("./wallet.js").Wallet} Wallet */
/** @typedef {import("tollway:contract").components["schemas"]} Schemas */

const form = /** @type {HTMLFormElement} */ (document.getElementById("signin"));
const status = /** @type {HTMLElement} */ (document.getElementById("signin-status"));
const text = /** @type {HTMLElement} */ (document.getElementById("signin-text"));
const list = /** @type {HTMLElement} */ (document.getElementById("signin-wallets"));
const say = (/** @type {string | undefined} */ sentence) => { status.textContent = sentence ?? ""; };

/** The message to sign, from the gateway. A message for another site is shown to no wallet.
 * @param {string} address @param {number} chainId */
async function fetchMessage(address, chainId) {
  const response = await fetch(String(form.dataset.nonce), {
    method: "POST",
    credentials: "omit",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ address, chainId, uri: form.dataset.uri }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(/** @type {Partial<Schemas["Problem"]>} */ (answer).detail ?? form.dataset.failed);
  const { domain, message } = /** @type {Schemas["Nonce"]} */ (answer);
  if (domain !== location.host) throw new Error(form.dataset.otherDomain);
  return String(message);
}

/** @param {Wallet} wallet */
async function signIn(wallet) {
  const silent = () => say(form.dataset.silent);
  const accounts = /** @type {string[]} */ (await ask(wallet, "eth_requestAccounts", [], silent));
  const chainId = Number(await ask(wallet, "eth_chainId"));
  const message = await fetchMessage(accounts[0], chainId);
  text.textContent = message;
  const signature = String(await ask(wallet, "personal_sign", [toHex(message), accounts[0]], silent));
  /** @type {HTMLInputElement} */ (form.elements.namedItem("message")).value = message;
  /** @type {HTMLInputElement} */ (form.elements.namedItem("signature")).value = signature;
  form.submit();
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
        say(error instanceof Declined ? form.dataset.declined : error instanceof Error ? error.message : form.dataset.failed);
      }
      for (const other of buttons) other.disabled = false;
    });
    return button;
  });
  list.replaceChildren(...buttons);
  say(wallets.length === 0 ? form.dataset.noWallet : "");
});
