// What the address selects: a site and a span of time. Changes become history entries, and the rail's links carry them.
import { clock } from "./format.js";

export const RANGES_S = { "5m": 300, "15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800 };
const DEFAULT = "15m";
const CARRIED = ["site", "range", "from", "to"];

let follower = null;

const moment = (text) => (text !== null && /^\d{1,11}(\.\d+)?$/.test(text) ? Math.floor(Number(text)) : null);

export function selection() {
  const asked = new URLSearchParams(location.search);
  const from_s = moment(asked.get("from"));
  const to_s = moment(asked.get("to"));
  const isAbsolute = from_s !== null && to_s !== null && from_s < to_s;
  const range = asked.get("range") in RANGES_S ? asked.get("range") : DEFAULT;
  return { site: asked.get("site") ?? "", range, isAbsolute, from_s, to_s, range_s: isAbsolute ? to_s - from_s : RANGES_S[range] };
}

function carry() {
  const asked = new URLSearchParams(location.search);
  const kept = new URLSearchParams([...asked].filter(([name]) => CARRIED.includes(name)));
  for (const link of document.querySelectorAll(".rail [data-page-path]")) {
    link.href = link.dataset.pagePath + (kept.size ? `?${kept}` : "");
  }
}

// A page that can follow by itself says how; any other is loaded anew.
export function follow(onChange) {
  follower = onChange;
  addEventListener("popstate", () => {
    carry();
    onChange();
  });
}

export function select(changes, { replaces = false } = {}) {
  const asked = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) asked.delete(name);
    else asked.set(name, value);
  }
  asked.delete("cursor");
  const address = location.pathname + (asked.size ? `?${asked}` : "");
  if (!follower) return location.assign(address);
  history[replaces ? "replaceState" : "pushState"]({}, "", address);
  carry();
  return follower();
}

export const selectSpan = (from_s, to_s) => select({ from: Math.floor(from_s), to: Math.ceil(to_s), range: null, region: null });

// Half of what is shown earlier or later; what would end in the future ends now again.
export function step(direction) {
  const { isAbsolute, from_s, to_s, range_s } = selection();
  const end_s = (isAbsolute ? to_s : Date.now() / 1000) + (direction * range_s) / 2;
  const name = Object.entries(RANGES_S).find(([, seconds]) => seconds === range_s)?.[0];
  if (end_s >= Date.now() / 1000 && name) return select({ from: null, to: null, range: name === DEFAULT ? null : name });
  return selectSpan(isAbsolute ? end_s - (to_s - from_s) : end_s - range_s, Math.min(end_s, Date.now() / 1000));
}

export function spanText(start_s, end_s) {
  const isLong = end_s - start_s > 86_400;
  const day = (unix_s) => new Date(unix_s * 1000).toISOString().slice(5, 10);
  const text = (unix_s) => (isLong ? `${day(unix_s)} ${clock(unix_s)}` : clock(unix_s, end_s - start_s < 300));
  return `${text(start_s)} – ${text(end_s)} UTC`;
}

const local = (unix_s) => new Date(unix_s * 1000).toISOString().slice(0, 19);

document.addEventListener("toggle", (event) => {
  const form = event.target.querySelector?.("[data-span-form]");
  if (!form || event.newState !== "open") return;
  const { isAbsolute, from_s, to_s, range_s } = selection();
  const end_s = isAbsolute ? to_s : Date.now() / 1000;
  form.elements.start.value = local(isAbsolute ? from_s : end_s - range_s);
  form.elements.end.value = local(end_s);
}, true);
document.addEventListener("submit", (event) => {
  const form = event.target.closest("[data-span-form]");
  if (!form) return;
  event.preventDefault();
  const [from_s, to_s] = ["start", "end"].map((name) => Date.parse(`${form.elements[name].value}Z`) / 1000);
  if (!(from_s < to_s)) return form.elements.end.focus();
  form.closest("[popover]").hidePopover();
  selectSpan(from_s, to_s);
});
document.addEventListener("pdd:step", (event) => document.getElementById("span") && step(event.detail));
