// Knobs: slider and number as two faces of one value, what has changed, and why Apply is locked. The server checks it all.
import { element, isNumber, shape, widthOf } from "./format.js";
import { t } from "./strings.js";

const RUG_HEIGHT = 36;
const DOT = 5;
const THUMB = 0.025;
const THRESHOLD = "routing.relay_when_transfer_exceeds_s";

const trim = (value) => String(+value.toFixed(3));
const formOf = () => document.querySelector("form[data-knobs]");

function nearest(steps, value) {
  let best = 0;
  steps.forEach((step, index) => {
    if (Math.abs(step - value) < Math.abs(steps[best] - value)) best = index;
  });
  return best;
}

// Where a value lies on the slider, 0 to 1: its stops are evenly spaced, whatever they stand for.
function place(steps, value) {
  if (value <= steps[0]) return 0;
  const above = steps.findIndex((step) => step >= value);
  if (above < 0) return 1;
  const below = above - 1;
  return (below + (value - steps[below]) / (steps[above] - steps[below])) / (steps.length - 1);
}

const onTrack = (fraction) => THUMB + (1 - 2 * THUMB) * fraction;

function valueIn(item) {
  const control = item.querySelector("input[type=radio]:checked") ?? item.querySelector("input[name]");
  return control.value.trim();
}

// "1.20" is what "1.2" says already.
function isSame(typed, live) {
  return typed === live || (typed !== "" && live !== "" && Number(typed) === Number(live));
}

let lastRows = [];
let drawn = "";

// The transfers predicted for the last requests on the slider's own scale: what a new threshold would part differently.
export function drawRug(rows) {
  lastRows = rows;
  const item = formOf()?.querySelector(`[data-knob="${THRESHOLD}"]`);
  const holder = item?.querySelector("[data-rug]");
  if (!holder) return;
  const steps = JSON.parse(item.dataset.steps);
  const live = Number(item.dataset.live);
  const value = Number(valueIn(item));
  const known = rows.filter((row) => isNumber(row.predicted_transfer_s));
  const width = widthOf(holder);
  const key = [width, live, value, known[0]?.id, known.length].join();
  if (key === drawn && holder.firstChild) return;
  drawn = key;
  const svg = shape("svg", { width, height: RUG_HEIGHT });
  svg.append(shape("path", { d: `M0 ${RUG_HEIGHT - 0.5}H${width}`, class: "rug-base" }));
  const changed = item.classList.contains("is-changed");
  const cut = width * onTrack(place(steps, changed ? value : live));
  svg.append(shape("path", { d: `M${cut} 0V${RUG_HEIGHT}`, class: changed ? "rug-cut" : "rug-live" }));
  const stacked = new Map();
  for (const row of known) {
    const column = Math.round((width * onTrack(place(steps, row.predicted_transfer_s))) / DOT);
    const height = stacked.get(column) ?? 0;
    stacked.set(column, height + 1);
    const cy = RUG_HEIGHT - 4 - height * DOT;
    if (cy > 2) svg.append(shape("circle", { cx: column * DOT, cy, r: 1.75, class: `rug-${row.pipeline}` }));
  }
  holder.replaceChildren(svg);
  const over = (limit) => known.filter((row) => row.predicted_transfer_s > limit).length;
  const text = formOf().querySelector("[data-rug-text]");
  if (!known.length) text.replaceChildren();
  else if (changed) text.textContent = t("knob.rug_changed", { count: known.length, over: over(value), value: trim(value), live_over: over(live), live: trim(live) });
  else text.textContent = t("knob.rug_live", { count: known.length, over: over(live) });
}

function wireItem(item, judge) {
  const slider = item.querySelector("input[type=range]");
  if (!slider) return item.addEventListener("change", judge);
  const steps = JSON.parse(item.dataset.steps);
  const number = item.querySelector("input[name]");
  const live = item.dataset.live;
  const tick = item.querySelector(".knob-live line");
  const spot = live === "" ? steps.at(-1) : Number(live);
  for (const end of ["x1", "x2"]) tick.setAttribute(end, `${100 * onTrack(place(steps, spot))}%`);
  slider.addEventListener("input", () => {
    number.value = trim(steps[Number(slider.value)]);
    judge();
  });
  number.addEventListener("input", () => {
    slider.value = nearest(steps, number.value.trim() === "" ? steps.at(-1) : Number(number.value));
    judge();
  });
  slider.value = nearest(steps, number.value === "" ? steps.at(-1) : Number(number.value) || 0);
  return undefined;
}

function showItem(item) {
  const { live, unit } = item.dataset;
  const typed = valueIn(item);
  const isChanged = !isSame(typed, live);
  item.classList.toggle("is-changed", isChanged);
  const output = item.querySelector("output");
  if (!output) return isChanged;
  item.querySelector("input[type=range]").setAttribute("aria-valuetext", typed === "" ? t("knob.no_limit") : `${typed} ${unit}`);
  const word = (text) => (text === "" ? "–" : text);
  output.replaceChildren(...(isChanged ? [`${word(live)} → `] : []), element("b", {}, word(isChanged ? typed : live)), ` ${unit}`);
  return isChanged;
}

function wire(form) {
  const items = [...form.querySelectorAll("[data-knob]")];
  const reason = form.querySelector("[name=reason]");
  const apply = form.querySelector("[data-apply]");
  const why = form.querySelector("[data-why]");

  const judge = () => {
    const changed = items.filter(showItem).length;
    form.classList.toggle("has-changes", changed > 0);
    const missing = [!changed && t("knob.move"), !reason.value.trim() && t("knob.give_reason")].filter(Boolean);
    apply.setAttribute("aria-disabled", String(missing.length > 0));
    why.textContent = missing.length ? t("knob.to_apply", { missing: missing.join(", ") }) : why.dataset.ready;
    const badge = document.getElementById("knob-badge");
    badge.className = changed ? "badge accent" : "";
    badge.textContent = changed ? t("knob.changed", { count: changed }) : "";
    drawRug(lastRows);
  };
  for (const item of items) wireItem(item, judge);
  reason.addEventListener("input", judge);
  form.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target !== form || apply.getAttribute("aria-disabled") !== "true") return;
    event.preventDefault();
    (form.classList.contains("has-changes") ? reason : form.querySelector("input[type=range]")).focus();
  });
  judge();
}

// A form that nobody has touched follows the active revision; a touched one is left alone and refused when sent.
function follow() {
  const form = formOf();
  const active = document.getElementById("knob-state")?.dataset.revision;
  if (!form || !active || form.querySelector("[name=base_revision]").value === active) return;
  if (form.classList.contains("has-changes") || form.contains(document.activeElement) || form.querySelector("[name=reason]").value) return;
  window.htmx.ajax("GET", "/live/knob", { target: "#knob", swap: "outerHTML" });
}

export function wireKnobs() {
  follow();
  for (const form of document.querySelectorAll("form[data-knobs]:not([data-wired])")) {
    form.dataset.wired = "true";
    wire(form);
  }
}
