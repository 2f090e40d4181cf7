// The official TypeScript client of MCP, as an agent that knows a gateway's URL and nothing else: finds an API, reads how it
// is called, asks without a payment, pays what the terms say, calls again.
// Usage: PAYER_KEY=0x... RPC=http://... node call_mcp.mjs URL legacy|2026-07-28 x402|tx WORDS PATH ARGUMENTS_AS_JSON
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { x402Client } from "@x402/core/client";
import { registerExactEvmScheme } from "@x402/evm/exact/client";
import { createPublicClient, createWalletClient, defineChain, erc20Abi, http, toHex } from "viem";
import { privateKeyToAccount } from "viem/accounts";

const [url, revision, rail, query, path, given] = process.argv.slice(2);
const payer = privateKeyToAccount(process.env.PAYER_KEY);
const mode = revision === "legacy" ? "legacy" : { pin: revision };
const client = new Client({ name: "an-agent", version: "1" }, { versionNegotiation: { mode } });

/** `PaidCall(string gateway,...)` as viem takes it. */
const readType = (text) => {
  const [, name, fields] = /^(\w+)\((.*)\)$/.exec(text);
  return { [name]: fields.split(",").map((field) => ({ type: field.split(" ")[0], name: field.split(" ")[1] })) };
};

const payWithX402 = async (terms) => {
  const signer = new x402Client();
  registerExactEvmScheme(signer, { signer: payer });
  return { _meta: { "x402/payment": await signer.createPaymentPayload(terms) } };
};

const payByTransaction = async (terms) => {
  const option = terms.payment.options.find((one) => one.rail === "tx" && one.token);
  const chain = defineChain({
    id: option.chainId,
    name: "test",
    nativeCurrency: { name: "Ether", symbol: "ETH", decimals: 18 },
    rpcUrls: { default: { http: [process.env.RPC] } },
  });
  const wallet = createWalletClient({ account: payer, chain, transport: http() });
  const hash = await wallet.writeContract({
    address: option.token,
    abi: erc20Abi,
    functionName: "transfer",
    args: [option.payTo, BigInt(option.amount)],
  });
  await createPublicClient({ chain, transport: http() }).waitForTransactionReceipt({ hash, pollingInterval: 50 });
  const { domain, type, message } = terms.withoutX402.eip712;
  const validUntil = Math.floor(Date.now() / 1000) + 120;
  const nonce = toHex(crypto.getRandomValues(new Uint8Array(32)));
  const types = readType(type);
  const signature = await payer.signTypedData({
    domain: { ...domain, chainId: option.chainId },
    types,
    primaryType: Object.keys(types)[0],
    message: { ...message, transaction: hash, validUntil, nonce },
  });
  return {
    more: {
      paymentTx: hash,
      paymentSignature: signature,
      paymentSignatureParams: `v=1;validUntil=${validUntil};nonce=${nonce}`,
    },
  };
};

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const told = { revision: client.getNegotiatedProtocolVersion?.() ?? null };
told.tools = (await client.listTools()).tools.map((tool) => tool.name);
told.found = (await client.callTool({ name: "search_resources", arguments: { query } })).structuredContent;
const apiId = told.found.resources[0].apiId;
told.api = (await client.callTool({ name: "get_api", arguments: { apiId } })).structuredContent;
const { toolName } = told.api.tools.find((tool) => tool.path === path);
const call = { toolName, arguments: JSON.parse(given) };
const asked = await client.callTool({ name: "proxy_tool_call", arguments: call });
told.terms = { isError: asked.isError, ...asked.structuredContent };
const { _meta, more } = await (rail === "x402" ? payWithX402 : payByTransaction)(asked.structuredContent);
const paid = await client.callTool({
  name: "proxy_tool_call",
  arguments: { ...call, ...more },
  ...(_meta ? { _meta } : {}),
});
told.answer = { isError: paid.isError ?? false, ...paid.structuredContent };
told.text = paid.content[0].text;
told.receipt = paid._meta?.["x402/payment-response"] ?? null;
await client.close();
console.log(JSON.stringify(told));
