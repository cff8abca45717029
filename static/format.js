// Numbers as people read them: units always, tabular figures, one place that turns seconds and bytes into words.
import { t } from "./strings.js";

const group = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Making a formatter costs more than a hundred uses of it.
const formatters = new Map();

export function fixed(value, digits) {
  if (!isNumber(value)) return "–";
  if (!formatters.has(digits)) {
    formatters.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formatters.get(digits).format(value);
}

export const count = (value) => (isNumber(value) ? group.format(value) : "–");

// Enough digits to tell two values apart, never more than three significant ones.
export const secondsDigits = (value) => (value < 10 ? 2 : value < 100 ? 1 : 0);
export const seconds = (value) => fixed(value, secondsDigits(value));
export const milliseconds = (value) => (isNumber(value) ? count(Math.round(value * 1000)) : "–");
export const percent = (ratio, digits = 1) => (isNumber(ratio) ? fixed(ratio * 100, digits) : "–");
export const megabits = (bytesPerSecond) => (isNumber(bytesPerSecond) ? (bytesPerSecond * 8) / 1e6 : null);

export function bytes(value) {
  if (!isNumber(value)) return ["–", ""];
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return [fixed(value / size, value >= 10 * size ? 0 : 1), unit];
  }
  return [count(value), "B"];
}

export function tokens(value) {
  if (!isNumber(value)) return ["–", ""];
  return value >= 10_000 ? [fixed(value / 1000, 1), "K tok"] : [count(Math.round(value)), "tok"];
}

export function age(value_s) {
  const s = Math.max(0, Math.floor(value_s));
  if (s < 60) return t("common.seconds", { s });
  if (s < 3600) return t("common.minutes", { m: Math.floor(s / 60), s: String(s % 60).padStart(2, "0") });
  return t("common.hours", { h: Math.floor(s / 3600), m: String(Math.floor((s % 3600) / 60)).padStart(2, "0") });
}

export const clock = (unix_s, withSeconds = false) => new Date(unix_s * 1000).toISOString().slice(11, withSeconds ? 19 : 16);

// Text goes in through this, so that a name out of the fleet can never become markup.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Reading a width between writes makes the browser lay the page out again, so it is read once per window size.
let widths = new WeakMap();
addEventListener("resize", () => (widths = new WeakMap()));

export function widthOf(node) {
  if (!widths.get(node)) widths.set(node, node.clientWidth);
  return widths.get(node);
}

const SVG = "http://www.w3.org/2000/svg";

export function shape(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const unit = (text) => element("span", { class: "unit" }, text);
