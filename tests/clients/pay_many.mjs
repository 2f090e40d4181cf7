// Published clients in one process, unmodified: two pay a URL over HTTP, two pay a tool of MCP in both of its revisions.
// Usage: PAYER_KEY=0x... node pay_many.mjs URL_OF_A_CALL URL_OF_MCP TOOL ARGUMENTS_AS_JSON
import { createPaymentHandler } from "@faremeter/payment-evm/exact";
import { wrap } from "@faremeter/fetch";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { withX402Client } from "agents/x402";
import { evm } from "mppx/client";
import { assets } from "mppx/evm";
import { McpClient } from "mppx/mcp/client";
import { createThirdwebClient, defineChain } from "thirdweb";
import { viemAdapter } from "thirdweb/adapters/viem";
import { wrapFetchWithPayment } from "thirdweb/x402";
import { createWalletClient, http } from "viem";
import { privateKeyToAccount } from "viem/accounts";
import { baseSepolia } from "viem/chains";

const [url, mcpUrl, tool, given] = process.argv.slice(2);
const payer = privateKeyToAccount(process.env.PAYER_KEY);

const payByThirdweb = () => {
  const client = createThirdwebClient({ clientId: "tests" });
  const account = viemAdapter.walletClient.fromViem({
    walletClient: createWalletClient({ account: payer, chain: baseSepolia, transport: http("http://127.0.0.1:1") }),
  });
  const wallet = { getAccount: () => account, getChain: () => defineChain(baseSepolia.id) };
  // Without this name of its own service, the client looks up the ABI of the token there.
  const paymentRequirementsSelector = (offered) => {
    const [first] = offered;
    first.extra = { ...first.extra, primaryType: "TransferWithAuthorization" };
    return first;
  };
  return wrapFetchWithPayment(fetch, client, wallet, { paymentRequirementsSelector })(url);
};

const payByFaremeter = () => {
  const wallet = { chain: { id: baseSepolia.id, name: "Base Sepolia" }, address: payer.address, account: payer };
  return wrap(fetch, { handlers: [createPaymentHandler(wallet)], retryCount: 0 })(url);
};

const overHttp = async (pay) => {
  const response = await pay();
  return { status: response.status, state: response.headers.get("Tollway-Payment-State"), body: await response.json() };
};

const overMcp = async (mode, call) => {
  const client = new Client({ name: "an-agent", version: "1" }, { versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(new URL(mcpUrl)));
  const result = await call(client, { name: tool, arguments: JSON.parse(given) });
  await client.close();
  return { isError: result.isError ?? false, content: result.structuredContent, meta: result._meta ?? {} };
};

const payByAgents = (client, call) =>
  withX402Client(client, { account: payer, network: "base-sepolia" }).callTool(null, call);

const payByMppx = (client, call) => {
  const methods = [evm.charge({ account: payer, networks: [84532], currencies: [assets.baseSepolia.USDC] })];
  return McpClient.wrap(client, { methods }).callTool(call);
};

const settle = async (run) => {
  try {
    return { error: null, ...(await run()) };
  } catch (error) {
    return { error: `${error?.name}: ${error?.message}` };
  }
};

const modern = { pin: "2026-07-28" };
const runs = {
  thirdweb: () => overHttp(payByThirdweb),
  "@faremeter/fetch": () => overHttp(payByFaremeter),
  "agents 2025-11-25": () => overMcp("legacy", payByAgents),
  "agents 2026-07-28": () => overMcp(modern, payByAgents),
  "mppx 2025-11-25": () => overMcp("legacy", payByMppx),
  "mppx 2026-07-28": () => overMcp(modern, payByMppx),
};
const told = await Promise.all(Object.values(runs).map(settle));
console.log(JSON.stringify(Object.fromEntries(Object.keys(runs).map((name, at) => [name, told[at]]))));
process.exit(0);
