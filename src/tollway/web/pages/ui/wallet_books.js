// What the gateway's ledger knows of a wallet, for the panel that pays: the state of a transaction, and credit. Only the wallet itself may ask, so it signs in first: a message that
// moves no money. Loaded when it is needed.

import { fetchJson, fetchMessage, signMessage } from "./wallet.js";

/** @typedef {import("./wallet.js").Wallet} Wallet */
/** @typedef {{ wallet: Wallet, address: string, chainId: number, onSilence: () => void }} Reader */
/** @typedef {"mined" | "pending" | "unknown" | "failed"} TransactionState */

/**
 * What became of each transaction. `unknown`: the nodes of the gateway do not have it, so it was replaced, dropped, or goes a way that they do not see.
 * @param {Reader} reader @param {string[]} hashes @returns {Promise<TransactionState[]>}
 */
export async function readTransactionStates(reader, hashes) {
  return (await read(reader, hashes.map((hash) => `/api/v2/payments/${hash}`))).map(stateOf);
}

/** @param {any} payment @returns {TransactionState} */
function stateOf(payment) {
  if (payment.state === "pending") return "pending";
  if (payment.state === "refused") return "failed";
  return payment.state === "unseen" && payment.reason === "unknown_transaction" ? "unknown" : "mined";
}

/**
 * The transaction of which most is left for the payee and the token of a way; null where nothing is. The newest hundred payments are looked at.
 * @param {Reader} reader @param {{ chainId: number, token: string | null, payTo: string }} way @returns {Promise<{ transaction: string, units: bigint } | null>}
 */
export async function findCredit(reader, { chainId, token, payTo }) {
  const asset = `eip155:${chainId}/${token ? `erc20:${token}` : "slip44:60"}`.toLowerCase();
  const [{ payments }] = await read(reader, ["/api/v2/payments?limit=100"]);
  if (!Array.isArray(payments)) throw new TypeError("the answer has no payments");
  let most = null;
  for (const one of payments) {
    if (String(one.asset).toLowerCase() !== asset || String(one.payee).toLowerCase() !== payTo.toLowerCase()) continue;
    const units = /^[0-9]{1,78}$/.test(one.credit) && /^0x[0-9a-f]{64}$/.test(one.transaction) ? BigInt(one.credit) : 0n;
    if (units > (most?.units ?? 0n)) most = { transaction: String(one.transaction), units };
  }
  return most;
}

/** Reads paths in a session of its own. @param {Reader} reader @param {string[]} paths @returns {Promise<any[]>} */
async function read(reader, paths) {
  const { wallet, address, chainId, onSilence } = reader;
  const message = await fetchMessage("/api/v2/auth/nonce", { address, chainId });
  const signature = await signMessage(wallet, address, message, onSilence);
  const { accessToken } = await fetchJson("POST", "/api/v2/auth/session", { body: { message, signature } });
  try {
    return await Promise.all(paths.map((path) => fetchJson("GET", path, { token: accessToken })));
  } finally {
    void fetchJson("DELETE", "/api/v2/auth/session", { token: accessToken }).catch(() => {});
  }
}
