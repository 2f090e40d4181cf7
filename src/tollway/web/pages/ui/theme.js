// The switches of the theme and of the language, and the button that prints the page. A choice is kept in a cookie without a secret, so that the server writes it into the next page.

const YEAR_S = 31536000;

/** @returns {boolean} */
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

for (const found of document.querySelectorAll("[data-theme-switch]")) {
  const button = /** @type {HTMLButtonElement} */ (found);
  const show = () => {
    button.textContent = (isDark() ? button.dataset.light : button.dataset.dark) ?? "";
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
