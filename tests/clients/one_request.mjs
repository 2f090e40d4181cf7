// What every client script here shares: the request to make, and the one line of JSON that tells what came of it.
// Usage: PAYER_KEY=0x... node <script>.mjs URL [METHOD [BODY]]; further headers as JSON in REQUEST_HEADERS.
// With a contract wallet in UNDEPLOYED_WALLET (JSON: address, factory, calldata) the key is its owner's, and signatures are
// wrapped as viem's smart accounts wrap theirs before their deployment (ERC-6492).
import { serializeErc6492Signature } from "viem";
import { privateKeyToAccount, toAccount } from "viem/accounts";

const [url, method = "GET", body] = process.argv.slice(2);
if (!url || !process.env.PAYER_KEY) {
  console.error("usage: PAYER_KEY=0x... node <script>.mjs URL [METHOD [BODY]]");
  process.exit(2);
}

const owner = privateKeyToAccount(process.env.PAYER_KEY);
const wallet = process.env.UNDEPLOYED_WALLET && JSON.parse(process.env.UNDEPLOYED_WALLET);
export const payer = wallet
  ? toAccount({
      ...owner,
      address: wallet.address,
      signTypedData: async (typed) =>
        serializeErc6492Signature({
          address: wallet.factory,
          data: wallet.calldata,
          signature: await owner.signTypedData(typed),
        }),
    })
  : owner;
export const target = url;
export const init = {
  method,
  headers: {
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    ...JSON.parse(process.env.REQUEST_HEADERS ?? "{}"),
  },
  ...(body === undefined ? {} : { body }),
};

const say = (told) =>
  console.log(JSON.stringify({ status: null, headers: {}, body: "", receipt: null, error: null, ...told }));

/** Runs `send` (it gives a fetch Response), decodes the receipt with the client's own function, prints one line. */
export async function tell(send, decodeReceipt) {
  let told = {};
  try {
    const response = await send();
    told = {
      status: response.status,
      headers: Object.fromEntries(response.headers.entries()),
      body: await response.text(),
    };
    told.receipt = (await decodeReceipt(response)) ?? null;
  } catch (error) {
    told.error = `${error?.name}: ${error?.message}`;
  }
  say(told);
}
