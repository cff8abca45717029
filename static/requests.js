// The last requests as a table, and one of them as a waterfall.
import { hasText, t } from "./strings.js";
import { age, count, element, fixed, isNumber, milliseconds, percent, seconds, shape, unit } from "./format.js";

const EDGES = [0.9, 0.93, 0.95, 0.97, 0.98, 0.99];
const SHOWN = 18;
const BEFORE_FIRST_TOKEN = ["queue", "prefill", "kv_relay", "kv_wan"];

const bucketOf = (hit) => EDGES.filter((edge) => hit >= edge).length;

// The colour that a stage of a record shares with others.
const STAGES = {
  tokenize: "queue",
  queue: "queue",
  prefill: "prefill",
  kv_rdma: "kv_relay",
  kv_wan: "kv_wan",
  relay_decode: "relay",
  handoff: "main",
  main_decode: "main",
};
const labelOf = (name) => (hasText(`stage.${name}`) ? t(`stage.${name}`) : name.replaceAll("_", " "));
const familyOf = (name) => STAGES[name] ?? "other";

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
  const name = hasText(`pipeline.${row.pipeline}`) ? t(`pipeline.${row.pipeline}`) : row.pipeline;
  return element("span", { class: `pipe pipe-${row.pipeline}` }, name);
}

const outcomeText = (row) => (hasText(`outcome.${row.outcome}`) ? t(`outcome.${row.outcome}`) : row.outcome);

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
      this.note.textContent = fresh ? t("live.held_new", { count: fresh }) : t("live.held");
      return;
    }
    const isChosen = view.isHistory || this.order === "newest";
    const sorted = isChosen ? rows : [...rows].sort((a, b) => (b.ttft_s ?? -1) - (a.ttft_s ?? -1));
    const shown = sorted.slice(0, SHOWN);
    this.rows = new Map(rows.map((row) => [row.id, row]));
    document.querySelector("[data-order]").parentElement.hidden = view.isHistory === true;
    if (view.isHistory) this.note.textContent = t("live.slowest_of_span");
    else this.note.textContent = this.order === "newest" ? t("live.newest_first") : t("live.slowest_of", { count: rows.length });
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
      cell("", pipe(row), element("span", { class: failed ? "worse" : "dim" }, failed ? outcomeText(row) : reasonText(row, this.config.reasons))),
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
  isNumber(measured) && isNumber(predicted) ? t("live.predicted", { measured: format(measured), predicted: format(predicted), unit: of }) : "";

const boundText = (row) =>
  hasText(`live.bound_${row.output_bound_source}`) ? t(`live.bound_${row.output_bound_source}`, { count: count(row.output_bound_tokens) }) : "";

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
    [t("live.reason"), reasonText(row, config.reasons)],
    [t("live.prefill_node"), row.nodes?.prefill],
    [t("live.relay_node"), row.nodes?.relay],
    [t("live.main_node"), row.nodes?.main],
    [t("live.handoff"), row.handoff_mode?.replaceAll("_", " ")],
    [t("live.stall"), isNumber(row.handoff_stall_s) ? `${milliseconds(row.handoff_stall_s)} ms` : ""],
    [t("live.eager_tokens"), row.eager_tokens ? count(row.eager_tokens) : ""],
    [t("live.recomputed_by"), isNumber(row.recomputed_tokens) ? t("live.recomputed", { count: count(row.recomputed_tokens), expected: count(row.expected_recomputed_tokens) }) : ""],
    [t("live.on_md"), isNumber(row.drc_hit_rate) ? `${percent(row.drc_hit_rate)} %` : ""],
    [t("live.sent"), pair(row.pulled_tokens, row.uncached_tokens, count, "tok")],
    [t("live.pulled_again"), row.repulls ? t("live.times", { count: count(row.repulls) }) : ""],
    [t("live.transfer"), pair(row.transfer_s, row.predicted_transfer_s, seconds, "s")],
    [t("live.hit_on_p"), pair(row.hit_rate, row.predicted_hit_rate, percent, "%")],
    [t("live.bound"), boundText(row)],
    [t("live.tenant"), row.tenant],
    [t("live.class"), row.service_class],
    [t("live.policy"), row.revision ? `r${row.revision}` : ""],
    [t("live.traffic"), row.traffic],
    [t("live.outcome"), row.outcome ? outcomeText(row) : ""],
    [t("live.request"), row.id],
  ].filter(([, value]) => value);
  const list = element("dl", { class: "facts" });
  for (const [name, value] of facts) list.append(element("dt", {}, name), element("dd", { class: value === row.id ? "mono" : null }, value));
  return [
    element("div", { class: "drawer-section" }, element("dl", { class: "figures" },
      figure("TTFT", seconds(row.ttft_s), "s"), figure(t("live.end_to_end"), seconds(row.e2e_s), "s"),
      figure("TPOT", milliseconds(row.tpot_s), "ms"), figure(t("live.max_itl"), milliseconds(row.max_itl_s), "ms"),
      figure(t("live.prompt"), count(row.input_tokens), "tok"), figure(t("live.uncached"), count(row.uncached_tokens), "tok"),
      figure(t("live.output"), count(row.output_tokens), "tok"), figure(t("live.hit_rate"), isNumber(row.hit_rate) ? percent(row.hit_rate) : "–", "%"))),
    element("div", { class: "drawer-section" },
      element("h3", {}, t("live.stages_over", { seconds: fixed(end, 2) })),
      bars.length ? element("div", { class: "stages" }, ...bars) : element("p", { class: "dim" }, t("live.no_stages"))),
    element("div", { class: "drawer-section" }, element("h3", {}, t("live.why_where")), list),
  ];
}
