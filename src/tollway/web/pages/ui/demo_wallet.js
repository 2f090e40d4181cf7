// The wallet of the demo, announced by EIP-6963 as any wallet is. The process of the demo has the key and signs; this module has the session of its tab.
//
// Only the gateway of a demo serves this file. A link of the demo has a token in its fragment: it opens the wallet once and leaves the address bar at once.

import { fetchJson } from "./wallet.js";

const PATH = "/my/demo-wallet";
const PLACE = "tollway demo wallet";
const TOKEN = /^#demo-wallet=([A-Za-z0-9_-]{43})$/;
const UNKNOWN_CHAIN = 4902;
const INFO = Object.freeze({ uuid: crypto.randomUUID(), name: "Demo wallet", icon: "data:,", rdns: "demo.tollway" });

/** @typedef {{ session: string, address: string, chainId: number }} Session */

/** @returns {Session | null} */
const readSession = () => JSON.parse(sessionStorage.getItem(PLACE) ?? "null");

/** Tells the reader which wallet pays, or why none does. @param {string} key @param {string} [given] */
function show(key, given = "") {
  const place = document.querySelector("[data-demo-wallet]");
  if (!(place instanceof HTMLElement)) return;
  place.textContent = (place.dataset[key] ?? "").replace("{0}", given);
  place.hidden = false;
}

/** @param {{ method: string, params?: any[] }} call @returns {Promise<unknown>} */
async function request({ method, params = [] }) {
  const own = readSession();
  if (!own) throw new Error("the demo's wallet is closed");
  if (method === "eth_requestAccounts") return [own.address];
  if (method === "eth_chainId") return "0x" + own.chainId.toString(16);
  if (method === "wallet_switchEthereumChain" && Number(params[0]?.chainId) !== own.chainId) throw Object.assign(new Error("unknown chain"), { code: UNKNOWN_CHAIN });
  if (method.startsWith("wallet_")) return null;
  return (await fetchJson("POST", PATH, { body: { session: own.session, method, params } })).result;
}

function announce() {
  const own = readSession();
  if (!own) return;
  show("ready", own.address);
  dispatchEvent(new CustomEvent("eip6963:announceProvider", { detail: Object.freeze({ info: INFO, provider: Object.freeze({ request }) }) }));
}

/** Opens the wallet by the token of the address, where it has one. */
async function open() {
  const token = TOKEN.exec(location.hash)?.[1];
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    sessionStorage.setItem(PLACE, JSON.stringify(await fetchJson("POST", `${PATH}/session`, { body: { token } })));
  } catch {
    if (!readSession()) show("used");
  }
  announce();
}

addEventListener("eip6963:requestProvider", announce);
addEventListener("hashchange", () => void open());
announce();
await open();
