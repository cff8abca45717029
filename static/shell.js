// What every page shares: theme, menus, keys, dialogs.
const root = document.documentElement;

function currentTheme() {
  const set = root.dataset.theme;
  if (set === "dark" || set === "light") return set;
  return matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
}

// A cookie, because the server then draws the first pixel in the right colour.
export function toggleTheme() {
  const theme = currentTheme() === "dark" ? "light" : "dark";
  root.dataset.theme = theme;
  document.cookie = `pdd_theme=${theme}; path=/; max-age=31536000; samesite=lax`;
  document.dispatchEvent(new CustomEvent("pdd:theme"));
}

matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("pdd:theme")));

function toggleKeys() {
  const sheet = document.getElementById("keys");
  if (sheet.open) sheet.close();
  else sheet.showModal();
}

document.addEventListener("click", (event) => {
  const action = event.target.closest("[data-action]")?.dataset.action;
  if (action === "theme") toggleTheme();
  if (action === "keys") toggleKeys();
  if (action === "close") event.target.closest("dialog").close();
  if (event.target.matches("dialog")) event.target.close();
  if (event.target.closest(".menu-item[type=button]")) event.target.closest("[popover]")?.hidePopover();
});

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (event.key === "?") toggleKeys();
  else if (event.key === "d") toggleTheme();
  else if (event.key === " " && !event.target.closest("button, a, summary, [role=button]")) {
    if (document.querySelector("dialog[open]")) return;
    event.preventDefault();
    document.dispatchEvent(new CustomEvent("pdd:pause"));
  }
});

// A popover opens under the button that owns it, and stays inside the window.
document.addEventListener("toggle", (event) => {
  const menu = event.target;
  if (!(menu instanceof HTMLElement) || !menu.matches("[popover]") || event.newState !== "open") return;
  const anchor = document.querySelector(`[popovertarget="${menu.id}"]`);
  if (!anchor) return;
  const box = anchor.getBoundingClientRect();
  const left = menu.classList.contains("menu-end") ? box.right - menu.offsetWidth : box.left;
  menu.style.left = `${Math.max(8, Math.min(left, innerWidth - menu.offsetWidth - 8))}px`;
  menu.style.top = `${Math.min(box.bottom + 4, innerHeight - menu.offsetHeight - 8)}px`;
}, true);
