// The switches of the theme and of the language, the button that prints the page, the buttons that copy, and the filters of lists. A choice is kept in a cookie without a secret, so that the server writes it into the next page.

const YEAR_S = 31536000;

/** @returns {boolean} */
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

for (const found of document.querySelectorAll("[data-theme-switch]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  const show = () => {
    button.title = (isDark() ? button.dataset.light : button.dataset.dark) ?? "";
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    document.cookie = `theme=${theme}; path=/; max-age=${YEAR_S}; samesite=lax`;
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  button.hidden = false;
}

for (const found of document.querySelectorAll("[data-language]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  button.addEventListener("click", () => {
    document.cookie = `lang=${button.dataset.language}; path=/; max-age=${YEAR_S}; samesite=lax`;
    location.reload();
  });
  button.hidden = false;
}

for (const found of document.querySelectorAll("[data-print]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  button.addEventListener("click", () => print());
  button.hidden = false;
}

// ---- Buttons that copy, drawn beside their text. A browser without a secure address has no clipboard.

const COPIED_MS = 2000;
const live = document.createElement("span");

/** @param {HTMLElement} node */
function drawCopyButton(node) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.title = button.ariaLabel = node.dataset.copy ?? "";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(node.title || (node.textContent ?? ""));
    live.textContent = "";
    button.classList.add("done");
    live.textContent = document.body.dataset.copied ?? "";
    setTimeout(() => button.classList.remove("done"), COPIED_MS);
  });
  (node.closest("a") ?? node).after(button);
}

const copied = isSecureContext ? document.querySelectorAll("[data-copy]") : [];
if (copied.length) {
  live.className = "hidden";
  live.ariaLive = "polite";
  document.body.append(live);
  for (const found of copied) drawCopyButton(/** @type {HTMLElement} */ (found));
}

// ---- Filters: a field above a long list hides the entries that lack one of its words.

for (const found of document.querySelectorAll("[data-filter]")) {
  const list = /** @type {HTMLElement} */ (found);
  const row = document.createElement("p");
  const field = document.createElement("input");
  const count = document.createElement("span");
  row.className = "filter";
  count.className = "quiet figure";
  count.role = "status";
  field.type = "search";
  field.placeholder = field.ariaLabel = list.dataset.filter ?? "";
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    const entries = /** @type {HTMLElement[]} */ ([...list.children]);
    for (const entry of entries) entry.hidden = !words.every((word) => (entry.textContent ?? "").toLowerCase().includes(word));
    count.textContent = field.value ? `${entries.filter((entry) => !entry.hidden).length} / ${entries.length}` : "";
  });
  row.append(field, count);
  list.before(row);
}
