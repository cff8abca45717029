// Owns the one EventSource and the state of the data: loading, live, paused, stale, lost, empty. Draws, never decides.
import { Chart, columnsOf, crosshair, forgetColours } from "./charts.js";
import { age, bytes, clock, count, element, fixed, isNumber, megabits, milliseconds, percent, seconds, shape, unit } from "./format.js";
import { drawRug, wireKnobs } from "./knob.js";
import { pipe, Requests, waterfall } from "./requests.js";
import { at, Store } from "./store.js";
import { nameOf, SAME, sinceMark, SERIES, Tiles } from "./tiles.js";

const CHART_PERIOD_MS = 2000;
const STALE_AFTER_S = 5;
const BACK_OFF_MS = [1000, 2000, 4000, 8000, 15000];

const config = JSON.parse(document.getElementById("live-config").textContent);
const $ = (id) => document.getElementById(id);
const store = new Store();
const tiles = new Tiles();
const drawer = $("waterfall");
const requests = new Requests(config, openWaterfall);

let charts = [];
let source = null;
let attempts = 0;
let isLost = false;
let isPaused = false;
let isEmpty = false;
let failure = "";
let receivedAt = null;
let ageAtReceipt = 0;
let pausedView = null;
let pointer = null;
let lastChartDraw = 0;

/* ---- data ---- */

async function loadSnapshot() {
  const reply = await fetch("/live/snapshot", { headers: { Accept: "application/json" } });
  if (reply.status === 401) {
    location.assign("/login");
    return;
  }
  if (reply.status === 204) {
    isEmpty = true;
    return;
  }
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).detail ?? `The server answered ${reply.status}.`);
  const snapshot = await reply.json();
  store.takeSnapshot(snapshot);
  isEmpty = false;
  received(snapshot.age_s ?? 0);
  syncLinks();
}

function received(ageAtReceipt_s) {
  receivedAt = performance.now();
  ageAtReceipt = ageAtReceipt_s;
}

function openStream() {
  source?.close();
  source = new EventSource(`/live/events${store.id ? `?from=${encodeURIComponent(store.id)}` : ""}`);
  source.addEventListener("open", () => {
    attempts = 0;
    isLost = false;
  });
  source.addEventListener("tick", (event) => {
    const tick = JSON.parse(event.data);
    const isFirst = store.tick === null;
    store.takeTick(tick);
    isEmpty = false;
    failure = "";
    received(0);
    if (isFirst || tick.links?.length !== charts.filter((chart) => chart.id === "wan").length) syncLinks();
    if (tick.marks?.length) window.htmx?.trigger("#knob-state", "refresh");
    draw();
  });
  source.addEventListener("reset", () => loadSnapshot().then(draw, lose));
  source.addEventListener("error", () => lose());
}

// The browser would retry by itself, but not after a refusal; one rule for both, with a growing pause.
function lose(error) {
  source?.close();
  source = null;
  // What fetch itself throws means only that nobody answered.
  failure = error && !(error instanceof TypeError) ? error.message : "";
  isLost = true;
  const pause = BACK_OFF_MS[Math.min(attempts, BACK_OFF_MS.length - 1)];
  attempts += 1;
  setTimeout(connect, pause);
  draw(true);
}

async function connect() {
  try {
    await loadSnapshot();
    failure = "";
    isLost = false;
    openStream();
  } catch (error) {
    lose(error);
  }
  draw(true);
}

/* ---- state ---- */

const dataAge = () => (receivedAt === null ? null : ageAtReceipt + (performance.now() - receivedAt) / 1000);

function state() {
  if (isLost) return "lost";
  if (store.tick === null) return isEmpty ? "empty" : "loading";
  if (dataAge() > STALE_AFTER_S) return "stale";
  if (isPaused && pausedView) return "paused";
  return "live";
}

const WORDS = { lost: "Disconnected", empty: "No data", loading: "Loading", stale: "Stale", paused: "Paused", live: "Live" };

function gatewayAge() {
  const ages = (store.tick?.sources ?? []).filter((one) => one.kind === "gateway").map((one) => one.age_s).filter(isNumber);
  return ages.length ? Math.max(...ages) : 0;
}

function drawState() {
  const now = state();
  const pulse = $("pulse");
  pulse.dataset.state = now;
  if ($("pulse-word").textContent !== WORDS[now]) $("pulse-word").textContent = WORDS[now];
  const old = now === "paused" ? pausedView.age + (performance.now() - pausedView.at) / 1000 : dataAge();
  $("pulse-age").textContent = old === null ? "" : `${old + gatewayAge() < 10 ? fixed(old + gatewayAge(), 1) : count(old + gatewayAge())} s old`;
  pulse.setAttribute("aria-pressed", String(isPaused));
  const fleet = now === "live" || now === "paused" ? store.tick.fleet : null;
  $("state").dataset.tone = fleet?.tone ?? "none";
  const word = fleet?.word ?? { stale: "Unknown", lost: "Unknown", empty: "No data", loading: "…" }[now];
  if ($("state-word").textContent !== word) $("state-word").textContent = word;
  $("state-why").textContent = fleet?.why ?? "No fresh figures, so nothing can be said.";
  document.body.dataset.live = now;
  const isCold = now === "lost" || now === "stale";
  const sources = store.tick?.sources ?? [];
  for (const panel of document.querySelectorAll("[data-panel]")) {
    const kind = ["wan", "relay"].includes(panel.dataset.panel) ? "observer" : "gateway";
    const mine = sources.filter((one) => one.kind === kind);
    const oldest = mine.length && mine.every((one) => one.stale) ? Math.max(...mine.map((one) => one.age_s)) : null;
    panel.dataset.state = isCold || oldest !== null ? "stale" : "";
    panel.querySelector(".panel-age").textContent = isCold ? (old === null ? "" : `${age(old)} old`) : oldest !== null ? `${age(oldest)} old` : "";
  }
  for (const tile of document.querySelectorAll(".tile")) tile.classList.toggle("is-stale", isCold);
  for (const control of document.querySelectorAll("#panel-knobs fieldset, .demo fieldset")) control.disabled = now === "lost";
  drawNotice(now, old);
}

function drawNotice(now, old) {
  const notice = $("notice");
  const retry = element("button", { type: "button", class: "button small", "data-retry": "" }, "Retry now");
  const say = (tone, title, text, button) => {
    const key = `${tone}/${title}/${text}`;
    notice.hidden = false;
    if (notice.dataset.key === key) return;
    notice.dataset.key = key;
    notice.dataset.tone = tone;
    notice.replaceChildren(element("span", {}, element("b", {}, title), ` ${text}`), ...(button ? [button] : []));
  };
  const stale = (store.tick?.sources ?? []).filter((one) => one.stale);
  if (now === "lost") say("bad", "Disconnected.", `${failure || "The server does not answer."} ${store.tick ? "The figures below are not live; controls" : "Controls"} are locked until it is back.`, retry);
  else if (now === "stale") say("warn", "Stale.", `No figure has arrived since ${clock(Date.now() / 1000 - old, true)} UTC: the telemetry consumer is silent, while this page is connected.`);
  else if (now === "empty") say("", "No data yet.", "The telemetry consumer has not sent a first figure. The page fills by itself as soon as it does.");
  else if (stale.length) say("warn", "A source is silent.", stale.map((one) => `${one.name} for ${age(one.age_s)}`).join(", "));
  else if (store.tick?.fleet?.word === "Collapsing") say("bad", "Relay collapse is starting.", "RLD share rises while the WAN link and RLD are full: relay hides a link that no longer drains. Raise the relay threshold, or revert the last change.");
  else {
    notice.hidden = true;
    notice.dataset.key = "";
  }
}

/* ---- drawing ---- */

function limits(view) {
  const slots = view.nodes.filter((node) => node.role === "relay").reduce((sum, node) => sum + (node.slots ?? 0), 0);
  const ceiling = Number($("knob-state")?.dataset.relayCeiling);
  return {
    ...(view.tiles.slo ?? {}),
    links: Object.fromEntries(view.links.map((link) => [nameOf(link), link.rate_cap_bytes_per_s ?? link.capacity_bytes_per_s])),
    relay_slots: slots || null,
    relay_ceiling: slots && ceiling ? ceiling * slots : null,
  };
}

function draw(isForced = false) {
  if (document.hidden) return;
  if (isPaused && pausedView === null && store.tick) pausedView = { view: store.view(), rows: [...store.rows], at: performance.now(), age: dataAge() ?? 0 };
  drawState();
  if (store.tick === null) {
    veil(state() === "empty" ? "Nothing to show yet" : state() === "lost" ? "No connection" : "Loading");
    requests.empty.hidden = state() !== "empty";
    return;
  }
  veil("");
  const view = isPaused ? pausedView.view : store.view();
  const rows = isPaused ? pausedView.rows : store.rows;
  tiles.draw(view);
  requests.draw(rows, view);
  drawLinks(view);
  drawRelay(view);
  drawLegends(view);
  drawComparison(view);
  drawRug(rows);
  $("span-text").textContent = `${clock(view.start_s)} – ${clock(view.end_s)} UTC`;
  $("span").querySelector("b").textContent = `${Math.round((view.end_s - view.start_s) / 60)} min`;
  const now = performance.now();
  if (!isForced && now - lastChartDraw < CHART_PERIOD_MS - 60) return;
  if (isPaused && !isForced) return;
  lastChartDraw = now;
  const bounds = limits(view);
  for (const chart of charts) if (chart.isVisible) chart.draw(view, bounds);
  drawScale();
}

function veil(text) {
  for (const one of document.querySelectorAll(".veil")) {
    one.hidden = text === "";
    one.textContent = text;
  }
}

function shownIndex(view) {
  if (pointer !== null) return Math.min(view.slots.length - 1, Math.floor(pointer * ((view.end_s - view.start_s) / view.slot_s)));
  // The slot that still fills counts too few; the one before it is whole.
  return Math.max(0, view.slots.length - 2);
}

const FORMATS = {
  seconds,
  milliseconds,
  count,
  per_minute: (value, view) => (isNumber(value) ? count(Math.round((value * 60) / view.slot_s)) : "–"),
};

function drawLegends(view) {
  const slot = view.slots[shownIndex(view)];
  for (const key of document.querySelectorAll("[data-path]")) {
    const path = key.dataset.path.split(".");
    const value = at(slot, path);
    const [format, of] = key.dataset.format.split(":");
    if (format === "share") {
      const all = Object.values(slot?.[of] ?? {}).reduce((sum, one) => sum + (one ?? 0), 0);
      key.textContent = all ? percent(value / all) : "–";
    } else key.textContent = FORMATS[format](value, view);
  }
  drawGutter(view);
}

function drawGutter(view) {
  const index = shownIndex(view);
  const isPointed = pointer !== null;
  const chosen = (isPointed ? view.slots.slice(Math.max(0, index - 1), index + 1) : view.slots.slice(-30)).filter((slot) => slot?.buckets);
  const counts = Array.from({ length: 7 }, (_, b) => chosen.reduce((sum, slot) => sum + slot.buckets[b], 0));
  const all = counts.reduce((a, b) => a + b, 0);
  const heat = charts.find((chart) => chart.id === "heat");
  const isShare = heat?.cells !== "count";
  document.querySelector("[data-part=share-head]").textContent = isShare ? "share" : "count";
  for (const row of document.querySelectorAll("[data-bucket]")) {
    const b = Number(row.dataset.bucket);
    const slowest = Math.max(-1, ...chosen.map((slot) => slot.bucket_ttft_p99?.[b] ?? -1));
    const slo = view.tiles.slo?.ttft_p99_s;
    row.children[0].replaceChildren(...(all ? (isShare ? [percent(counts[b] / all), " ", unit("%")] : [count(counts[b])]) : ["–"]));
    row.children[1].replaceChildren(...(slowest >= 0 ? [seconds(slowest), " ", unit("s")] : ["–"]));
    row.children[1].className = isNumber(slo) && slowest > slo ? "over-slo" : "";
  }
}

function drawScale() {
  const heat = charts.find((chart) => chart.id === "heat");
  if (heat?.scale) document.querySelector("[data-part=scale-high]").textContent = heat.cells === "share" ? `${fixed(heat.scale, 0)} %` : count(heat.scale);
  if (heat?.cell_s) document.querySelector("#panel-heat .unit").textContent = `${heat.cells === "share" ? "%" : "requests"} per ${heat.cell_s} s`;
  document.querySelector("[data-part=scale-low]").textContent = heat?.cells === "count" ? "0" : "0 %";
}

function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, ...value]) => [element("dt", {}, name), element("dd", {}, ...value)]));
}

function drawLinks(view) {
  for (const holder of document.querySelectorAll("[data-link]")) {
    const link = view.links.find((one) => nameOf(one) === holder.dataset.link);
    if (!link) continue;
    const slot = view.slots[shownIndex(view)];
    const used = at(slot, ["links", holder.dataset.link]);
    const capacity = link.rate_cap_bytes_per_s ?? link.capacity_bytes_per_s;
    const ratio = used && capacity ? used.bytes_per_s / capacity : null;
    const queue = bytes(used?.queued_bytes ?? link.queued_bytes);
    const flowCap = link.flow_cap_bytes_per_s;
    pairs(holder.querySelector("dl"), [
      ["use", element("b", { class: ratio >= 0.95 ? "worse" : null }, `${percent(ratio, 0)} %`), " ", element("span", { class: "dim" }, fixed(megabits(used?.bytes_per_s), 1))],
      ["direct", fixed(megabits(used?.direct_bytes_per_s), 1), " ", unit("Mb/s")],
      ["relay", fixed(megabits(used?.relay_bytes_per_s), 1), " ", unit("Mb/s")],
      ["queue", queue[0], " ", unit(queue[1])],
      ["flows", count(used?.flows ?? link.flows)],
      ["RTT", milliseconds(link.rtt_s), " ", unit("ms")],
      ["capacity", fixed(megabits(capacity), 0), " ", unit("Mb/s")],
      ["per flow", flowCap ? fixed(megabits(flowCap), 0) : "no cap", " ", unit(flowCap ? "Mb/s" : "")],
    ]);
  }
}

function drawRelay(view) {
  const nodes = view.nodes.filter((node) => node.role === "relay");
  const ceiling = Number($("knob-state")?.dataset.relayCeiling) || null;
  $("relay-nodes").replaceChildren(...nodes.map((node) => {
    const isDown = node.state === "unreachable" || node.stale;
    const ratio = node.slots ? Math.min(1, node.running / node.slots) : 0;
    const svg = shape("svg", { "aria-hidden": "true" }, shape("rect", { class: "used", width: `${100 * ratio}%`, height: 6, rx: 3 }));
    if (ceiling) svg.append(shape("line", { class: "tick", x1: `${100 * ceiling}%`, x2: `${100 * ceiling}%`, y1: -3, y2: 9 }));
    return element("div", { class: "node-row" }, element("span", { title: nameOf(node) }, nameOf(node)),
      element("span", { class: "meter", title: `${percent(ratio, 0)} % of slots` }, svg),
      element("span", {}, ...(isDown ? [element("span", { class: "worse" }, "down")] : [count(node.running), element("span", { class: "dim" }, `+${count(node.waiting)}`)])));
  }));
  if (!nodes.length) $("relay-nodes").replaceChildren(element("p", { class: "dim" }, "No relay node has reported."));
  const slots = nodes.reduce((sum, node) => sum + (node.slots ?? 0), 0);
  const recent = view.slots.slice(-30).filter(Boolean);
  const relayed = recent.reduce((sum, slot) => sum + (slot.pipelines?.relay ?? 0), 0);
  const eager = recent.reduce((sum, slot) => sum + (slot.eager_tokens ?? 0), 0);
  const leased = nodes.reduce((sum, node) => sum + (node.leased_bytes ?? 0), 0);
  pairs($("relay-facts"), [
    ["Ceiling", ...(ceiling ? [`${percent(ceiling, 0)} %`, " ", unit(slots ? `= ${fixed(ceiling * slots, 1)} slots` : "")] : ["–"])],
    ["Eager per request", ...(relayed ? [fixed(eager / relayed, 0), " ", unit("tok")] : ["–"])],
    ["KV under lease", ...(() => { const [value, name] = bytes(leased); return [value, " ", unit(name)]; })()],
  ]);
}

const COMPARED = [
  ["TTFT P50", SERIES.ttft_p50, (v) => [seconds(v), " ", unit("s")], true],
  ["TTFT P90", SERIES.ttft_p90, (v) => [seconds(v), " ", unit("s")], true],
  ["TTFT P99", SERIES.ttft_p99, (v) => [seconds(v), " ", unit("s")], true],
  ["RLD share", SERIES.share, (v) => [percent(v), " ", unit("%")], null, "pt"],
  ["RLD load", SERIES.load, (v) => [percent(v, 0), " ", unit("%")], null, "pt"],
];

function drawComparison(view) {
  const body = document.querySelector("[data-compare] tbody");
  if (!body) return;
  const mark = view.marks.filter((one) => one.kind === "policy").at(-1);
  const caption = document.querySelector("[data-compare-caption]");
  caption.textContent = mark ? `Measured, before and since ${mark.label}` : "Measured now";
  body.replaceChildren(...COMPARED.map(([name, series, show, lessIsBetter, step = "s"]) => {
    const change = sinceMark(view, series);
    const recent = view.slots.slice(0, -1).map((slot) => series(slot, view)).findLast((value) => value !== null) ?? null;
    const now = change?.after ?? recent;
    let word = "–";
    let tone = "dim";
    if (change) {
      const delta = change.after - change.before;
      const isSame = Math.abs(delta) <= SAME * Math.max(Math.abs(change.before), 1e-9);
      word = isSame ? "≈ same" : `${delta < 0 ? "▼" : "▲"} ${show(Math.abs(delta))[0]} ${step}${lessIsBetter === null ? "" : delta < 0 === lessIsBetter ? " ✓" : " !"}`;
      if (!isSame && lessIsBetter !== null) tone = delta < 0 === lessIsBetter ? "better" : "worse";
    }
    const cells = (value) => (value === null || value === undefined ? ["–"] : show(value));
    return element("tr", {}, element("td", {}, name), element("td", {}, ...cells(change?.before)), element("td", {}, ...cells(now)), element("td", { class: tone }, word));
  }));
}

/* ---- panels ---- */

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.find((one) => one.element === entry.target);
    if (!chart) continue;
    chart.isVisible = entry.isIntersecting;
    if (chart.isVisible && store.tick) chart.draw(isPaused && pausedView ? pausedView.view : store.view(), limits(store.view()));
  }
  drawScale();
}, { rootMargin: "120px" });

const cross = crosshair(() => charts.filter((chart) => chart.isVisible && chart.isDrawn), (fraction) => {
  pointer = fraction;
  if (store.tick === null) return;
  const view = isPaused && pausedView ? pausedView.view : store.view();
  cross.show(fraction, view);
  drawLegends(view);
  drawLinks(view);
});

function addChart(holder, id, template, link) {
  const chart = new Chart(holder, id, template, link);
  charts.push(chart);
  seen.observe(holder);
  cross.attach(chart);
  return chart;
}

function syncLinks() {
  const names = (store.tick?.links ?? []).map(nameOf);
  const holder = $("links");
  if (names.join() === holder.dataset.names) return;
  holder.dataset.names = names.join();
  holder.dataset.count = names.length;
  for (const chart of charts.filter((one) => one.id === "wan")) seen.unobserve(chart.element);
  charts = charts.filter((one) => one.id !== "wan");
  holder.replaceChildren(...(store.tick.links ?? []).map((link, index) => {
    const plot = element("div", { class: "chart chart-link", role: "img", "aria-label": `Use of link ${nameOf(link)} over time` });
    const title = element("h3", {}, ...(link.source ? [`${link.source} → ${link.target}`] : [nameOf(link)]));
    const template = structuredClone(config.figures.wan);
    if (index < names.length - 1) Object.assign(template.layout.xaxis, { showticklabels: false, ticks: "" });
    addChart(plot, "wan", template, nameOf(link));
    return element("div", { class: "link", "data-link": nameOf(link) }, plot, element("div", { class: "readout" }, title, element("dl", { class: "facts" })));
  }));
}

const panelCharts = (panel) => charts.filter((chart) => panel.contains(chart.element));

function tableOf(panel, newestFirst, limit) {
  const view = store.view();
  const columns = panelCharts(panel).flatMap((chart) => columnsOf(chart, view));
  let rows = view.times.map((t, i) => [t, ...columns.map((column) => column.values[i])]);
  if (newestFirst) rows = rows.reverse();
  return { head: ["Time, UTC", ...columns.map((column) => column.name)], rows: rows.slice(0, limit ?? rows.length) };
}

function toggleTable(panel, button) {
  const isTable = !panel.classList.contains("as-table");
  const height = panel.querySelector(".panel-body").offsetHeight;
  panel.classList.toggle("as-table", isTable);
  button.setAttribute("aria-pressed", String(isTable));
  const holder = panel.querySelector(".table-view");
  holder.hidden = !isTable;
  holder.style.height = `${height}px`;
  if (!isTable) return draw(true);
  const { head, rows } = tableOf(panel, true, 40);
  const cell = (value) => (value === null ? "no data" : fixed(value, Number.isInteger(value) ? 0 : 2));
  holder.tabIndex = 0;
  holder.replaceChildren(element("table", { class: "table" },
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map(([t, ...values]) => element("tr", {}, element("td", {}, clock(t, true)), ...values.map((value) => element("td", {}, cell(value))))))));
}

function save(name, href) {
  const link = element("a", { href, download: name });
  link.click();
}

function saveCsv(panel) {
  const { head, rows } = tableOf(panel, false);
  const quoted = head.map((name) => `"${name.replaceAll('"', '""')}"`);
  const lines = rows.map(([t, ...values]) => [new Date(t * 1000).toISOString(), ...values.map((value) => value ?? "")].join(","));
  const url = URL.createObjectURL(new Blob([[quoted.join(","), ...lines].join("\n"), "\n"], { type: "text/csv" }));
  save(`${panel.dataset.panel}.csv`, url);
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function savePng(panel) {
  for (const chart of panelCharts(panel)) {
    if (!chart.isDrawn) continue;
    const { clientWidth: width, clientHeight: height } = chart.element;
    save(`${panel.dataset.panel}.png`, await window.Plotly.toImage(chart.picture(), { format: "png", width, height, scale: 2 }));
  }
}

function openWaterfall(row) {
  $("waterfall-body").replaceChildren(...waterfall(row, config));
  $("waterfall-title").replaceChildren(pipe(row), element("span", { class: "dim" }, clock(row.at_s, true), " UTC"));
  drawer.showModal();
}

function setPaused(value) {
  isPaused = value;
  pausedView = null;
  draw(true);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const panel = button.closest("[data-panel]");
  if (button.dataset.action === "pause") setPaused(!isPaused);
  if (button.dataset.action === "table") toggleTable(panel, button);
  if (button.dataset.action === "csv") saveCsv(panel);
  if (button.dataset.action === "png") savePng(panel);
  if ("retry" in button.dataset) {
    attempts = 0;
    connect();
  }
  if (button.dataset.cells) {
    for (const one of document.querySelectorAll("[data-cells]")) one.setAttribute("aria-pressed", String(one === button));
    charts.find((chart) => chart.id === "heat").cells = button.dataset.cells;
    draw(true);
  }
});
document.addEventListener("pdd:pause", () => setPaused(!isPaused));
document.addEventListener("pdd:theme", () => {
  forgetColours();
  draw(true);
});
document.addEventListener("visibilitychange", () => document.hidden || draw(true));
document.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-CSRF-Token"] = document.querySelector("meta[name=csrf]").content;
});
document.addEventListener("htmx:responseError", (event) => event.detail.xhr.status === 401 && location.assign("/login"));
document.addEventListener("htmx:afterSettle", () => {
  wireKnobs();
  if (store.tick) draw(true);
});

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => draw(true), 120);
});

for (const holder of document.querySelectorAll("[data-figure]")) addChart(holder, holder.dataset.figure, config.figures[holder.dataset.figure], null);
setInterval(() => state() === "live" || draw(), 1000);
connect();
