// The knob's two faces, slider and number, the changed state, and why Apply is locked. The server checks it all again.
import { t } from "./strings.js";
import { element, isNumber, shape, widthOf } from "./format.js";

const RUG_HEIGHT = 36;
const DOT = 5;
const THUMB = 0.025;

const trim = (value) => String(+value.toFixed(3));

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

let lastRows = [];
let drawn = "";

// The transfers predicted for the last requests on the slider's own scale: what a new threshold would part differently.
export function drawRug(rows) {
  lastRows = rows;
  const form = document.querySelector("form[data-steps]");
  const holder = form?.querySelector("[data-rug]");
  if (!holder) return;
  const steps = JSON.parse(form.dataset.steps);
  const live = Number(form.dataset.live);
  const value = Number(form.querySelector("input[name=value]").value);
  const known = rows.filter((row) => isNumber(row.predicted_transfer_s));
  const width = widthOf(holder);
  const key = [width, live, value, known[0]?.id, known.length].join();
  if (key === drawn && holder.firstChild) return;
  drawn = key;
  const svg = shape("svg", { width, height: RUG_HEIGHT });
  svg.append(shape("path", { d: `M0 ${RUG_HEIGHT - 0.5}H${width}`, class: "rug-base" }));
  const changed = form.classList.contains("is-changed");
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
  const text = form.querySelector("[data-rug-text]");
  if (!known.length) text.replaceChildren();
  else if (changed) text.textContent = t("knob.rug_changed", { count: known.length, over: over(value), value: trim(value), live_over: over(live), live: trim(live) });
  else text.textContent = t("knob.rug_live", { count: known.length, over: over(live) });
}

function wire(form) {
  const steps = JSON.parse(form.dataset.steps);
  const live = Number(form.dataset.live);
  const slider = form.querySelector("input[type=range]");
  const number = form.querySelector("input[name=value]");
  const reason = form.querySelector("[name=reason]");
  const apply = form.querySelector("[data-apply]");
  const output = form.querySelector("output");
  const why = form.querySelector("[data-why]");
  const tick = form.querySelector(".knob-live line");
  for (const end of ["x1", "x2"]) tick.setAttribute(end, `${100 * onTrack(place(steps, live))}%`);

  const judge = () => {
    const value = Number(number.value);
    const isValid = number.value.trim() !== "" && Number.isFinite(value);
    const isChanged = isValid && value !== live;
    form.classList.toggle("is-changed", isChanged);
    slider.setAttribute("aria-valuetext", isValid ? t("knob.seconds", { value: trim(value) }) : "");
    output.replaceChildren(...(isChanged ? [`${trim(live)} → `] : []), element("b", {}, trim(isChanged ? value : live)), " s");
    const missing = [!isChanged && t("knob.move"), !reason.value.trim() && t("knob.give_reason")].filter(Boolean);
    apply.setAttribute("aria-disabled", String(missing.length > 0));
    why.textContent = missing.length ? t("knob.to_apply", { missing: missing.join(", ") }) : why.dataset.ready;
    const badge = document.getElementById("knob-badge");
    badge.className = isChanged ? "badge accent" : "";
    badge.textContent = isChanged ? t("knob.changed") : "";
    drawRug(lastRows);
  };
  slider.addEventListener("input", () => {
    number.value = trim(steps[Number(slider.value)]);
    judge();
  });
  number.addEventListener("input", () => {
    slider.value = nearest(steps, Number(number.value));
    judge();
  });
  reason.addEventListener("input", judge);
  form.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target !== form || apply.getAttribute("aria-disabled") !== "true") return;
    event.preventDefault();
    (form.classList.contains("is-changed") ? reason : slider).focus();
  });
  slider.value = nearest(steps, Number(number.value) || 0);
  judge();
}

// A form that nobody has touched follows the active revision; a touched one is left alone and refused when sent.
function follow() {
  const form = document.querySelector("form[data-steps]");
  const active = document.getElementById("knob-state")?.dataset.revision;
  if (!form || !active || form.querySelector("[name=base_revision]").value === active) return;
  if (form.classList.contains("is-changed") || form.contains(document.activeElement) || form.querySelector("[name=reason]").value) return;
  window.htmx.ajax("GET", "/live/knob", { target: "#knob", swap: "outerHTML" });
}

export function wireKnobs() {
  follow();
  for (const form of document.querySelectorAll("form[data-steps]:not([data-wired])")) {
    form.dataset.wired = "true";
    wire(form);
  }
}
