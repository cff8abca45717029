// The last requests as a table, and one of them as a waterfall.
import { age, count, element, fixed, isNumber, milliseconds, percent, seconds, shape, unit } from "./format.js";

const EDGES = [0.9, 0.93, 0.95, 0.97, 0.98, 0.99];
const SHOWN = 13;
const BEFORE_FIRST_TOKEN = ["queue", "prefill", "kv_relay", "kv_wan"];
const NAMES = { direct: "Direct", relay: "Relay", outlier: "Outlier", none: "None" };

const bucketOf = (hit) => EDGES.filter((edge) => hit >= edge).length;

// What each stage of a record is called here, and the colour that it shares with others.
const STAGES = {
  tokenize: ["Tokenize", "queue"],
  queue: ["Queue", "queue"],
  prefill: ["Prefill", "prefill"],
  kv_rdma: ["KV to RLD", "kv_relay"],
  kv_wan: ["KV over WAN", "kv_wan"],
  relay_decode: ["Relay decode", "relay"],
  handoff: ["Handoff", "main"],
  main_decode: ["Main decode", "main"],
};
const labelOf = (name) => STAGES[name]?.[0] ?? name.replaceAll("_", " ");
const familyOf = (name) => STAGES[name]?.[1] ?? "other";

function strip(row) {
  const width = 80;
  const svg = shape("svg", { class: "strip", viewBox: `0 0 ${width} 8`, preserveAspectRatio: "none", role: "img" });
  const end = row.ttft_s;
  if (!isNumber(end) || end <= 0) return svg;
  const told = [];
  for (const [name, from, to] of row.stages ?? []) {
    const family = familyOf(name);
    const until = Math.min(to, end);
    if (!BEFORE_FIRST_TOKEN.includes(family) || until <= from) continue;
    // A relayed request does not wait for the WAN: its first token comes from RLD.
    if (family === "kv_wan" && row.pipeline !== "direct") continue;
    const x = (from / end) * width;
    svg.append(shape("rect", { x, width: Math.max(0.5, ((until - from) / end) * width - 0.5), height: 8, class: `stage-${family}` }));
    told.push(`${labelOf(name)} ${seconds(until - from)} s`);
  }
  svg.setAttribute("aria-label", told.join(", "));
  return svg;
}

function reasonText(row, reasons) {
  const text = reasons[row.reason] ?? row.reason?.replaceAll("_", " ") ?? "";
  const transfer = isNumber(row.predicted_transfer_s) ? `${seconds(row.predicted_transfer_s)} s ` : "";
  return text.replace("{transfer} ", transfer);
}

export function pipe(row) {
  const name = NAMES[row.pipeline] ?? row.pipeline;
  return element("span", { class: `pipe pipe-${row.pipeline}` }, name);
}

const cell = (className, ...content) => element("td", { class: className }, ...content);

export class Requests {
  constructor(config, openWaterfall) {
    this.body = document.getElementById("requests");
    this.note = document.getElementById("requests-note");
    this.empty = document.getElementById("requests-empty");
    this.config = config;
    this.order = "newest";
    this.rows = new Map();
    const open = (target) => {
      const id = target.closest("tr")?.dataset.id;
      if (id && this.rows.has(id)) openWaterfall(this.rows.get(id));
    };
    this.body.addEventListener("click", (event) => open(event.target));
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter") open(event.target);
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const next = step && event.target.closest("tr")?.[step];
      if (next) {
        next.focus();
        event.preventDefault();
      }
    });
    for (const button of document.querySelectorAll("[data-order]")) {
      button.addEventListener("click", () => {
        this.order = button.dataset.order;
        for (const one of document.querySelectorAll("[data-order]")) one.setAttribute("aria-pressed", String(one === button));
        this.draw(this.last.rows, this.last.view, true);
      });
    }
  }

  draw(rows, view, isForced = false) {
    this.last = { rows, view };
    this.empty.hidden = rows.length > 0;
    // Rows that move under the pointer or the focus cannot be hit, so the table waits.
    if (!isForced && (this.body.matches(":hover") || this.body.contains(document.activeElement))) {
      const fresh = rows.filter((row) => !this.rows.has(row.id)).length;
      this.note.textContent = fresh ? `held, ${fresh} new` : "held";
      return;
    }
    const sorted = this.order === "newest" ? rows : [...rows].sort((a, b) => (b.ttft_s ?? -1) - (a.ttft_s ?? -1));
    const shown = sorted.slice(0, SHOWN);
    this.rows = new Map(rows.map((row) => [row.id, row]));
    this.note.textContent = this.order === "newest" ? "newest first" : `slowest of the last ${rows.length}`;
    this.body.replaceChildren(...shown.map((row) => this.#row(row, view)));
  }

  #row(row, view) {
    const slo = view.tiles.slo?.ttft_p99_s;
    const isOver = isNumber(slo) && row.ttft_s > slo;
    const hit = row.hit_rate;
    const failed = row.outcome && row.outcome !== "completed";
    const bucket = isNumber(hit) ? element("i", { class: `bucket b${bucketOf(hit)}` }) : null;
    return element(
      "tr",
      { "data-id": row.id, tabindex: 0 },
      cell("age hide-phone", age(view.now_s - row.at_s)),
      cell("", bucket, ...(isNumber(hit) ? [percent(hit), " ", unit("%")] : ["–"])),
      cell("number hide-phone", count(row.uncached_tokens), " ", unit("tok")),
      cell("", pipe(row), element("span", { class: failed ? "worse" : "dim" }, failed ? row.outcome.replaceAll("_", " ") : reasonText(row, this.config.reasons))),
      cell("number", ...(isNumber(row.ttft_s) ? [element("span", { class: isOver ? "over-slo" : "" }, element("b", {}, seconds(row.ttft_s))), " ", unit("s")] : ["–"])),
      cell("hide-phone", strip(row)),
      cell("number hide-phone", milliseconds(row.max_itl_s), " ", unit("ms")),
    );
  }
}

function figure(name, value, of) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, " ", unit(of)));
}

// What was measured, and beside it what had been predicted.
const pair = (measured, predicted, format, of) =>
  isNumber(measured) && isNumber(predicted) ? `${format(measured)} ${of}, predicted ${format(predicted)} ${of}` : "";

const BOUND_SOURCES = { client: "asked for", history: "from the tenant's history" };
const boundText = (row) =>
  row.output_bound_source in BOUND_SOURCES ? `${count(row.output_bound_tokens)} tok, ${BOUND_SOURCES[row.output_bound_source]}` : "";

export function waterfall(row, config) {
  const stages = row.stages ?? [];
  const end = Math.max(row.e2e_s ?? 0, ...stages.map(([, , to]) => to), 0.001);
  const bars = stages.map(([name, from, to]) => {
    const svg = shape("svg", { viewBox: "0 0 200 12", preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(shape("rect", { x: (200 * from) / end, width: Math.max(1, (200 * (to - from)) / end), y: 2, height: 8, class: `stage-${familyOf(name)}` }));
    if (isNumber(row.ttft_s)) {
      const x = (200 * row.ttft_s) / end;
      svg.append(shape("path", { class: "ttft-flag", d: `M${x} -2V14`, "vector-effect": "non-scaling-stroke" }));
    }
    return element("div", { class: "stage" }, element("span", {}, labelOf(name)), svg, element("span", { class: "number" }, `${seconds(to - from)} s`));
  });
  const facts = [
    ["Reason", reasonText(row, config.reasons)],
    ["Prefill node", row.nodes?.prefill],
    ["Relay node", row.nodes?.relay],
    ["Main node", row.nodes?.main],
    ["Handoff", row.handoff_mode?.replaceAll("_", " ")],
    ["Handoff stall", isNumber(row.handoff_stall_s) ? `${milliseconds(row.handoff_stall_s)} ms` : ""],
    ["Eager tokens", row.eager_tokens ? count(row.eager_tokens) : ""],
    ["Recomputed by MD", isNumber(row.recomputed_tokens) ? `${count(row.recomputed_tokens)} tok, expected ${count(row.expected_recomputed_tokens)}` : ""],
    ["On MD already", isNumber(row.drc_hit_rate) ? `${percent(row.drc_hit_rate)} %` : ""],
    ["Sent to MD", pair(row.pulled_tokens, row.uncached_tokens, count, "tok")],
    ["Pulled again", row.repulls ? `${count(row.repulls)} times` : ""],
    ["KV transfer", pair(row.transfer_s, row.predicted_transfer_s, seconds, "s")],
    ["Hit on P", pair(row.hit_rate, row.predicted_hit_rate, percent, "%")],
    ["Output bound", boundText(row)],
    ["Tenant", row.tenant],
    ["Class", row.service_class],
    ["Policy", row.revision ? `r${row.revision}` : ""],
    ["Traffic", row.traffic],
    ["Outcome", row.outcome?.replaceAll("_", " ")],
    ["Request", row.id],
  ].filter(([, value]) => value);
  const list = element("dl", { class: "facts" });
  for (const [name, value] of facts) list.append(element("dt", {}, name), element("dd", { class: name === "Request" ? "mono" : null }, value));
  return [
    element("div", { class: "drawer-section" }, element("dl", { class: "figures" },
      figure("TTFT", seconds(row.ttft_s), "s"), figure("End to end", seconds(row.e2e_s), "s"),
      figure("TPOT", milliseconds(row.tpot_s), "ms"), figure("Max ITL", milliseconds(row.max_itl_s), "ms"),
      figure("Prompt", count(row.input_tokens), "tok"), figure("Uncached", count(row.uncached_tokens), "tok"),
      figure("Output", count(row.output_tokens), "tok"), figure("Hit rate", isNumber(row.hit_rate) ? percent(row.hit_rate) : "–", "%"))),
    element("div", { class: "drawer-section" },
      element("h3", {}, `Stages over ${fixed(end, 2)} s; the dashed line is the first token`),
      bars.length ? element("div", { class: "stages" }, ...bars) : element("p", { class: "dim" }, "This request reported no stages.")),
    element("div", { class: "drawer-section" }, element("h3", {}, "Why and where"), list),
  ];
}
