// A receiver of webhooks that verifies RFC 9421: npm install http-message-signatures
// GATEWAY=https://gateway.example.com URL=https://owner.example/hooks WALLET=0x… PORT=8090 node webhook_signed.mjs
// URL is the URL that you registered: the signature covers it, whatever a proxy has made of the request. WALLET is the wallet that
// registered it: any other wallet can register this URL too, and the gateway signs that wallet's messages as well.
import { createHash, createPublicKey } from "node:crypto";
import { createServer } from "node:http";
import { createVerifier, httpbis } from "http-message-signatures";

const { GATEWAY, URL: REGISTERED, WALLET, PORT } = process.env;
const LENGTH_MAX = 65_536;
const seen = new Set(); // use a table with a unique column: it must survive a restart
let keys = new Map();

// A key that is not known is looked up once more: keys change.
async function keyLookup({ keyid, tag }) {
  if (tag !== "tollway-webhook") return undefined;
  if (!keys.has(keyid)) {
    const directory = await fetch(`${GATEWAY}/.well-known/http-message-signatures-directory`);
    const published = (await directory.json()).keys;
    keys = new Map(published.map((jwk) => [jwk.kid, createPublicKey({ key: jwk, format: "jwk" })]));
  }
  const key = keys.get(keyid);
  return key && { id: keyid, algs: ["ed25519"], verify: createVerifier(key, "ed25519") };
}

const config = {
  keyLookup,
  requiredParams: ["created", "expires", "nonce", "keyid", "alg", "tag"],
  requiredFields: ["@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp"],
  tolerance: 10,
};

async function isFromGateway(headers, body) {
  const digest = createHash("sha256").update(body).digest("base64");
  if (headers["content-digest"] !== `sha-256=:${digest}:`) return false;
  try {
    return (await httpbis.verifyMessage(config, { method: "POST", url: REGISTERED, headers })) === true;
  } catch {
    return false;
  }
}

// Called once for each event, however often it arrives.
function handleEvent(id, event) {
  if (seen.has(id)) return;
  seen.add(id);
  console.log(JSON.stringify({ id, ...event }));
}

function respond(response, status, content) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(content));
}

async function readBody(request) {
  let body = Buffer.alloc(0);
  for await (const chunk of request) {
    body = Buffer.concat([body, chunk]);
    if (body.length > LENGTH_MAX) throw new Error("too long");
  }
  return body;
}

createServer(async (request, response) => {
  const body = await readBody(request).catch(() => undefined);
  if (!body || !(await isFromGateway(request.headers, body))) {
    return respond(response, 401, { error: "not signed by the gateway" });
  }
  const message = JSON.parse(body);
  if (message.data.wallet.toLowerCase() !== WALLET.toLowerCase()) {
    return respond(response, 404, { error: "not a webhook of this receiver's wallet" });
  }
  if (message.type === "webhook.challenge") {
    return respond(response, 200, { challenge: message.data.challenge, wallet: WALLET });
  }
  const events =
    message.type === "batch" ? message.data.events : [{ id: request.headers["webhook-id"], ...message }];
  for (const { id, ...event } of events) handleEvent(id, event);
  respond(response, 200, {});
}).listen(Number(PORT), "127.0.0.1");
