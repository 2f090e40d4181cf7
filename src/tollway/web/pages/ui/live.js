// Refreshes the figures of a page every 10 s, into the text nodes that are there, while the tab is in front. A button stops it.

const INTERVAL_MS = 10000;
let isStopped = false;

async function refresh() {
  if (isStopped || document.hidden) return;
  const response = await fetch("/admin/api/overview", { credentials: "same-origin", cache: "no-store" });
  if (!response.ok) return;
  const { figures } = await response.json();
  for (const node of document.querySelectorAll("[data-live]")) {
    const value = figures[/** @type {HTMLElement} */ (node).dataset.live ?? ""];
    if (typeof value === "string" && node.textContent !== value) node.textContent = value;
  }
}

for (const found of document.querySelectorAll("[data-live-switch]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  const show = () => {
    button.textContent = (isStopped ? button.dataset.start : button.dataset.stop) ?? "";
  };
  button.addEventListener("click", () => {
    isStopped = !isStopped;
    show();
    refresh().catch(() => {});
  });
  show();
  button.hidden = false;
}
setInterval(() => refresh().catch(() => {}), INTERVAL_MS);
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
