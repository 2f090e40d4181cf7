// A receiver of webhooks that verifies `v1` with the published library: npm install standardwebhooks
// SECRET=whsec_… WALLET=0x… PORT=8090 node webhook_v1.mjs
// WALLET is the wallet that registered the URL.
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.SECRET);
const { WALLET } = process.env;
const LENGTH_MAX = 65_536;
const seen = new Set(); // use a table with a unique column: it must survive a restart

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
  let message;
  try {
    message = webhook.verify(await readBody(request), request.headers);
  } catch {
    return respond(response, 401, { error: "not signed with this secret" });
  }
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
}).listen(Number(process.env.PORT), "127.0.0.1");
