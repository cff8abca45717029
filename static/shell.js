// What every page shares: theme, language, menus, keys, dialogs, requests of fragments and what becomes of them.
import { element } from "./format.js";
import { t } from "./strings.js";

const root = document.documentElement;
const GO_MS = 1500;
const TOAST_MS = 8000;

function currentTheme() {
  const set = root.dataset.theme;
  if (set === "dark" || set === "light") return set;
  return matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
}

function remember(name, value) {
  document.cookie = `${name}=${value}; path=/; max-age=31536000; samesite=lax`;
}

// A cookie, because the server then draws the first pixel in the right colour.
function toggleTheme() {
  const theme = currentTheme() === "dark" ? "light" : "dark";
  root.dataset.theme = theme;
  remember("pdd_theme", theme);
  document.dispatchEvent(new CustomEvent("pdd:theme"));
}

matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("pdd:theme")));

function toggleKeys() {
  const sheet = document.getElementById("keys");
  if (sheet.open) sheet.close();
  else sheet.showModal();
}

// Says what has happened; goes away by itself, except where something went wrong.
export function toast(text, tone = "") {
  const close = element("button", { type: "button", class: "button quiet small" }, t("common.dismiss"));
  const note = element("div", { class: "toast", "data-tone": tone }, element("p", {}, text), close);
  close.addEventListener("click", () => note.remove());
  document.getElementById("toasts").append(note);
  if (tone !== "bad") setTimeout(() => note.remove(), TOAST_MS);
}

document.addEventListener("click", (event) => {
  const locked = event.target.closest("button[aria-disabled=true]");
  if (locked) {
    event.preventDefault();
    if (locked.dataset.reasons) toast(locked.dataset.reasons);
    return;
  }
  const opener = event.target.closest("[data-dialog]");
  if (opener) document.getElementById(opener.dataset.dialog)?.showModal();
  const language = event.target.closest("[data-language]")?.dataset.language;
  if (language) {
    remember("pdd_language", language);
    location.reload();
  }
  const action = event.target.closest("[data-action]")?.dataset.action;
  if (action === "theme") toggleTheme();
  if (action === "keys") toggleKeys();
  if (action === "back") history.back();
  if (action === "close") event.target.closest("dialog").close();
  if (event.target.matches("dialog")) event.target.close();
  if (event.target.closest(".menu-item")) event.target.closest("[popover]")?.hidePopover();
});

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]");
const isButton = (target) => target.closest?.("button, a, summary, [role=button], [tabindex='0']");

let goUntil = 0;

function go(key) {
  goUntil = 0;
  const link = document.querySelector(`.rail [data-shortcut="${CSS.escape(key)}"]`);
  if (link) location.assign(link.href);
}

const KEYS = {
  "?": toggleKeys,
  d: toggleTheme,
  "[": () => document.dispatchEvent(new CustomEvent("pdd:step", { detail: -1 })),
  "]": () => document.dispatchEvent(new CustomEvent("pdd:step", { detail: 1 })),
  g: () => (goUntil = performance.now() + GO_MS),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (performance.now() < goUntil) return go(event.key);
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
  } else if (event.key === " ") {
    if (isButton(event.target) || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    document.dispatchEvent(new CustomEvent("pdd:pause"));
  } else if (event.key === "Escape") {
    document.querySelector("[data-action=close-side]")?.click();
  } else KEYS[event.key]?.();
});

// A popover opens under the button that owns it, and stays inside the window.
document.addEventListener("toggle", (event) => {
  const menu = event.target;
  if (!(menu instanceof HTMLElement) || !menu.matches("[popover]") || event.newState !== "open") return;
  const anchor = [...document.querySelectorAll(`[popovertarget="${menu.id}"]`)].find((one) => one.offsetParent);
  if (!anchor) return;
  const box = anchor.getBoundingClientRect();
  const left = menu.classList.contains("menu-end") ? box.right - menu.offsetWidth : box.left;
  menu.style.left = `${Math.max(8, Math.min(left, innerWidth - menu.offsetWidth - 8))}px`;
  menu.style.top = `${Math.max(8, Math.min(box.bottom + 4, innerHeight - menu.offsetHeight - 8))}px`;
}, true);

document.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-CSRF-Token"] = document.querySelector("meta[name=csrf]").content;
});

// A change that went through closes its dialog; what the server refused stands in it, beside what was typed.
document.addEventListener("htmx:afterRequest", (event) => {
  const dialog = event.detail.elt.closest?.("dialog.sheet-form");
  if (dialog && event.detail.xhr.status >= 200 && event.detail.xhr.status < 400) {
    dialog.querySelector(".sheet-error").replaceChildren();
    dialog.querySelector("form").reset();
    dialog.close();
  }
});
document.addEventListener("htmx:beforeSwap", (event) => {
  const error = event.detail.requestConfig.elt.closest?.("dialog.sheet-form")?.querySelector(".sheet-error");
  if (!error || event.detail.xhr.status < 400) return;
  event.detail.shouldSwap = false;
  error.textContent = event.detail.xhr.responseText;
});

// An error stands in the panel that it happened to, with a way to try again; the rest of the page stays.
function fail(event, text) {
  const { target, pathInfo, requestConfig } = event.detail;
  if (requestConfig && requestConfig.verb !== "get") return toast(`${t("common.failed")} ${text}`, "bad");
  const body = target?.closest(".panel")?.querySelector(".panel-body");
  if (!body) return undefined;
  body.querySelector(":scope > .panel-error")?.remove();
  const retry = element("button", { type: "button", class: "button small" }, t("common.retry"));
  const note = element("div", { class: "panel-error", role: "alert" }, element("p", {}, element("b", {}, t("common.failed")), ` ${text}`), retry);
  retry.addEventListener("click", () => {
    note.remove();
    window.htmx.ajax("GET", pathInfo.requestPath, { target, swap: requestConfig?.elt.getAttribute("hx-swap") ?? "innerHTML" });
  });
  body.prepend(note);
  return undefined;
}
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status >= 500) fail(event, t("common.failed_status", { status: event.detail.xhr.status }));
});
document.addEventListener("htmx:sendError", (event) => fail(event, t("common.failed_network")));
document.addEventListener("htmx:afterOnLoad", (event) => {
  event.detail.target?.closest(".panel")?.querySelector(".panel-error")?.remove();
});
// `HX-Trigger: {"toast": {"text": …, "tone": …}}` says something that outlives the fragment.
document.addEventListener("toast", (event) => toast(event.detail.text ?? event.detail.value, event.detail.tone));
