// The numbers beside the charts: legends, gutters, links, relay nodes, and the comparison across the last change.
import { bytes, count, element, fixed, isNumber, megabits, milliseconds, percent, seconds, shape, unit } from "./format.js";
import { at } from "./store.js";
import { t } from "./strings.js";
import { nameOf, SAME, sinceMark, SERIES } from "./tiles.js";

const GUTTER_SLOTS = 30;
const $ = (id) => document.getElementById(id);

// The slot under the crosshair; else the newest whole one, as the one that still fills counts too few.
export function shownIndex(view, pointer) {
  if (pointer === null) return Math.max(0, view.slots.length - 2);
  return Math.min(view.slots.length - 1, Math.floor((pointer * (view.end_s - view.start_s)) / view.slot_s));
}

const FORMATS = {
  seconds,
  milliseconds,
  count: (value) => (isNumber(value) ? fixed(value, Number.isInteger(value) ? 0 : 1) : "–"),
  per_minute: (value, view) => (isNumber(value) ? count(Math.round((value * 60) / view.slot_s)) : "–"),
};

export function drawLegends(view, index) {
  const slot = view.slots[index];
  for (const key of document.querySelectorAll("[data-path]")) {
    const value = at(slot, key.dataset.path.split("."));
    const [format, of] = key.dataset.format.split(":");
    if (format === "share") {
      const all = Object.values(slot?.[of] ?? {}).reduce((sum, one) => sum + (one ?? 0), 0);
      key.textContent = all ? percent(value / all) : "–";
    } else key.textContent = FORMATS[format](value, view);
  }
}

export function drawGutter(view, index, isPointed, cells) {
  const window = isPointed ? view.slots.slice(Math.max(0, index - 1), index + 1) : view.slots.slice(-GUTTER_SLOTS);
  const known = window.filter((slot) => slot?.buckets);
  const counts = Array.from({ length: 7 }, (_, b) => known.reduce((sum, slot) => sum + slot.buckets[b], 0));
  const all = counts.reduce((a, b) => a + b, 0);
  const slo = view.tiles.slo?.ttft_p99_s;
  document.querySelector("[data-part=share-head]").textContent = t(`live.${cells}`);
  for (const row of document.querySelectorAll("[data-bucket]")) {
    const b = Number(row.dataset.bucket);
    const slowest = Math.max(-1, ...known.map((slot) => slot.bucket_ttft_p99?.[b] ?? -1));
    const amount = cells === "share" ? [percent(counts[b] / all), " ", unit("%")] : [count(counts[b])];
    row.children[0].replaceChildren(...(all ? amount : ["–"]));
    row.children[1].replaceChildren(...(slowest >= 0 ? [seconds(slowest), " ", unit("s")] : ["–"]));
    row.children[1].className = isNumber(slo) && slowest > slo ? "over-slo" : "";
  }
}

export function drawScale(heat) {
  if (!heat?.scale) return;
  const isShare = heat.cells === "share";
  document.querySelector("[data-part=scale-low]").textContent = isShare ? "0 %" : "0";
  document.querySelector("[data-part=scale-high]").textContent = isShare ? `${fixed(heat.scale, 0)} %` : count(heat.scale);
  document.querySelector("#panel-heat .unit").textContent = t(isShare ? "live.per_cell_share" : "live.per_cell_count", { seconds: heat.cell_s });
}

function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, ...value]) => [element("dt", {}, name), element("dd", {}, ...value)]));
}

const inMegabits = (value, digits = 1) => [fixed(megabits(value), digits), " ", unit("Mb/s")];

export function drawLinks(view, index) {
  for (const holder of document.querySelectorAll("[data-link]")) {
    const link = view.links.find((one) => nameOf(one) === holder.dataset.link);
    if (!link) continue;
    const used = at(view.slots[index], ["links", holder.dataset.link]);
    const capacity = link.rate_cap_bytes_per_s ?? link.capacity_bytes_per_s;
    const ratio = isNumber(used?.bytes_per_s) && capacity ? used.bytes_per_s / capacity : null;
    const queue = bytes(used?.queued_bytes ?? link.queued_bytes);
    const wait = used ? used.wait_s : link.wait_s;
    const share = element("b", { class: ratio >= 0.95 ? "worse" : null }, `${percent(ratio, 0)} %`);
    pairs(holder.querySelector("dl"), [
      [t("live.use"), share, " ", element("span", { class: "dim" }, fixed(megabits(used?.bytes_per_s), 1))],
      [t("live.direct"), ...inMegabits(used?.direct_bytes_per_s)],
      [t("live.relay"), ...inMegabits(used?.relay_bytes_per_s)],
      [t("live.queue"), queue[0], " ", unit(queue[1])],
      [t("live.waiting"), count(used?.queue_depth ?? link.queue_depth)],
      [t("live.wait"), ...(isNumber(wait) ? [seconds(wait), " ", unit("s")] : ["–"])],
      [t("live.flows"), count(used?.flows ?? link.flows)],
      [t("live.rtt"), milliseconds(link.rtt_s), " ", unit("ms")],
      [t("live.capacity"), ...inMegabits(capacity, 0)],
      [t("live.per_flow"), ...(link.flow_cap_bytes_per_s ? inMegabits(link.flow_cap_bytes_per_s, 0) : [t("live.no_cap")])],
    ]);
  }
}

function relayNode(node, ceiling) {
  const isDown = node.state === "unreachable" || node.stale;
  const ratio = node.slots ? Math.min(1, node.running / node.slots) : 0;
  const bar = shape("svg", { "aria-hidden": "true" }, shape("rect", { class: "used", width: `${100 * ratio}%`, height: 6, rx: 3 }));
  if (ceiling) bar.append(shape("line", { class: "tick", x1: `${100 * ceiling}%`, x2: `${100 * ceiling}%`, y1: -3, y2: 9 }));
  const load = isDown
    ? [element("span", { class: "worse" }, t(node.stale ? "live.silent" : "live.down"))]
    : [count(node.running), element("span", { class: "dim" }, `+${count(node.waiting)}`)];
  return element("div", { class: "node-row" },
    element("span", { title: nameOf(node) }, nameOf(node)),
    element("span", { class: "meter", title: t("live.of_slots", { share: percent(ratio, 0) }) }, bar),
    element("span", {}, ...load));
}

export function drawRelay(view, ceiling) {
  const nodes = view.nodes.filter((node) => node.role === "relay");
  const rows = nodes.map((node) => relayNode(node, ceiling));
  $("relay-nodes").replaceChildren(...(rows.length ? rows : [element("p", { class: "dim" }, t("live.no_relay_reported"))]));
  const sum = (list, read) => list.reduce((total, one) => total + (read(one) ?? 0), 0);
  const recent = view.slots.slice(-GUTTER_SLOTS).filter(Boolean);
  const relayed = sum(recent, (slot) => slot.pipelines?.relay);
  const slots = sum(nodes, (node) => node.slots);
  const holders = view.nodes.filter((node) => node.role === "prefill");
  const leased = bytes(sum(holders, (node) => node.leased_bytes));
  const stranded = sum(holders, (node) => node.stranded_bytes);
  const strandedAge = Math.max(0, ...holders.map((node) => node.stranded_age_s ?? 0));
  const room = slots ? t("live.is_slots", { count: fixed(ceiling * slots, 1) }) : "";
  pairs($("relay-facts"), [
    [t("live.ceiling"), ...(ceiling ? [`${percent(ceiling, 0)} %`, unit(room)] : ["–"])],
    [t("live.eager"), ...(relayed ? [fixed(sum(recent, (slot) => slot.eager_tokens) / relayed, 0), " ", unit("tok")] : ["–"])],
    [t("live.leased"), leased[0], " ", unit(leased[1])],
    ...(stranded ? [[t("live.stranded"), bytes(stranded)[0], " ", unit(t("live.stranded_unit", { unit: bytes(stranded)[1], age: fixed(strandedAge, 0) }))]] : []),
  ]);
}

const inSeconds = (value) => [seconds(value), " ", unit("s")];
const inPercent = (digits) => (value) => [percent(value, digits), " ", unit("%")];
const COMPARED = [
  { name: "TTFT P50", series: SERIES.ttft_p50, show: inSeconds, step: "s", lessIsBetter: true },
  { name: "TTFT P90", series: SERIES.ttft_p90, show: inSeconds, step: "s", lessIsBetter: true },
  { name: "TTFT P99", series: SERIES.ttft_p99, show: inSeconds, step: "s", lessIsBetter: true },
  { name: t("live.share_row"), series: SERIES.share, show: inPercent(1), step: "pt", lessIsBetter: null },
  { name: t("live.load_row"), series: SERIES.load, show: inPercent(0), step: "pt", lessIsBetter: null },
];

// [words, class]: better and worse carry a sign of their own, colour alone says nothing.
function verdict(change, { show, step, lessIsBetter }) {
  if (!change) return ["–", "dim"];
  const delta = change.after - change.before;
  if (Math.abs(delta) <= SAME * Math.max(Math.abs(change.before), 1e-9)) return [t("live.same"), "dim"];
  const text = `${delta < 0 ? "▼" : "▲"} ${show(Math.abs(delta))[0]} ${step}`;
  if (lessIsBetter === null) return [text, "dim"];
  return delta < 0 === lessIsBetter ? [`${text} ✓`, "better"] : [`${text} !`, "worse"];
}

export function drawComparison(view) {
  const mark = view.marks.filter((one) => one.kind === "policy").at(-1);
  document.querySelector("[data-compare-caption]").textContent = mark ? t("live.measured_since", { mark: mark.label }) : t("live.measured_now");
  const rows = COMPARED.map((row) => {
    const change = sinceMark(view, row.series);
    const newest = view.slots.slice(0, -1).map((slot) => row.series(slot, view)).findLast((value) => value !== null);
    const [words, tone] = verdict(change, row);
    const cell = (value) => element("td", {}, ...(isNumber(value) ? row.show(value) : ["–"]));
    return element("tr", {}, element("td", {}, row.name), cell(change?.before), cell(change?.after ?? newest), element("td", { class: tone }, words));
  });
  document.querySelector("[data-compare] tbody").replaceChildren(...rows);
}
