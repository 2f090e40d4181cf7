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

/** Calls `show` with the wallets, and again whenever one more announces itself.
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

// ---- Signing in.

/** @typedef {import("tollway:contract").components["schemas"]} Schemas */

/** The gateway refused a request. The message is the detail of its problem. */
export class GatewayRefused extends Error {}

/** The message to sign, from the gateway. A message for another site is shown to no wallet. Throws `GatewayRefused`, `WalletRefused`, or the error of `fetch`.
 * @param {string} path @param {object} body @returns {Promise<string>} */
export async function fetchMessage(path, body) {
  const { domain, message } = /** @type {Schemas["Nonce"]} */ (await fetchJson("POST", path, { body }));
  if (domain !== location.host) throw new WalletRefused("otherDomain");
  return String(message);
}

/** The JSON of a response without cookies; null for none. @param {string} method @param {string} path @param {{ body?: object, token?: string }} given @returns {Promise<any>} */
export async function fetchJson(method, path, { body, token }) {
  const response = await fetch(path, {
    method,
    credentials: "omit",
    cache: "no-store",
    headers: { ...(body && { "content-type": "application/json" }), ...(token && { authorization: `Bearer ${token}` }) },
    body: body && JSON.stringify(body),
  });
  if (!response.ok) throw new GatewayRefused(/** @type {Partial<Schemas["Problem"]> | null} */ (await response.json().catch(() => null))?.detail);
  return response.status === 204 ? null : await response.json();
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

// ---- Paying.

const ANNOUNCE_MS = 150;
const UNKNOWN_CHAIN = 4902;

/** @typedef {{ chainId: number, name: string, network: object | null }} Chain */

/** A request that the wallet did not grant, or that no wallet gets. `kind`: declined, wrongChain, unknownChain, otherDomain or failed. */
export class WalletRefused extends Error {
  /** @param {"declined" | "wrongChain" | "unknownChain" | "otherDomain" | "failed"} kind @param {string} [text] */
  constructor(kind, text = "") {
    super(text);
    this.kind = kind;
  }
}

/** @type {Wallet[] | null} */
let known = null;

/** The wallets of this browser. The first call waits a moment for them. @returns {Promise<Wallet[]>} */
export async function findWallets() {
  if (known === null) {
    known = [];
    watchWallets((found) => {
      known = found;
    });
  }
  dispatchEvent(new Event("eip6963:requestProvider"));
  if (!known.length) await new Promise((resolve) => setTimeout(resolve, ANNOUNCE_MS));
  return known;
}

/**
 * `ask`, with every failure as a `WalletRefused`.
 * @param {Wallet} wallet @param {string} method @param {unknown[]} params @param {() => void} [onSilence] @returns {Promise<any>}
 */
async function grant(wallet, method, params, onSilence) {
  try {
    return await ask(wallet, method, params, onSilence);
  } catch (error) {
    const inner = /** @type {any} */ (error)?.data?.originalError;
    if (error instanceof Declined || codeOf(inner) === DECLINED) throw new WalletRefused("declined");
    if (codeOf(error) === UNKNOWN_CHAIN || codeOf(inner) === UNKNOWN_CHAIN) throw new WalletRefused("unknownChain");
    throw new WalletRefused("failed", String(/** @type {any} */ (error)?.message ?? error).slice(0, 200));
  }
}

/** The account in use. @param {Wallet} wallet @param {() => void} onSilence @returns {Promise<string>} */
export async function connect(wallet, onSilence) {
  const accounts = await grant(wallet, "eth_requestAccounts", [], onSilence);
  const account = Array.isArray(accounts) ? accounts[0] : null;
  if (typeof account !== "string" || !/^0x[0-9a-fA-F]{40}$/.test(account)) throw new WalletRefused("failed", "no account");
  return account;
}

/**
 * Moves the wallet to a chain, adding it where the wallet does not know it. Adding does not promise switching, so the chain is read once more: a signature for
 * another chain can hang without a word.
 * @param {Wallet} wallet @param {Chain} chain @param {() => void} onSilence
 */
export async function moveToChain(wallet, chain, onSilence) {
  if ((await readChain(wallet)) === chain.chainId) return;
  const target = [{ chainId: "0x" + chain.chainId.toString(16) }];
  try {
    await grant(wallet, "wallet_switchEthereumChain", target, onSilence);
  } catch (error) {
    if (!(error instanceof WalletRefused) || error.kind !== "unknownChain" || !chain.network) throw error;
    await grant(wallet, "wallet_addEthereumChain", [chain.network], onSilence);
    if ((await readChain(wallet)) !== chain.chainId) await grant(wallet, "wallet_switchEthereumChain", target, onSilence);
  }
  await requireChain(wallet, chain);
}

/** The wallet must be on the chain at the moment of signing. @param {Wallet} wallet @param {Chain} chain */
export async function requireChain(wallet, chain) {
  if ((await readChain(wallet)) !== chain.chainId) throw new WalletRefused("wrongChain");
}

/** @param {Wallet} wallet @returns {Promise<number>} */
export async function readChain(wallet) {
  return Number(await grant(wallet, "eth_chainId", []));
}

/** The balance of a token in base units; null where the wallet cannot read it. @param {Wallet} wallet @param {string} token @param {string} owner */
export async function readBalance(wallet, token, owner) {
  try {
    const data = "0x70a08231" + owner.slice(2).toLowerCase().padStart(64, "0");
    const answer = await grant(wallet, "eth_call", [{ to: token, data }, "latest"]);
    return /^0x[0-9a-fA-F]{1,64}$/.test(answer) ? BigInt(answer) : null;
  } catch (error) {
    if (error instanceof WalletRefused && error.kind === "declined") throw error;
    return null;
  }
}

// ---- Signing.

const DOMAIN = [
  { name: "name", type: "string" },
  { name: "version", type: "string" },
  { name: "chainId", type: "uint256" },
];
/** Of an authorisation (EIP-3009). */
export const TRANSFER_TYPES = {
  EIP712Domain: [...DOMAIN, { name: "verifyingContract", type: "address" }],
  TransferWithAuthorization: [
    { name: "from", type: "address" },
    { name: "to", type: "address" },
    { name: "value", type: "uint256" },
    { name: "validAfter", type: "uint256" },
    { name: "validBefore", type: "uint256" },
    { name: "nonce", type: "bytes32" },
  ],
};
/** Of the signature that binds a transaction to one call. */
export const CALL_TYPES = {
  EIP712Domain: DOMAIN,
  PaidCall: [
    { name: "gateway", type: "string" },
    { name: "apiId", type: "string" },
    { name: "method", type: "string" },
    { name: "target", type: "string" },
    { name: "bodyHash", type: "bytes32" },
    { name: "transaction", type: "bytes32" },
    { name: "validUntil", type: "uint256" },
    { name: "nonce", type: "bytes32" },
  ],
};

/** Signs EIP-712 data. @param {Wallet} wallet @param {string} account @param {object} typed @param {() => void} onSilence @returns {Promise<string>} */
export async function signTyped(wallet, account, typed, onSilence) {
  return toSignature(await grant(wallet, "eth_signTypedData_v4", [account, JSON.stringify(typed)], onSilence));
}

/** Signs a text. @param {Wallet} wallet @param {string} account @param {string} text @param {() => void} onSilence @returns {Promise<string>} */
export async function signMessage(wallet, account, text, onSilence) {
  return toSignature(await grant(wallet, "personal_sign", [toHex(text), account], onSilence));
}

/** @param {unknown} value */
function toSignature(value) {
  if (typeof value !== "string" || !/^0x(?:[0-9a-fA-F]{2})+$/.test(value)) throw new WalletRefused("failed", "no signature");
  return value;
}

/**
 * Sends one transfer: of a token, or of the native currency where `token` is null. Returns the transaction hash.
 * @param {Wallet} wallet @param {{ from: string, chainId: number, token: string | null, to: string, amount: bigint }} transfer @param {() => void} onSilence
 * @returns {Promise<string>}
 */
export async function sendTransfer(wallet, { from, chainId, token, to, amount }, onSilence) {
  const data = "0xa9059cbb" + to.slice(2).toLowerCase().padStart(64, "0") + amount.toString(16).padStart(64, "0");
  const what = token ? { to: token, value: "0x0", data } : { to, value: "0x" + amount.toString(16) };
  const transaction = { from, chainId: "0x" + chainId.toString(16), ...what };
  const hash = await grant(wallet, "eth_sendTransaction", [transaction], onSilence);
  if (typeof hash !== "string" || !/^0x[0-9a-fA-F]{64}$/.test(hash)) throw new WalletRefused("failed", "no transaction hash");
  return hash;
}

/** Whether a transaction is mined: null while it is not, else whether it succeeded. @param {Wallet} wallet @param {string} hash */
export async function readReceipt(wallet, hash) {
  const receipt = await grant(wallet, "eth_getTransactionReceipt", [hash]);
  return receipt === null || receipt === undefined ? null : receipt.status === "0x1";
}

/** 32 random bytes: of an authorisation, or of a bound signature. */
export const makeNonce = () => "0x" + [...crypto.getRandomValues(new Uint8Array(32))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
