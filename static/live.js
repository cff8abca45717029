// The Live page: what arrives is kept, drawn once a second as text and every two as charts, and held while paused.
import { Board } from "./board.js";
import { forgetColours } from "./charts.js";
import { drawCollapse } from "./collapse.js";
import { Connection } from "./connection.js";
import { clock, element } from "./format.js";
import { History } from "./history.js";
import { drawRug, wireKnobs } from "./knob.js";
import { drawComparison, drawGutter, drawLegends, drawLinks, drawRelay, drawScale, shownIndex } from "./readouts.js";
import { Regions } from "./region.js";
import { pipe, Requests, waterfall } from "./requests.js";
import { follow, selection, spanText } from "./selection.js";
import { drawStatus, drawVeil } from "./status.js";
import { Store } from "./store.js";
import { t } from "./strings.js";
import { nameOf, Tiles } from "./tiles.js";

const CHART_PERIOD_MS = 2000;
const MARKS_PERIOD_MS = 15_000;
// What the feed itself holds; other times and single sites come from sums.
const FEED_S = 900;

const $ = (id) => document.getElementById(id);
const config = JSON.parse($("live-config").textContent);
const store = new Store();
const tiles = new Tiles();
const requests = new Requests(config, openWaterfall);
const connection = new Connection(store, {
  onTick: (tick) => {
    board.syncLinks(tick.links ?? []);
    if (tick.marks?.length) {
      window.htmx?.trigger("#knob-state", "refresh");
      loadMarks();
    }
    draw();
  },
  onChange: () => {
    if (store.tick) board.syncLinks(store.tick.links ?? []);
    draw(true);
  },
});
const past = new History(() => draw(true));
const regions = new Regions(() => picture()?.view ?? null);
const board = new Board(config.figures, { redraw: () => draw(true), onPointer: point, onAdd: (chart) => regions.attach(chart) });

let chosen = selection();
let isPaused = false;
let held = null;
let pointer = null;
let lastCharts = 0;

const isFed = () => !chosen.site && !chosen.isAbsolute && chosen.range_s <= FEED_S;

// What is on the page: the newest picture, or the one that was there when somebody paused; null while it is loading.
function picture() {
  if (held) return held;
  if (isFed()) return { view: store.view(chosen.range_s), rows: store.rows };
  const view = past.view(store, chosen);
  return view && { view, rows: past.rows };
}

// Operations and remarks are not in the feed.
async function loadMarks() {
  clearTimeout(loadMarks.timer);
  loadMarks.timer = setTimeout(loadMarks, MARKS_PERIOD_MS);
  if (document.hidden || !isFed()) return;
  const reply = await fetch(`/live/marks${location.search}`).catch(() => null);
  if (reply?.ok) store.takeMarks((await reply.json()).marks.filter((mark) => mark.kind !== "policy"));
}

function showSelection() {
  chosen = selection();
  held = null;
  isPaused = false;
  past.clear();
  if (!isFed()) past.load(chosen);
  regions.read();
  $("span-name").textContent = chosen.isAbsolute ? "" : t(`live.span_${chosen.range}`);
  for (const link of document.querySelectorAll("#span-menu a")) {
    const isThis = !chosen.isAbsolute && new URL(link.href).searchParams.get("range") === chosen.range;
    if (isThis) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  draw(true);
}

function setPaused(value) {
  held = null;
  isPaused = value && store.tick !== null && !chosen.isAbsolute;
  const age_s = connection.age_s ?? 0;
  const shown = picture();
  held = isPaused && shown ? { view: shown.view, rows: [...shown.rows], at: performance.now(), age_s } : null;
  draw(true);
}

function relayCeiling() {
  return Number($("knob-state")?.dataset.relayCeiling) || null;
}

function limitsOf(view) {
  const slots = view.nodes.filter((node) => node.role === "relay").reduce((sum, node) => sum + (node.slots ?? 0), 0);
  const ceiling = relayCeiling();
  return {
    ...view.tiles.slo,
    links: Object.fromEntries(view.links.map((link) => [nameOf(link), link.rate_cap_bytes_per_s ?? link.capacity_bytes_per_s])),
    relay_slots: slots || null,
    relay_ceiling: slots && ceiling ? ceiling * slots : null,
  };
}

function status() {
  const quiet = isPaused ? "paused" : chosen.isAbsolute ? "history" : "live";
  const now = connection.state === "live" ? quiet : connection.state;
  const heldFor_s = held ? held.age_s + (performance.now() - held.at) / 1000 : null;
  const age_s = now === "paused" ? heldFor_s : connection.age_s;
  drawStatus({
    now,
    age_s: age_s === null ? null : age_s + connection.gatewayAge_s,
    isPaused,
    tick: store.tick,
    failure: connection.failure || past.failure,
  });
  return now;
}

function draw(isForced = false) {
  if (document.hidden) return undefined;
  const now = status();
  if (store.tick === null) {
    drawVeil(t({ empty: "live.veil_empty", lost: "live.veil_lost" }[now] ?? "live.veil_loading"));
    requests.empty.hidden = now !== "empty";
    return undefined;
  }
  const shown = picture();
  if (!shown) return drawVeil(past.failure || t("live.veil_loading"));
  drawVeil("");
  const { view, rows } = shown;
  tiles.draw(view);
  drawCollapse(view, now === "lost" || now === "stale" ? null : store.tick.fleet);
  requests.draw(rows, view);
  drawReadouts(view);
  drawRelay(view, relayCeiling());
  drawComparison(view);
  drawRug(rows);
  $("span-text").textContent = spanText(view.start_s, view.end_s);
  const isDue = !isPaused && performance.now() - lastCharts >= CHART_PERIOD_MS - 60;
  if (!isForced && !isDue) return undefined;
  lastCharts = performance.now();
  board.draw(view, limitsOf(view));
  drawScale(board.heat);
  regions.draw(board.heat, view);
  return undefined;
}

function drawReadouts(view) {
  const index = shownIndex(view, pointer);
  drawLegends(view, index);
  drawGutter(view, index, pointer !== null, board.heat.cells);
  drawLinks(view, index);
}

function point(fraction) {
  pointer = fraction;
  const view = store.tick === null ? null : picture()?.view;
  if (!view) return;
  board.cross.show(fraction, view);
  drawReadouts(view);
}

function showCells(chosen) {
  for (const one of document.querySelectorAll("[data-cells]")) one.setAttribute("aria-pressed", String(one === chosen));
  board.heat.cells = chosen.dataset.cells;
  draw(true);
}

function openWaterfall(row) {
  $("waterfall-body").replaceChildren(...waterfall(row, config));
  $("waterfall-title").replaceChildren(pipe(row), element("span", { class: "dim" }, clock(row.at_s, true), " UTC"));
  $("waterfall").showModal();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const panel = button.closest("[data-panel]");
  const { action, cells, retry } = button.dataset;
  if (retry !== undefined) connection.retryNow();
  if (cells) showCells(button);
  if (action === "pause") setPaused(!isPaused);
  if (action === "csv") picture() && board.saveCsv(panel, picture().view);
  if (action === "png") board.savePng(panel);
  if (action === "table" && picture()) {
    board.toggleTable(panel, button, picture().view);
    draw(true);
  }
});
document.addEventListener("pdd:pause", () => setPaused(!isPaused));
document.addEventListener("pdd:theme", () => {
  forgetColours();
  draw(true);
});
document.addEventListener("visibilitychange", () => draw(true));
document.addEventListener("htmx:afterSettle", () => {
  wireKnobs();
  if (store.tick) draw(true);
});

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => draw(true), 120);
});

// Ticks draw by themselves; without them only the age grows, and must be seen to grow.
setInterval(() => connection.state === "live" || draw(), 1000);
follow(showSelection);
showSelection();
loadMarks();
connection.connect();
