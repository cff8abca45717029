// The named condition: what grows while TTFT still looks well, before and now, and the two knobs that help.
import { element, fixed, isNumber, percent, seconds, tokens } from "./format.js";
import { t } from "./strings.js";
import { SERIES } from "./tiles.js";

const RECENT = 12;
const BEFORE = 36;
const THRESHOLD = "[data-knob='routing.relay_when_transfer_exceeds_s']";

const $ = (id) => document.getElementById(id);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

const SIGNALS = [
  ["live.share_row", SERIES.share, (value) => `${percent(value)} %`],
  ["live.wan_row", (slot, view) => Math.max(...view.links.map((link) => SERIES.wan(slot, view, link.name) ?? 0)), (value) => `${percent(value, 0)} %`],
  ["live.load_row", SERIES.load, (value) => `${percent(value, 0)} %`],
  ["live.lag_row", SERIES.lag, (value) => tokens(value).join(" ")],
  ["live.ttft_row", SERIES.ttft_p99, (value) => `${seconds(value)} s`],
];

function row([key, series, show], view) {
  const values = view.slots.slice(0, -1).map((slot) => (slot === null ? null : series(slot, view)));
  const before = mean(values.slice(-BEFORE, -RECENT).filter(isNumber));
  const now = mean(values.slice(-RECENT).filter(isNumber));
  const isFlat = before === null || now === null || now < 1.1 * before;
  return element("tr", { class: isFlat ? "dim" : null },
    element("th", { scope: "row" }, t(key)),
    element("td", {}, before === null ? "–" : show(before)),
    element("td", {}, "→ ", element("b", {}, now === null ? "–" : show(now)), isFlat ? "" : " ▲"));
}

export function drawCollapse(view, fleet) {
  const box = $("collapse");
  box.hidden = fleet?.word !== "collapsing";
  if (box.hidden) return;
  $("collapse-signals").replaceChildren(...SIGNALS.map((signal) => row(signal, view)));
  const revert = box.querySelector("[data-remedy=revert]");
  if (revert) revert.hidden = revertButton() === null;
}

const revertButton = () => document.querySelector("#knob-state [data-revert] button");

document.addEventListener("click", (event) => {
  const remedy = event.target.closest("[data-remedy]")?.dataset.remedy;
  if (remedy === "revert") {
    revertButton()?.scrollIntoView({ block: "center" });
    revertButton()?.focus();
  }
  if (remedy !== "threshold") return;
  // Moves the knob, and leaves it to somebody to apply it with a reason.
  const number = document.querySelector(`${THRESHOLD} input[name]`);
  number.value = fixed(2 * Math.max(Number(number.value), 0.1), 2).replaceAll(",", "");
  number.dispatchEvent(new Event("input", { bubbles: true }));
  const reason = document.getElementById("reason");
  reason.scrollIntoView({ block: "center" });
  reason.focus();
});
