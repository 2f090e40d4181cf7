// An Express application that serves only calls of the gateway. Needs `npm install express http-message-signatures structured-headers`.
// Run it with `node express.mjs 8000`. GATEWAY, ENDPOINT (of the listing) and API_ID (your own listing) are in the environment; FORWARD_SECRET too, where the
// listing is signed with a shared secret (`"forwardSignature": "hmac-sha256"`).
import { createHash, createPublicKey, timingSafeEqual } from "node:crypto";
import express from "express";
import { createVerifier, httpbis } from "http-message-signatures";
import { parseDictionary } from "structured-headers";

const { GATEWAY, ENDPOINT, API_ID, FORWARD_SECRET } = process.env;
const ORIGIN = new URL(ENDPOINT).origin; // never the Host of the request: a call for another provider would count
const SLACK_S = 10, VALID_S_MAX = 300, NONCES_MAX = 200_000, KEYS_KEPT_MS = 3_600_000, FETCH_PAUSE_MS = 10_000;

// The keys of the gateway: fetched when they are needed, for an unknown key at most once in ten seconds.
let keys = new Map(), fetchedAt = -Infinity;
async function findKey(keyid) {
  const age = Date.now() - fetchedAt;
  if (age > KEYS_KEPT_MS || (!keys.has(keyid) && age > FETCH_PAUSE_MS)) {
    fetchedAt = Date.now();
    keys = new Map();
    const answer = await fetch(`${GATEWAY}/.well-known/http-message-signatures-directory`, { signal: AbortSignal.timeout(5_000), redirect: "error" });
    for (const jwk of (await answer.json()).keys.slice(0, 32)) {
      if (jwk.kty === "OKP" && jwk.crv === "Ed25519") keys.set(jwk.kid, createPublicKey({ key: jwk, format: "jwk" }));
    }
  }
  return keys.get(keyid);
}

// The key of a signature, by its algorithm: the secret of the listing never verifies as a key of the gateway, nor the other way round.
async function findVerifier(alg, keyid) {
  if (alg === "ed25519") {
    const key = await findKey(keyid);
    return key && createVerifier(key, alg);
  }
  if (alg !== "hmac-sha256" || keyid !== API_ID || !FORWARD_SECRET) return undefined;
  return createVerifier(Buffer.from(FORWARD_SECRET, "base64url"), alg);
}

// Used nonces, for one process. Several processes need a shared memory.
const nonces = new Map();
function isFirstUse(nonce, expires) {
  const now = Date.now() / 1000;
  for (const [old, end] of nonces) if (end < now) nonces.delete(old);
  if (nonces.has(nonce) || nonces.size >= NONCES_MAX) return false;
  nonces.set(nonce, expires + SLACK_S);
  return true;
}

async function verify(request, body) {
  const url = ORIGIN + request.originalUrl;
  const parsed = new URL(url);
  if (parsed.pathname + parsed.search !== request.originalUrl) return "malformed";
  const header = request.headers["signature-input"];
  if (!header) return "signature_missing";
  const inputs = [...parseDictionary(header).values()];
  if (inputs.length !== 1 || inputs[0][1].get("tag") !== "tollway-forward") return "signature_missing";
  const [items, params] = inputs[0];
  const covered = items.map(([name]) => name);
  if (items.some(([, own]) => own.size)) return "component_unsupported";
  const { created, expires, nonce } = Object.fromEntries(params);
  if (!(created < expires && expires <= created + VALID_S_MAX) || typeof nonce !== "string") return "validity_too_long";
  const alg = params.get("alg");
  const verifier = await findVerifier(alg, params.get("keyid"));
  if (!verifier) return "unknown_key";
  const isSigned = await httpbis.verifyMessage({
    keyLookup: async () => ({ algs: [alg], verify: verifier }),
    requiredParams: ["created", "expires", "nonce", "keyid", "alg", "tag"],
    requiredFields: ["@method", "@authority", "@path", "@query", "tollway-call-id", "tollway-api-id"],
    tolerance: SLACK_S,
  }, { method: request.method, url, headers: request.headers });
  if (isSigned !== true) return "bad_signature";
  if (request.headers["tollway-api-id"] !== API_ID) return "wrong_listing";
  if ("tollway-payer" in request.headers && !covered.includes("tollway-payer")) return "payer_not_covered";
  const fault = checkBody(covered, request.headers, body);
  if (fault) return fault;
  return isFirstUse(nonce, expires) ? null : "replayed";
}

function checkBody(covered, headers, body) {
  if (covered.includes("content-digest")) {
    const [digest] = parseDictionary(headers["content-digest"]).get("sha-256") ?? [];
    const signed = digest && Buffer.from(digest), own = createHash("sha256").update(body).digest();
    return signed?.length === own.length && timingSafeEqual(signed, own) ? null : "digest_mismatch";
  }
  if (covered.includes("content-length")) return headers["content-length"] === String(body.length) ? null : "length_mismatch";
  return body.length ? "body_not_covered" : null;
}

export const app = express();
app.use(express.raw({ type: () => true, limit: "32mb", inflate: false }));
app.use(async (request, response, next) => {
  let reason;
  const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
  try {
    reason = await verify(request, body);
  } catch (error) {
    reason = error instanceof TypeError ? "keys_unavailable" : "bad_signature"; // fetch fails with a TypeError
  }
  if (reason === null) return next();
  const status = reason === "keys_unavailable" ? 503 : 401;
  response.status(status).type("application/problem+json").send({ type: "about:blank", status, code: reason });
});
app.all("/v1/quote", (request, response) => {
  const bytes = Buffer.isBuffer(request.body) ? request.body.length : 0;
  response.json({ call: request.headers["tollway-call-id"], payer: request.headers["tollway-payer"] ?? null, bytes });
});

app.listen(Number(process.argv[2]), "127.0.0.1");
