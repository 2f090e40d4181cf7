// Verifies requests that a gateway has forwarded, with the npm package http-message-signatures and nothing of ours.
// Usage: REQUESTS='[{"method", "url", "headers"}, …]' node verify_forwarded.mjs GATEWAY; prints {"verified": [true, …]}.
import { createPublicKey } from "node:crypto";
import { createVerifier, httpbis } from "http-message-signatures";

const [gateway] = process.argv.slice(2);
const answer = await fetch(`${gateway}/.well-known/http-message-signatures-directory`);
const { keys } = await answer.json();
const known = new Map(keys.map((jwk) => [jwk.kid, createPublicKey({ key: jwk, format: "jwk" })]));

async function keyLookup({ keyid, tag }) {
  const key = tag === "tollway-forward" ? known.get(keyid) : undefined;
  return key && { id: keyid, algs: ["ed25519"], verify: createVerifier(key, "ed25519") };
}

const config = {
  keyLookup,
  requiredParams: ["created", "expires", "nonce", "keyid", "alg", "tag"],
  requiredFields: ["@method", "@authority", "@path", "@query", "tollway-call-id", "tollway-api-id"],
  tolerance: 10,
};
const verified = [];
for (const request of JSON.parse(process.env.REQUESTS)) {
  try {
    verified.push((await httpbis.verifyMessage(config, request)) === true);
  } catch (error) {
    verified.push(`${error?.name}: ${error?.message}`);
  }
}
console.log(JSON.stringify({ verified }));
