// The Topology page: fixed places from the inventory, figures from the feed; a click opens what can be done.
import { Connection } from "./connection.js";
import { age, bytes, count, element, fixed, isNumber, megabits, milliseconds, percent, shape, unit } from "./format.js";
import { drawBar } from "./status.js";
import { Store } from "./store.js";
import { t } from "./strings.js";

const LAYOUT_MS = 5000;
const KEPT_TICKS = 300;
const STEPS = [0.4, 0.6, 0.8];
const WIDEST = 20;

const $ = (id) => document.getElementById(id);
const map = $("map");
const side = $("side");
let config = JSON.parse($("topology-config").textContent);
const store = new Store();
const series = new Map();
let isPaused = false;
let newest = null;

const connection = new Connection(store, { onTick: remember, onChange: () => { remember(store.tick); } });

// A node's own past since this page was opened; the feed keeps only sums of nodes.
function remember(tick) {
  if (!tick) return draw();
  for (const node of tick.nodes ?? []) keep(`node/${node.name}`, { running: node.running, waiting: node.waiting, resident: node.resident_tokens });
  for (const link of tick.links ?? []) keep(`link/${link.name}`, { rate: megabits(link.bytes_per_s), flows: link.flows, queue: link.queued_bytes, rtt: link.rtt_s });
  if (!isPaused) newest = tick;
  return draw();
}

function keep(key, figures) {
  const kept = series.get(key) ?? [];
  kept.push(figures);
  if (kept.length > KEPT_TICKS) kept.shift();
  series.set(key, kept);
}

const nodeNow = (name) => newest?.nodes?.find((one) => one.name === name);
const linkNow = (name) => newest?.links?.find((one) => one.name === name);
const capacityOf = (link) => link.rate_cap_bytes_per_s ?? link.capacity_bytes_per_s;

function selected() {
  const asked = new URLSearchParams(location.search);
  return asked.get("node") ? { kind: "node", name: asked.get("node") } : asked.get("link") ? { kind: "link", name: asked.get("link") } : null;
}

function open(kind, name) {
  const asked = new URLSearchParams(location.search);
  asked.delete("node");
  asked.delete("link");
  if (kind) asked.set(kind, name);
  history.pushState({}, "", location.pathname + (asked.size ? `?${asked}` : ""));
  show();
}

function show() {
  const chosen = selected();
  side.hidden = chosen === null;
  for (const one of map.querySelectorAll("[data-name]")) one.classList.toggle("is-selected", chosen !== null && one.dataset.kind === chosen.kind && one.dataset.name === chosen.name);
  if (chosen) window.htmx.ajax("GET", `/topology/panel?${chosen.kind}=${encodeURIComponent(chosen.name)}`, { target: "#side", swap: "innerHTML" });
  else side.replaceChildren();
}

const text = (x, y, value, className = "", more = {}) => shape("text", { x, y, class: className, ...more }, value);

function part(kind, name, className, label, ...children) {
  const group = shape("g", { class: className, "data-kind": kind, "data-name": name, tabindex: 0, role: "button", "aria-label": label }, ...children);
  const act = () => open(kind, name);
  group.addEventListener("click", act);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  });
  return group;
}

function drawEdge(edge, widest) {
  const width = (value) => 2 + WIDEST * (value / widest);
  return part("link", edge.name, "edge", t("topology.link_label", { source: edge.source, target: edge.target }),
    shape("path", { d: edge.path, class: "edge-room", "stroke-width": width(edge.capacity_bytes_per_s) + 2 }),
    shape("path", { d: edge.path, class: "edge-flow", "stroke-width": 2, "marker-end": "url(#arrow)" }),
    shape("path", { d: edge.path, class: "edge-hit" }));
}

// What is written on a link stands beside it, so that its name as a button does not change with every figure.
function drawLabel(edge) {
  const label = shape("g", { class: "edge-label", "data-label": edge.name, "aria-hidden": "true" },
    shape("rect", { class: "edge-box", x: edge.label_x - 76, y: edge.label_y - 22, width: 152, height: 42, rx: 4 }),
    text(edge.label_x, edge.label_y - 4, "", "edge-rate", { "text-anchor": "middle" }),
    text(edge.label_x, edge.label_y + 12, "", "edge-note", { "text-anchor": "middle" }));
  label.addEventListener("click", () => open("link", edge.name));
  return label;
}

function drawTile(tile) {
  const { x, y } = tile;
  const size = config.tile;
  return part("node", tile.name, `tile-node role-${tile.role}`, tile.name,
    shape("title", {}, tile.name),
    shape("rect", { x, y, width: size, height: size, rx: 3, class: "tile-ground" }),
    shape("rect", { x, y: y + size, width: size, height: 0, rx: 2, class: "tile-fill" }),
    shape("rect", { x, y, width: size, height: size, rx: 3, class: "tile-edge" }),
    text(x + size / 2, y + size / 2 + 4, "", "tile-glyph", { "text-anchor": "middle" }));
}

function drawCard(card) {
  const { x, y } = card;
  const group = shape("g", { class: "site-card" },
    shape("rect", { x, y, width: config.card, height: card.height, rx: 8, class: "site-ground" }),
    text(x + 14, y + 27, card.name, "site-name"),
    text(x + 24 + card.name.length * 9, y + 27, card.label, "site-label"),
    text(x + config.card - 14, y + 27, "", "site-fresh", { "text-anchor": "end", "data-site": card.name }));
  if (card.gateways.length) group.append(text(x + 14, y + 60, card.gateways.join("  ·  "), "site-gateways"));
  for (const one of card.groups) {
    group.append(
      shape("line", { x1: x, x2: x + config.card, y1: one.y, y2: one.y, class: "site-rule" }),
      text(x + 14, one.y + 18, t(`role.short_${one.role}`), "group-role"),
      text(x + 44, one.y + 18, t("topology.nodes", { count: one.tiles.length }), "group-count"),
      text(x + config.card - 14, one.y + 18, "", "group-load", { "text-anchor": "end", "data-group": `${card.name}/${one.role}` }),
      ...one.tiles.map(drawTile));
  }
  return group;
}

function build() {
  const marker = shape("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 12, markerHeight: 12, markerUnits: "userSpaceOnUse", orient: "auto" }, shape("path", { d: "M0 0L8 4L0 8z" }));
  const hatch = shape("pattern", { id: "map-hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, shape("rect", { width: 6, height: 6, class: "hatch-ground" }), shape("rect", { width: 3, height: 6, class: "hatch-line" }));
  const rest = shape("pattern", { id: "map-drain", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, shape("rect", { width: 1.5, height: 5, class: "drain-line" }));
  const widest = Math.max(1, ...config.edges.map((edge) => edge.capacity_bytes_per_s));
  map.setAttribute("viewBox", `0 0 ${config.width} ${config.height}`);
  map.replaceChildren(shape("defs", {}, marker, hatch, rest), ...config.edges.flatMap((edge) => [drawEdge(edge, widest), drawLabel(edge)]), ...config.cards.map(drawCard));
  map.dataset.built = JSON.stringify(config);
}

function say(node, value) {
  if (node && node.textContent !== value) node.textContent = value;
}

function fillEdges() {
  const widest = Math.max(1, ...config.edges.map((edge) => edge.capacity_bytes_per_s));
  for (const edge of map.querySelectorAll(".edge")) {
    const link = linkNow(edge.dataset.name);
    const isDown = !link || link.stale || link.state !== "up";
    const ratio = link && isNumber(link.bytes_per_s) ? link.bytes_per_s / capacityOf(link) : null;
    edge.dataset.use = ratio === null ? "" : String(STEPS.filter((step) => ratio >= step).length);
    edge.classList.toggle("is-down", isDown);
    edge.querySelector(".edge-flow").setAttribute("stroke-width", String(2 + WIDEST * ((link?.bytes_per_s ?? 0) / widest)));
    const label = map.querySelector(`[data-label="${CSS.escape(edge.dataset.name)}"]`);
    say(label.querySelector(".edge-rate"), ratio === null ? t("topology.no_data") : t("topology.rate", { rate: fixed(megabits(link.bytes_per_s), 1), use: percent(ratio, 0) }));
    say(label.querySelector(".edge-note"), link ? t("topology.note", { capacity: fixed(megabits(capacityOf(link)), 0), rtt: milliseconds(link.rtt_s) }) : "");
  }
}

function glyphOf(tile, node) {
  if (!node || node.stale) return ["?", "stale"];
  if (node.state === "unreachable") return ["×", "down"];
  if (tile.state !== "ready" || node.state === "draining") return ["↓", "draining"];
  return ["", "ready"];
}

function fillNodes() {
  const tiles = config.cards.flatMap((card) => card.groups.flatMap((one) => one.tiles));
  for (const group of map.querySelectorAll(".tile-node")) {
    const tile = tiles.find((one) => one.name === group.dataset.name);
    const node = nodeNow(tile.name);
    const [glyph, condition] = glyphOf(tile, node);
    const used = node && isNumber(node.running) && node.slots ? Math.min(1, node.running / node.slots) : 0;
    group.dataset.condition = condition;
    const fill = group.querySelector(".tile-fill");
    fill.setAttribute("height", String(config.tile * used));
    fill.setAttribute("y", String(tile.y + config.tile * (1 - used)));
    say(group.querySelector(".tile-glyph"), glyph);
    const label = t("topology.node_label", { name: tile.name, condition: t(`topology.is_${condition}`), used: percent(used, 0) });
    say(group.querySelector("title"), label);
    group.setAttribute("aria-label", label);
  }
}

function fillCards() {
  for (const card of config.cards) {
    const all = card.groups.flatMap((one) => one.tiles);
    const fresh = all.filter((tile) => glyphOf(tile, nodeNow(tile.name))[1] === "ready").length;
    const note = map.querySelector(`[data-site="${CSS.escape(card.name)}"]`);
    say(note, all.length ? t("topology.fresh", { fresh, all: all.length }) : "");
    note.dataset.tone = fresh === all.length ? "ok" : "warn";
    for (const one of card.groups) {
      const nodes = one.tiles.map((tile) => nodeNow(tile.name)).filter((node) => node && isNumber(node.running));
      const sum = (name) => nodes.reduce((total, node) => total + (node[name] ?? 0), 0);
      const load = nodes.length ? t("topology.load", { running: count(sum("running")), slots: count(sum("slots")), waiting: count(sum("waiting")) }) : t("topology.no_data");
      say(map.querySelector(`[data-group="${CSS.escape(`${card.name}/${one.role}`)}"]`), load);
    }
  }
}

function sparkRow(name, key, figure, value) {
  const values = (series.get(key) ?? []).map((one) => one[figure]).filter(isNumber);
  const high = Math.max(...values, 0) || 1;
  const points = values.map((one, index) => `${((index / Math.max(1, values.length - 1)) * 118).toFixed(1)},${(17 - (one / high) * 15).toFixed(1)}`);
  const line = shape("svg", { width: 120, height: 20, "aria-hidden": "true", class: "spark-line" }, ...(points.length > 1 ? [shape("polyline", { points: points.join(" ") })] : []));
  return element("div", { class: "spark-row" }, element("span", { class: "dim" }, name), line, element("b", {}, ...value));
}

function fillSide() {
  const chosen = selected();
  const [head, rows, state] = ["head", "rows", "state"].map((name) => side.querySelector(`[data-live-${name}]`));
  if (!chosen || !head) return;
  const key = `${chosen.kind}/${chosen.name}`;
  if (chosen.kind === "link") return fillLink(linkNow(chosen.name), key, head, rows, state);
  const node = nodeNow(chosen.name);
  const tile = config.cards.flatMap((card) => card.groups.flatMap((one) => one.tiles)).find((one) => one.name === chosen.name);
  const condition = tile ? glyphOf(tile, node)[1] : "stale";
  const tone = { ready: "ok", draining: "warn", stale: "warn", down: "bad" }[condition];
  state.replaceChildren(element("span", { class: `badge ${tone}` }, t(`topology.is_${condition}`)));
  if (!node || !isNumber(node.running)) return head.replaceChildren(element("p", { class: "dim" }, t("topology.no_figures"))), rows.replaceChildren();
  head.replaceChildren(element("p", { class: "hero" }, String(node.running), " ", unit(t("topology.of_slots", { slots: node.slots, use: percent(node.slots ? node.running / node.slots : null, 0) }))), meter(node.slots ? node.running / node.slots : 0));
  const leased = bytes(node.leased_bytes);
  rows.replaceChildren(
    sparkRow(t("topology.running"), key, "running", [count(node.running)]),
    sparkRow(t("topology.waiting"), key, "waiting", [count(node.waiting)]),
    sparkRow(t("topology.resident"), key, "resident", [count(node.resident_tokens), " ", unit("tok")]),
    element("div", { class: "spark-row" }, element("span", { class: "dim" }, t("topology.leased")), element("span"), element("b", {}, leased[0], " ", unit(leased[1]))),
    element("div", { class: "spark-row" }, element("span", { class: "dim" }, t("topology.age")), element("span"), element("b", {}, age(node.age_s))));
  return undefined;
}

function meter(ratio) {
  return shape("svg", { class: "side-meter", height: 8, "aria-hidden": "true" }, shape("rect", { class: "meter-room", width: "100%", height: 8, rx: 4 }), shape("rect", { class: "meter-used", width: `${Math.min(100, 100 * ratio)}%`, height: 8, rx: 4 }));
}

function fillLink(link, key, head, rows, state) {
  const isUp = link && !link.stale && link.state === "up";
  state.replaceChildren(element("span", { class: `badge ${isUp ? "ok" : "bad"}` }, t(isUp ? "topology.up" : "topology.down")));
  if (!link) return head.replaceChildren(element("p", { class: "dim" }, t("topology.no_figures"))), rows.replaceChildren();
  const ratio = isNumber(link.bytes_per_s) ? link.bytes_per_s / capacityOf(link) : null;
  head.replaceChildren(element("p", { class: "hero" }, isNumber(link.bytes_per_s) ? fixed(megabits(link.bytes_per_s), 1) : "–", " ", unit(t("topology.of_capacity", { capacity: fixed(megabits(capacityOf(link)), 0), use: percent(ratio, 0) }))), meter(ratio ?? 0));
  const queue = bytes(link.queued_bytes);
  rows.replaceChildren(
    sparkRow(t("topology.use"), key, "rate", [fixed(megabits(link.bytes_per_s), 1), " ", unit("Mb/s")]),
    sparkRow(t("topology.rtt"), key, "rtt", [milliseconds(link.rtt_s), " ", unit("ms")]),
    sparkRow(t("topology.flows"), key, "flows", [count(link.flows)]),
    sparkRow(t("topology.queue"), key, "queue", [queue[0], " ", unit(queue[1])]));
  return undefined;
}

function draw() {
  if (document.hidden) return;
  const now = connection.state === "live" && isPaused ? "paused" : connection.state;
  const age_s = connection.age_s;
  drawBar({ now, age_s: age_s === null ? null : age_s + connection.gatewayAge_s, isPaused, fleet: store.tick?.fleet ?? null });
  const isCold = now === "lost" || now === "stale";
  document.querySelector(".canvas").dataset.state = isCold ? "stale" : "";
  say(document.querySelector(".canvas .panel-age"), isCold && age_s !== null ? t("common.panel_age", { age: age(age_s) }) : "");
  const notice = $("notice");
  notice.hidden = now !== "lost";
  notice.dataset.tone = "bad";
  if (now === "lost") notice.textContent = `${t("common.lost")}. ${connection.failure || t("common.failed_network")}`;
  for (const button of side.querySelectorAll(".side-actions button")) button.disabled = now === "lost";
  fillEdges();
  fillNodes();
  fillCards();
  fillSide();
}

async function refresh() {
  const reply = document.hidden ? null : await fetch("/topology/layout").catch(() => null);
  if (reply?.ok) {
    config = await reply.json();
    if (JSON.stringify(config) !== map.dataset.built) {
      build();
      const chosen = selected();
      if (chosen) map.querySelector(`[data-kind=${chosen.kind}][data-name="${CSS.escape(chosen.name)}"]`)?.classList.add("is-selected");
    }
    draw();
  }
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-action=close-side]")) open(null);
  if (event.target.closest("[data-action=pause]")) document.dispatchEvent(new CustomEvent("pdd:pause"));
});
document.addEventListener("pdd:pause", () => {
  isPaused = !isPaused;
  if (!isPaused) newest = store.tick;
  draw();
});
document.addEventListener("htmx:afterSettle", draw);
document.addEventListener("topology-changed", refresh);
document.addEventListener("visibilitychange", draw);
addEventListener("popstate", show);
$("find").addEventListener("change", (event) => {
  const name = event.target.value.trim();
  const found = map.querySelector(`[data-name="${CSS.escape(name)}"]`);
  if (found) open(found.dataset.kind, name);
});

build();
show();
setInterval(refresh, LAYOUT_MS);
setInterval(() => connection.state === "live" || draw(), 1000);
connection.connect();
