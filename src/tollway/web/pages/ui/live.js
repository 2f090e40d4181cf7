// Refreshes the figures of a page every 10 s, into the text nodes that are there, while the tab is in front. A button stops it. A sentence says what is not refreshed, and when the
// last refresh failed.
//
// The button names the JSON of the page; `data-live` of an element is a path into it, such as `networks.0.nodes.1.head`. `data-none` is the text of a null. `data-live-outline` is
// the path of an outline, and an element with `data-live-shown` is hidden while the value of its path is false, empty or null. A list with `data-live-list` is drawn again from its template when its items change: `data-item` names the member that is the text of an element, and
// an element whose member is null is left out. `data-item-link` gets a copy of the link of the page with that address (`data-live-links`): no address comes from the response.

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
  const response = await fetch(source, { credentials: "same-origin", cache: "no-store" });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  const content = await response.json();
  for (const found of document.querySelectorAll("[data-live]")) {
    const node = /** @type {HTMLElement} */ (found);
    const value = find(content, node.dataset.live ?? "");
    const text = value === null ? node.dataset.none : typeof value === "object" ? undefined : String(value ?? "");
    if (value !== undefined && text !== undefined && node.textContent !== text) node.textContent = text;
  }
  for (const found of document.querySelectorAll("[data-live-outline]")) {
    found.setAttribute("d", String(find(content, found.getAttribute("data-live-outline") ?? "") ?? ""));
  }
  for (const found of document.querySelectorAll("[data-live-shown]")) {
    found.toggleAttribute("hidden", !find(content, found.getAttribute("data-live-shown") ?? ""));
  }
  for (const found of document.querySelectorAll("[data-live-list]")) drawList(/** @type {HTMLElement} */ (found), content);
}

/** @type {Map<HTMLElement, string>} */
const drawn = new Map();

/**
 * @param {HTMLElement} list
 * @param {unknown} content
 */
function drawList(list, content) {
  const path = list.dataset.liveList ?? "";
  const items = find(content, path);
  const template = list.querySelector("template");
  const state = JSON.stringify(items);
  if (!Array.isArray(items) || template === null || drawn.get(list) === state) return;
  drawn.set(list, state);
  list.replaceChildren(...list.querySelectorAll("template"), ...items.map((item) => fill(template, item)));
  for (const empty of document.querySelectorAll(`[data-live-empty="${path}"]`)) empty.toggleAttribute("hidden", items.length > 0);
}

/** @param {string} path */
function copyLink(path) {
  const links = /** @type {HTMLTemplateElement | null} */ (document.querySelector("template[data-live-links]"));
  const found = [...(links?.content.children ?? [])].find((one) => one.getAttribute("href") === path);
  return found?.cloneNode(true);
}

/**
 * @param {HTMLTemplateElement} template
 * @param {Record<string, string | null>} item
 */
function fill(template, item) {
  const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
  for (const found of copy.querySelectorAll("[data-item], [data-item-if], [data-item-link]")) {
    const node = /** @type {HTMLElement} */ (found);
    const value = item[node.dataset.itemIf ?? node.dataset.itemLink ?? node.dataset.item ?? ""];
    if (value === null || value === undefined) {
      node.remove();
      continue;
    }
    if (node.dataset.item) node.textContent = value;
    if (node.dataset.itemClass) node.className = node.dataset.itemClass + value;
    if (node.dataset.itemLink) node.append(copyLink((node.dataset.itemFolder ?? "") + value) ?? value);
  }
  return copy;
}

for (const found of document.querySelectorAll("[data-live-switch]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  const note = /** @type {HTMLElement} */ (document.querySelector("[data-live-note]"));
  const say = (/** @type {string | undefined} */ sentence) => {
    if (note.textContent !== sentence) note.textContent = sentence ?? "";
  };
  const again = async () => {
    if (isStopped || document.hidden) return;
    try {
      await refresh(button.dataset.liveSwitch ?? "");
      say(note.dataset.fresh);
    } catch {
      say(note.dataset.stale);
    }
  };
  const show = () => {
    button.textContent = (isStopped ? button.dataset.start : button.dataset.stop) ?? "";
    say(isStopped ? "" : note.dataset.fresh);
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
