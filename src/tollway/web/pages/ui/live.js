// Refreshes the figures of a page every 10 s, into the text nodes that are there, while the tab is in front. A button stops it.
//
// The button names the JSON of the page; `data-live` of an element is a path into it, such as `networks.0.nodes.1.head`. `data-none` is the text of a null.

const INTERVAL_MS = 10000;
let isStopped = false;

/**
 * @param {unknown} content
 * @param {string} path
 */
function find(content, path) {
  let found = content;
  for (const name of path.split(".")) {
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, name)) return undefined;
    found = /** @type {Record<string, unknown>} */ (found)[name];
  }
  return found;
}

/** @param {string} source */
async function refresh(source) {
  if (isStopped || document.hidden) return;
  const response = await fetch(source, { credentials: "same-origin", cache: "no-store" });
  if (!response.ok) return;
  const content = await response.json();
  for (const found of document.querySelectorAll("[data-live]")) {
    const node = /** @type {HTMLElement} */ (found);
    const value = find(content, node.dataset.live ?? "");
    const text = value === null ? node.dataset.none : typeof value === "object" ? undefined : String(value ?? "");
    if (value !== undefined && text !== undefined && node.textContent !== text) node.textContent = text;
  }
}

for (const found of document.querySelectorAll("[data-live-switch]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  const again = () => refresh(button.dataset.liveSwitch ?? "").catch(() => {});
  const show = () => {
    button.textContent = (isStopped ? button.dataset.start : button.dataset.stop) ?? "";
  };
  button.addEventListener("click", () => {
    isStopped = !isStopped;
    show();
    again();
  });
  show();
  button.hidden = false;
  setInterval(again, INTERVAL_MS);
  document.addEventListener("visibilitychange", again);
}
