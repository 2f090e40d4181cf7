// The body of a call that is a form or a file. The browser writes the form once, with its boundary: the same bytes are sent without a payment, with it, and after a reload.

/** @typedef {import("./call_slip.js").CallRequest} CallRequest */

/** A body that cannot be sent; the message is a key of the page's words. */
class BodyRefused extends Error {
  name = "BodyRefused";
}

/**
 * Adds the body to a request. The fields are read before the first wait, so that they are those of the click.
 * @param {CallRequest} request @param {HTMLFormElement} form @param {number} bytesMax
 */
export async function addBody(request, form, bytesMax) {
  if (["GET", "HEAD"].includes(request.method)) return;
  const type = form.dataset.bodyType ?? "";
  const whole = /** @type {HTMLInputElement | null} */ (form.querySelector("[data-place=body]"));
  if (whole) {
    const file = whole.files?.[0];
    if (!file) return;
    checkSize(file.size, bytesMax);
    return writeBytes(request, type, file, bytesMax);
  }
  const data = readFields(form);
  if (type.startsWith("multipart/form-data")) {
    checkSize([...data.values()].reduce((sum, value) => sum + (value instanceof File ? value.size : value.length), 0), bytesMax);
    return writeBytes(request, null, data, bytesMax);
  }
  const pairs = [...data].map(([name, value]) => [name, String(value)]);
  request.headers["content-type"] = type;
  request.body = new URLSearchParams(pairs).toString();
  checkSize(request.body.length, bytesMax);
}

/** The fields that have a value, text before files: some servers read the fields of a file only where they precede it. @param {HTMLFormElement} form */
function readFields(form) {
  const data = new FormData();
  const fields = /** @type {HTMLInputElement[]} */ ([...form.querySelectorAll("[data-place=form]")]);
  for (const field of fields) {
    if (field.type === "file" || (field.value === "" && !field.required)) continue;
    for (const [name, value] of toPairs(field)) data.append(name, value);
  }
  for (const field of fields) for (const file of field.files ?? []) data.append(field.dataset.parameter ?? "", file, file.name);
  return data;
}

/** The values of a field by its style in the API's document. @param {HTMLInputElement} field @returns {[string, string][]} */
function toPairs(field) {
  const { parameter = "", kind, exploded, deep } = field.dataset;
  /** @type {unknown} */
  let value = field.value;
  if (kind === "json") {
    try {
      value = JSON.parse(field.value);
    } catch {
      return [[parameter, field.value]];
    }
  }
  if (deep !== undefined) return flatten(parameter, value);
  if (!Array.isArray(value)) return [[parameter, toText(value)]];
  if (exploded !== undefined) return value.map((one) => [parameter, toText(one)]);
  return [[parameter, value.every((one) => typeof one !== "object") ? value.map(toText).join(",") : JSON.stringify(value)]];
}

/** `name[member]` for each member, at any depth. @param {string} name @param {unknown} value @returns {[string, string][]} */
function flatten(name, value) {
  if (value === null) return [];
  if (typeof value !== "object") return [[name, toText(value)]];
  return Object.entries(/** @type {object} */ (value)).flatMap(([key, one]) => flatten(`${name}[${key}]`, one));
}

/** @param {unknown} value */
const toText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** @param {number} size @param {number} bytesMax */
function checkSize(size, bytesMax) {
  if (size > bytesMax) throw new BodyRefused("bodyTooLarge");
}

/** Keeps the bytes as base64, as the tab can store them. @param {CallRequest} request @param {string | null} type @param {File | FormData} content @param {number} bytesMax */
async function writeBytes(request, type, content, bytesMax) {
  const written = new Response(content);
  let bytes;
  try {
    bytes = new Uint8Array(await written.arrayBuffer());
  } catch {
    throw new BodyRefused("fileUnreadable");
  }
  checkSize(bytes.length, bytesMax);
  let text = "";
  for (let start = 0; start < bytes.length; start += 8_192) text += String.fromCharCode(...bytes.subarray(start, start + 8_192));
  request.headers["content-type"] = type ?? written.headers.get("content-type") ?? "";
  request.body = btoa(text);
  request.isCoded = true;
}
