// The wallets of the browser: found by EIP-6963, asked by EIP-1193 for the methods of one list and for nothing else.

/** @typedef {{request: (call: {method: string, params?: unknown[]}) => Promise<unknown>}} Provider */
/** @typedef {{id: string, name: string, provider: Provider}} Wallet */

const METHODS = new Set([
  "eth_requestAccounts", "eth_chainId", "wallet_switchEthereumChain", "wallet_addEthereumChain", "personal_sign",
  "eth_signTypedData_v4", "eth_sendTransaction", "eth_getTransactionReceipt", "eth_call",
]);
const SILENCE_MS = 60000;
const DECLINED = 4001;

/** The person said no in the wallet. Nothing was signed and nothing has moved. */
export class Declined extends Error {}

/** The code of a wallet's error; null where it has none.
 * @param {unknown} error */
export function codeOf(error) {
  return error && typeof error === "object" && "code" in error ? Number(error.code) : null;
}

/** Calls `show` with the wallets, and again whenever one more announces itself: some are late, so this listens as long as the page lives.
 * @param {(wallets: Wallet[]) => void} show */
export function watchWallets(show) {
  /** @type {Map<string, Wallet>} */
  const found = new Map();
  addEventListener("eip6963:announceProvider", (event) => {
    const detail = /** @type {CustomEvent} */ (event).detail;
    if (typeof detail?.provider?.request !== "function" || found.has(detail.info?.uuid)) return;
    found.set(detail.info.uuid, { id: String(detail.info.rdns), name: String(detail.info.name), provider: detail.provider });
    show([...found.values()]);
  });
  dispatchEvent(new Event("eip6963:requestProvider"));
  const injected = /** @type {any} */ (window).ethereum;
  if (found.size === 0 && typeof injected?.request === "function") {
    show([{ id: "injected", name: "Browser wallet", provider: injected }]);
  } else if (found.size === 0) show([]);
}

/** Asks a wallet. Throws `Declined` where the person says no, and the wallet's own error otherwise.
 * @param {Wallet} wallet @param {string} method @param {unknown[]} params @param {() => void} [onSilence] called once after a minute without a response */
export async function ask(wallet, method, params = [], onSilence = () => {}) {
  if (!METHODS.has(method)) throw new Error(`this page asks no wallet for ${method}`);
  const timer = setTimeout(onSilence, SILENCE_MS);
  try {
    return await wallet.provider.request({ method, params });
  } catch (error) {
    if (codeOf(error) === DECLINED) throw new Declined();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** The text as hex for `personal_sign`.
 * @param {string} text */
export function toHex(text) {
  return "0x" + Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
