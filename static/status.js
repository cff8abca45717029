// Says how the fleet is and how fresh that is: bar, notice, age on every panel. Nothing old may look live.
import { age, clock, count, element, fixed } from "./format.js";
import { t } from "./strings.js";

const BY_OBSERVERS = ["wan", "relay"];

const $ = (id) => document.getElementById(id);

// Screen readers hear every change of a live region, so unchanged text is left alone.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function ageText(age_s) {
  if (age_s === null) return "";
  return t("common.age", { age: age_s < 10 ? fixed(age_s, 1) : count(age_s) });
}

// The bar of every page: `now` is live, paused, history, stale, lost, empty or loading; `fleet` as the server judged it.
export function drawBar({ now, age_s, isPaused, fleet }) {
  $("pulse").dataset.state = now;
  $("pulse").setAttribute("aria-pressed", String(isPaused));
  say($("pulse-word"), t(`common.${now}`));
  say($("pulse-age"), now === "history" ? "" : ageText(age_s));
  const known = ["live", "paused", "history"].includes(now) ? fleet : null;
  const unknown = { empty: t("common.word_no_data"), loading: "…" }[now] ?? t("common.word_unknown");
  $("state").dataset.tone = known?.tone ?? "none";
  say($("state-word"), known ? t(`common.word_${known.word}`) : unknown);
  say($("state-why"), known ? t(`common.why_${known.why}`, known.values) : t("common.why_unknown"));
}

export function drawStatus({ now, age_s, isPaused, tick, failure }) {
  drawBar({ now, age_s, isPaused, fleet: tick?.fleet });
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
    say(panel.querySelector(".panel-age"), oldest_s === null ? "" : t("common.panel_age", { age: age(oldest_s) }));
  }
  for (const tile of document.querySelectorAll(".tile")) tile.classList.toggle("is-stale", isCold);
}

function noticeOf(now, age_s, tick, failure) {
  const silent = (tick?.sources ?? []).filter((one) => one.stale);
  if (now === "lost") {
    const rest = t(tick ? "live.lost_with_figures" : "live.lost_without_figures");
    return ["bad", `${t("common.lost")}.`, t("live.lost_text", { why: failure || t("common.failed_network"), rest })];
  }
  if (now === "stale") {
    const since = clock(Date.now() / 1000 - age_s, true);
    return ["warn", `${t("common.stale")}.`, t("live.stale_text", { since })];
  }
  if (now === "empty") return ["", t("live.empty_title"), t("live.empty_text")];
  if (silent.length) {
    const each = silent.map((one) => t("live.silent_one", { name: one.name, age: age(one.age_s) }));
    return ["warn", t("live.silent_title"), each.join(", ")];
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
  if (now === "lost") notice.append(element("button", { type: "button", class: "button small", "data-retry": "" }, t("live.retry_now")));
}

export function drawVeil(text) {
  for (const veil of document.querySelectorAll(".veil")) {
    veil.hidden = text === "";
    say(veil, text);
  }
}
