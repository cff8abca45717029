// Says how the fleet is and how fresh that is: bar, notice, age on every panel. Nothing old may look live.
import { age, clock, count, element, fixed } from "./format.js";

const WORDS = { lost: "Disconnected", empty: "No data", loading: "Loading", stale: "Stale", paused: "Paused", live: "Live" };
const UNKNOWN = { stale: "Unknown", lost: "Unknown", empty: "No data", loading: "…" };
const BY_OBSERVERS = ["wan", "relay"];

const $ = (id) => document.getElementById(id);

// Screen readers hear every change of a live region, so unchanged text is left alone.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function ageText(age_s) {
  if (age_s === null) return "";
  return `${age_s < 10 ? fixed(age_s, 1) : count(age_s)} s old`;
}

export function drawStatus({ now, age_s, isPaused, tick, failure }) {
  $("pulse").dataset.state = now;
  $("pulse").setAttribute("aria-pressed", String(isPaused));
  say($("pulse-word"), WORDS[now]);
  say($("pulse-age"), ageText(age_s));
  const fleet = now === "live" || now === "paused" ? tick.fleet : null;
  $("state").dataset.tone = fleet?.tone ?? "none";
  say($("state-word"), fleet?.word ?? UNKNOWN[now]);
  say($("state-why"), fleet?.why ?? "No fresh figures, so nothing can be said.");
  drawPanelAges(now, age_s, tick?.sources ?? []);
  for (const control of document.querySelectorAll("#panel-knobs fieldset, .demo fieldset")) control.disabled = now === "lost";
  drawNotice(now, age_s, tick, failure);
}

function drawPanelAges(now, age_s, sources) {
  const isCold = now === "lost" || now === "stale";
  for (const panel of document.querySelectorAll("[data-panel]")) {
    const kind = BY_OBSERVERS.includes(panel.dataset.panel) ? "observer" : "gateway";
    const mine = sources.filter((one) => one.kind === kind);
    const isSilent = mine.length > 0 && mine.every((one) => one.stale);
    const oldest_s = isCold ? age_s : isSilent ? Math.max(...mine.map((one) => one.age_s)) : null;
    panel.dataset.state = isCold || isSilent ? "stale" : "";
    say(panel.querySelector(".panel-age"), oldest_s === null ? "" : `${age(oldest_s)} old`);
  }
  for (const tile of document.querySelectorAll(".tile")) tile.classList.toggle("is-stale", isCold);
}

function noticeOf(now, age_s, tick, failure) {
  const silent = (tick?.sources ?? []).filter((one) => one.stale);
  if (now === "lost") {
    const rest = tick ? "The figures below are not live; controls are" : "Controls are";
    return ["bad", "Disconnected.", `${failure || "The server does not answer."} ${rest} locked until it is back.`];
  }
  if (now === "stale") {
    const since = clock(Date.now() / 1000 - age_s, true);
    return ["warn", "Stale.", `No figure has arrived since ${since} UTC: the telemetry consumer is silent, while this page is connected.`];
  }
  if (now === "empty") {
    return ["", "No data yet.", "The telemetry consumer has not sent a first figure. The page fills by itself as soon as it does."];
  }
  if (silent.length) return ["warn", "A source is silent:", silent.map((one) => `${one.name} for ${age(one.age_s)}`).join(", ")];
  if (tick?.fleet?.word === "Collapsing") {
    return ["bad", "Relay collapse is starting.", "RLD share rises while the WAN link and RLD are full: relay hides a link that no longer drains. Raise the relay threshold, or revert the last change."];
  }
  return null;
}

function drawNotice(now, age_s, tick, failure) {
  const notice = $("notice");
  const found = noticeOf(now, age_s, tick, failure);
  const key = found ? found.join("/") : "";
  notice.hidden = found === null;
  if (notice.dataset.key === key) return;
  notice.dataset.key = key;
  if (found === null) return;
  const [tone, title, text] = found;
  notice.dataset.tone = tone;
  notice.replaceChildren(element("span", {}, element("b", {}, title), ` ${text}`));
  if (now === "lost") notice.append(element("button", { type: "button", class: "button small", "data-retry": "" }, "Retry now"));
}

export function drawVeil(text) {
  for (const veil of document.querySelectorAll(".veil")) {
    veil.hidden = text === "";
    say(veil, text);
  }
}
