// The slip of one call: its request, its payment, the toll ticket and the answer. All of it writes text, never markup.

const SHOWN_BYTES = 64 * 1024;
const KEPT_BYTES = 64 * 1024 * 1024;

/** @typedef {"charged" | "released" | "held" | "failed" | "free"} StampState */

export class CallSlip {
  /** @param {HTMLElement} root the element with the role `log` */
  constructor(root) {
    this.root = root;
    this.frame = /** @type {HTMLElement} */ (root.closest("[data-ticket]"));
    /** @type {Map<string, (text: string) => void>} lines whose value changes, by label */
    this.updated = new Map();
  }

  /** Begins a new slip. */
  clear() {
    this.root.replaceChildren();
    this.updated.clear();
    this.frame.hidden = false;
  }

  /** Removes the sentences: what they say held until now. Lines stay. */
  endNotes() {
    for (const note of this.root.querySelectorAll(".ticket-note, .stamp-place")) note.remove();
  }

  /** The line with this label, which has one value at a time. @param {string} label @param {string} value */
  update(label, value) {
    const write = this.updated.get(label);
    if (write) write(value);
    else this.updated.set(label, this.line(label, value));
  }

  /** Adds a part at the end, and keeps it in view. @param {HTMLElement} part */
  put(part) {
    this.root.append(part);
    part.scrollIntoView({ block: "nearest" });
  }

  /**
   * A line with a label. The returned function replaces its value.
   * @param {string} label
   * @param {string} value
   * @param {string | null} [href]
   */
  line(label, value, href = null) {
    const name = document.createElement("span");
    name.textContent = label;
    const content = document.createElement("span");
    if (href) {
      const link = document.createElement("a");
      link.href = href;
      link.rel = "noreferrer noopener";
      link.target = "_blank";
      link.textContent = value;
      content.append(link);
    } else {
      content.textContent = value;
    }
    const line = document.createElement("p");
    line.className = "ticket-line";
    line.append(name, content);
    this.put(line);
    return (/** @type {string} */ text) => {
      content.textContent = text;
    };
  }

  /**
   * A sentence, with its code between backticks. The returned function replaces it.
   * @param {string} text
   * @param {boolean} [isBad]
   */
  note(text, isBad = false) {
    const note = document.createElement("p");
    note.className = isBad ? "ticket-note bad" : "ticket-note";
    note.append(...splitCode(text));
    this.put(note);
    return (/** @type {string} */ changed) => note.replaceChildren(...splitCode(changed));
  }

  /**
   * Buttons of a choice; resolves with the chosen position.
   * @param {string} text
   * @param {string[]} labels
   * @returns {Promise<number>}
   */
  choose(text, labels) {
    this.note(text);
    const row = document.createElement("p");
    row.className = "ticket-choices";
    this.put(row);
    return new Promise((resolve) => {
      labels.forEach((label, position) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = label;
        button.addEventListener("click", (event) => {
          if (!event.isTrusted) return;
          row.remove();
          resolve(position);
        });
        row.append(button);
      });
    });
  }

  /**
   * The stamp at the end of a slip.
   * @param {StampState} state
   * @param {string} word
   */
  stamp(state, word) {
    const stamp = document.createElement("strong");
    stamp.className = `stamp ${state}`;
    stamp.textContent = word;
    const place = document.createElement("p");
    place.className = "stamp-place";
    place.append(stamp);
    this.put(place);
    document.querySelector(".brand .gate")?.classList.toggle("open", state === "charged" || state === "free");
  }
}

/** The parts of a sentence: texts, and elements for its code. @param {string} text @returns {(string | HTMLElement)[]} */
function splitCode(text) {
  return text.split(/`([^`\n]+)`/).map((part, position) => {
    if (position % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
}

// ---- Amounts.

/** Base units as a decimal number. @param {string} units @param {number} decimals */
export function format(units, decimals) {
  const text = units.padStart(decimals + 1, "0");
  const fraction = decimals ? text.slice(-decimals).replace(/0+$/, "") : "";
  return text.slice(0, text.length - decimals) + (fraction ? `.${fraction}` : "");
}

/** The base units of a decimal number; null for another text. @param {string} text @param {number} decimals */
export function parse(text, decimals) {
  const found = /^([0-9]{1,60})(?:\.([0-9]{1,60}))?$/.exec(text);
  return found ? BigInt(found[1] + (found[2] ?? "").slice(0, decimals).padEnd(decimals, "0")) : null;
}

// ---- Headers that carry JSON.

/** The JSON of a header in base64; null for another text. @param {string} text @returns {any} */
export function decode(text) {
  try {
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text), (character) => character.charCodeAt(0))));
  } catch {
    return null;
  }
}

/** JSON in base64, for a header. @param {unknown} content */
export function encode(content) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(content))));
}

// ---- The payment that a call carries.

/** @typedef {{ id: string, rail: "x402" | "tx", name: string, chainId: number, token: string | null, symbol: string, decimals: number, amount: string, price: string, payTo: string, explorer: string | null, network: object | null }} Way */
/** @typedef {{ rail: "x402" | "tx" | "credit", state: "signing" | "sending" | "shown", request: CallRequest, key: string, from: string, way: Way, price: string, amount?: string, header?: string, transaction?: string, sentMs?: number, first?: string | null, isRedirected?: boolean }} Intent `first`: the hash by the wallet beside an entered one */

/** So long after a transfer was sent, it may be given up: a wallet can send it past the nodes that others see. */
const GIVE_UP_MS = 5 * 60_000;

/** @param {Intent} intent @returns {Record<string, string>} */
export function paymentHeaders(intent) {
  if (intent.rail === "x402") return { "payment-signature": intent.header ?? "", "idempotency-key": intent.key };
  const { signature, parameters } = JSON.parse(intent.header ?? "{}");
  return {
    "x-payment-tx": intent.transaction ?? "",
    "x-payment-network": `eip155:${intent.way.chainId}`,
    "x-signature": signature,
    "x-signature-params": parameters,
    "idempotency-key": intent.key,
  };
}

/** @param {Intent} intent */
export function isOutdated(intent) {
  const until = /validUntil=([0-9]+)/.exec(intent.header ?? "");
  return !until || Number(until[1]) < Date.now() / 1000 + 5;
}

/** Tries another hash beside the first, which may still move. @param {Intent} intent @param {string} hash */
export function enterHash(intent, hash) {
  if (hash === intent.first) restoreFirst(intent);
  if (hash === intent.transaction) return;
  if (intent.first === undefined) intent.first = intent.transaction ?? null;
  intent.transaction = hash;
}

/** Drops an entered hash. Returns whether one was entered. @param {Intent} intent */
export function restoreFirst(intent) {
  if (intent.first === undefined) return false;
  intent.transaction = intent.first ?? undefined;
  delete intent.first;
  intent.state = "sending";
  return true;
}

/** Whether the reader may give a transfer up. @param {Intent} intent @param {number} nowMs */
export function mayGiveUp(intent, nowMs) {
  return nowMs - (intent.sentMs ?? nowMs) >= GIVE_UP_MS;
}

/** What the tab has stored under a key; null for nothing, and for another text than JSON. @param {string} key @returns {any} */
export function readStored(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

/** Asks for the hash of a transfer, and whether there is none. What was entered for one payment must not touch the next. */
export class RecoveryFields {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.hash = /** @type {HTMLInputElement} */ (root.querySelector("input"));
    this.noneSent = /** @type {HTMLInputElement} */ (root.querySelector("[data-none-sent]"));
  }

  /** @param {boolean} mayGiveUp */
  offer(mayGiveUp) {
    if (this.root.hidden) this.clear();
    this.root.hidden = false;
    this.offerNone(mayGiveUp);
  }

  /** @param {boolean} isOffered */
  offerNone(isOffered) {
    if (!isOffered) this.noneSent.checked = false;
    /** @type {HTMLElement} */ (this.noneSent.closest("p")).hidden = !isOffered;
  }

  hide() {
    this.root.hidden = true;
    this.clear();
  }

  clear() {
    this.hash.value = "";
    this.noneSent.checked = false;
  }

  read() {
    const given = this.root.hidden ? "" : this.hash.value.trim().toLowerCase();
    return { given, isNoneSent: given === "" && !this.root.hidden && this.noneSent.checked };
  }
}

// ---- The request and the answer.

/** @typedef {{ method: string, target: string, headers: Record<string, string>, body: string | null, isCoded?: boolean }} CallRequest `isCoded`: the body is bytes, in base64 */

/** The body as it is sent. @param {CallRequest} request */
export const bodyOf = ({ body, isCoded }) => (isCoded ? Uint8Array.from(atob(body ?? ""), (character) => character.charCodeAt(0)) : new TextEncoder().encode(body ?? ""));

/** The request of a form, without a body of fields and files (`form_body.js`). @param {HTMLFormElement} form @param {{ apiId: string, method: string, path: string }} operation @returns {CallRequest} */
export function readForm(form, operation) {
  const given = new FormData(form);
  let method = operation.method;
  let path = operation.path;
  /** @type {string[]} */
  const query = [];
  /** @type {Record<string, string>} */
  const headers = {};
  if (given.has("any-method")) {
    method = String(given.get("any-method"));
    path = toPath(String(given.get("any-path") ?? ""));
  }
  for (const found of form.querySelectorAll("[data-place]")) {
    const field = /** @type {HTMLInputElement} */ (found);
    const { place, parameter = "", kind, exploded } = field.dataset;
    const text = field.value;
    if (place === "form" || place === "body" || (text === "" && !field.required)) continue;
    if (place === "path") path = path.replace(`{${parameter}}`, () => encodeURIComponent(text));
    else if (place === "header") headers[parameter] = text;
    else query.push(...toPairs(parameter, text, kind === "json", exploded !== undefined));
  }
  const body = given.has("body") && String(given.get("body")) !== "" && !["GET", "HEAD"].includes(method) ? String(given.get("body")) : null;
  if (body !== null) headers["content-type"] = form.dataset.bodyType ?? "application/json";
  const whole = encodeURI(path).replaceAll("%25", "%") + (query.length ? (path.includes("?") ? "&" : "?") + query.join("&") : "");
  return { method, target: toTarget(operation.apiId, whole), headers, body };
}

/** The target as the browser sends it, byte for byte: a bound signature covers it. @param {string} apiId @param {string} text */
function toTarget(apiId, text) {
  const start = `${location.origin}/api/v2/gateway/${apiId}`;
  const { href } = new URL(start + text);
  if (!href.startsWith(start)) throw new TypeError("the path leaves the API");
  return href.slice(start.length);
}

/** @param {string} text */
function toPath(text) {
  return text === "" || text.startsWith("/") || text.startsWith("?") ? text : "/" + text;
}

/** A query parameter in OpenAPI's `form` style. @param {string} name @param {string} text @param {boolean} isJson @param {boolean} isExploded */
function toPairs(name, text, isJson, isExploded) {
  /** @type {unknown} */
  let value = text;
  if (isJson) {
    try {
      value = JSON.parse(text);
    } catch {
      value = text.split(",");
    }
  }
  const key = encodeURIComponent(name);
  const show = (/** @type {unknown} */ one) => encodeURIComponent(typeof one === "string" ? one.trim() : JSON.stringify(one));
  if (!Array.isArray(value)) return [`${key}=${show(value)}`];
  return isExploded ? value.map((one) => `${key}=${show(one)}`) : [`${key}=${value.map(show).join(",")}`];
}

/** Sends a request without cookies. A redirect is opaque. @param {string} apiId @param {CallRequest} request @param {Record<string, string>} more @returns {Promise<Response>} */
export function sendCall(apiId, request, more) {
  return fetch(`/api/v2/gateway/${apiId}${request.target}`, {
    method: request.method,
    headers: { ...request.headers, ...more },
    body: request.body === null ? null : bodyOf(request),
    credentials: "omit",
    cache: "no-store",
    redirect: "manual",
  });
}

/** @typedef {"none" | "charged" | "released" | "held"} PaymentState */

/**
 * What became of the payment, by a header that no upstream can send. Null where the answer does not say it: it comes from a proxy before the gateway, or is a redirect.
 * @param {Response} response @returns {PaymentState | null}
 */
export function readState(response) {
  const state = response.headers.get("tollway-payment-state");
  return state === "none" || state === "charged" || state === "released" || state === "held" ? state : null;
}

/** Whether the gateway itself made an answer: a relayed one has `received-status` (RFC 9209). @param {Response} response */
export function isOfGateway(response) {
  const status = response.headers.get("proxy-status") ?? "";
  return readState(response) !== null && status.includes("; error=") && !status.includes("received-status");
}

/** @typedef {import("tollway:contract").components["schemas"]} Schemas */
/** @typedef {Schemas["Problem"] & { payment?: Schemas["Terms"], confirmations?: number, confirmationsNeeded?: number }} Problem */

/** A problem of the gateway; null for an answer of anything else. @param {Response} response @returns {Promise<Problem | null>} */
export async function readProblem(response) {
  if (!isOfGateway(response) || response.headers.get("content-type") !== "application/problem+json") return null;
  try {
    const problem = await response.clone().json();
    return typeof problem.code === "string" && typeof problem.requestId === "string" ? problem : null;
  } catch {
    return null;
  }
}

/** The gateway failed and does not know how far it came. */
const INTERNAL = { code: "internal_error" };
const UNDECIDED = new Set([INTERNAL.code, "payment_outcome_unknown", "idempotency_in_progress", "payment_pending", "chain_unavailable", "storage_unavailable", "overloaded", "channel_busy", "upstream_unavailable", "upstream_unreachable", "rate_limited", "failed_call_budget_exhausted"]);

/** Whether an answer says nothing of the payment. @param {Problem | null} problem */
export const isInternal = (problem) => (problem ?? INTERNAL).code === INTERNAL.code;

/** What became of the payment; null where the same payment must be sent again to know it. @param {Response} response @param {Problem | null} problem */
export function readOutcome(response, problem) {
  if (isOfGateway(response) && problem === null) return null;
  return problem !== null && UNDECIDED.has(problem.code) && response.status !== 402 ? null : readState(response);
}

/** Whether the end of this answer decides the price. @param {Response} response @param {Problem | null} problem */
export const isMeasuredLater = (response, problem) => problem === null && readState(response) === "held" && response.headers.has("tollway-price-max");

/**
 * Whether the payment that was shown did not pay this call. One that is spent says `charged`, or `held`, of its other calls. A server error comes after the payment was accepted: where its
 * price is released, it is credit.
 * @param {number} status @param {Problem | null} problem @param {PaymentState} state
 */
export function isNotPaid(status, problem, state) {
  return state === "none" || (problem !== null && status < 500 && (state !== "held" || problem.code === "payment_already_used"));
}

/**
 * Shows an answer as it comes, in view: JSON indented, other text as it is, anything else as a download.
 * @param {Response} response @param {HTMLElement} place @param {Record<string, string>} words
 */
export async function showAnswer(response, place, words) {
  place.replaceChildren();
  const type = (response.headers.get("content-type") ?? "").toLowerCase();
  const isJson = /[/+]json\b/.test(type);
  const isText = isJson || type.startsWith("text/") || /[/+](xml|javascript|x-ndjson)\b/.test(type);
  const output = document.createElement("pre");
  output.className = "scroll";
  output.tabIndex = 0;
  output.setAttribute("role", "region");
  output.setAttribute("aria-label", words.answer);
  /** @type {BlobPart[]} */
  const chunks = [];
  let kept = 0;
  let shown = "";
  const decoder = new TextDecoder();
  const reader = response.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    if (kept < KEPT_BYTES) chunks.push(value);
    kept += value.length;
    if (isText && shown.length < SHOWN_BYTES) {
      if (!shown && !output.isConnected) {
        place.append(output);
        place.scrollIntoView({ block: "nearest" });
      }
      shown = (shown + decoder.decode(value, { stream: true })).slice(0, SHOWN_BYTES);
      output.textContent = shown;
    }
  }
  if (isJson && kept <= SHOWN_BYTES) output.textContent = indent(shown);
  if (isText && kept > SHOWN_BYTES) {
    const cut = document.createElement("p");
    cut.textContent = words.cut;
    place.append(cut);
  }
  const isPicture = type.startsWith("image/png") && kept <= KEPT_BYTES;
  const picture = isPicture ? await (await import("./picture.js")).drawPicture(new Blob(chunks), words.picture) : null;
  if (picture) place.append(picture);
  if (kept > (isText ? SHOWN_BYTES : 0)) place.append(makeDownload(chunks, words.download.replace("{0}", String(kept))));
  place.scrollIntoView({ block: "nearest" });
}

/** @param {string} text */
function indent(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {BlobPart[]} chunks @param {string} label */
function makeDownload(chunks, label) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(chunks, { type: "application/octet-stream" }));
  link.download = "answer";
  link.textContent = label;
  return link;
}

/** The operation that is chosen loads its page, and the number of calls is asked only where a transaction pays. */
export function followChoices() {
  const chooser = document.querySelector("[data-operation-choice]");
  chooser?.addEventListener("change", () => /** @type {HTMLSelectElement} */ (chooser).form?.requestSubmit());
  for (const name of document.querySelectorAll("[data-calls-field]")) {
    const show = () => {
      const chosen = document.querySelector("[name=way]:checked, [name=way][type=hidden]");
      /** @type {HTMLElement} */ (name).hidden = !(chosen instanceof HTMLInputElement && chosen.dataset.rail === "tx");
    };
    document.addEventListener("change", show);
    show();
  }
}
