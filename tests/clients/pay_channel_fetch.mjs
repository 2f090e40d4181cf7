// @x402/fetch with the scheme `batch-settlement`, as its documentation registers it. One process makes all calls of a plan.
// Usage: PAYER_KEY=0x... [RPC_URL=http://...] node pay_channel_fetch.mjs PLAN
// PLAN: JSON, a list of steps: {url, method, headers, body, times, isParallel, isRestarted, losesReceipt, isRefund, salt}. Prints one line of JSON: what each call got.
// With RPC_URL the client reads the chain, and so can heal its state.
import { BatchSettlementEvmScheme } from "@x402/evm/batch-settlement/client";
import { toClientEvmSigner } from "@x402/evm";
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from "@x402/fetch";
import { createPublicClient, http } from "viem";
import { privateKeyToAccount } from "viem/accounts";
import { baseSepolia } from "viem/chains";

const plan = JSON.parse(process.argv[2]);
const account = privateKeyToAccount(process.env.PAYER_KEY);
const rpcUrl = process.env.RPC_URL;
const signer = rpcUrl
  ? toClientEvmSigner(account, createPublicClient({ chain: baseSepolia, transport: http(rpcUrl) }))
  : account;

let losesReceipt = false;
const seen = [];
const watched = async (input, init) => {
  const sent = input instanceof Request ? input.headers : new Headers(init?.headers);
  const isPaid = sent.has("PAYMENT-SIGNATURE");
  const response = await fetch(input, init);
  seen.push({ status: response.status, isPaid });
  if (!losesReceipt || !isPaid) return response;
  const headers = new Headers(response.headers);
  headers.delete("PAYMENT-RESPONSE");
  return new Response(await response.arrayBuffer(), { status: response.status, headers });
};

let scheme, fetchWithPayment;
function restart(salt) {
  scheme = salt ? new BatchSettlementEvmScheme(signer, { salt }) : new BatchSettlementEvmScheme(signer);
  const client = new x402Client();
  client.register("eip155:84532", scheme);
  fetchWithPayment = wrapFetchWithPayment(watched, client);
}

async function call({ url, method = "GET", headers = {}, body }) {
  const first = seen.length;
  try {
    const response = await fetchWithPayment(url, { method, headers, body });
    const shown = response.headers.get("PAYMENT-RESPONSE");
    const text = await response.text();
    return {
      status: response.status,
      receipt: shown ? decodePaymentResponseHeader(shown) : null,
      body: text.slice(0, 2000),
      seen: seen.slice(first).map((one) => one.status),
      error: null,
    };
  } catch (error) {
    return { status: null, receipt: null, body: "", seen: seen.slice(first).map((one) => one.status), error: String(error?.message ?? error) };
  }
}

restart();
const told = [];
for (const step of plan) {
  if (step.isRestarted) restart(step.salt);
  losesReceipt = Boolean(step.losesReceipt);
  if (step.isRefund) {
    try {
      told.push({ refund: await scheme.refund(step.url, step.amount ? { amount: step.amount } : undefined), error: null });
    } catch (error) {
      told.push({ refund: null, error: String(error?.message ?? error) });
    }
    continue;
  }
  const times = step.times ?? 1;
  if (step.isParallel) {
    told.push(...(await Promise.all(Array.from({ length: times }, () => call(step)))));
  } else {
    for (let number = 0; number < times; number += 1) told.push(await call(step));
  }
}
console.log(JSON.stringify({ told }));
