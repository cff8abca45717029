// Fills the figures of webapp/charts.py with slots and hands them to Plotly; knows colours, gaps and marks, no data.
import { at } from "./store.js";
import { t } from "./strings.js";
import { clock, fixed, isNumber } from "./format.js";

const LADDER = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
const LOG_LADDER = [0.003, 0.006, 0.012, 0.025, 0.06, 0.12, 0.25, 0.6, 1.2, 2.5, 6, 12, 25, 60, 120, 250];
const CONFIG = { displayModeBar: false, staticPlot: true, responsive: false, doubleClick: false };

const colours = new Map();
const probe = document.createElement("span");

export function forgetColours() {
  colours.clear();
}

// The browser resolves the token: one source for both themes, and Plotly gets an rgb() that it can parse.
function colour(token) {
  if (!colours.has(token)) {
    if (!probe.isConnected) {
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = token;
    colours.set(token, getComputedStyle(probe).color);
  }
  return colours.get(token);
}

function resolved(value) {
  if (typeof value === "string") return value.startsWith("var(") ? colour(value) : value;
  if (Array.isArray(value)) return value.map(resolved);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, key === "meta" ? inner : resolved(inner)]));
  }
  return value;
}

function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * (LADDER.find((step) => step * power >= value) ?? 10);
}

// Whole minutes between ticks, so that no two of them read the same.
function minutesBetween(view, layout) {
  const minutes = (view.end_s - view.start_s) / 60;
  const room = (layout.width - layout.margin.l - layout.margin.r) / 52;
  return [1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440].find((step) => minutes / step <= room) ?? 2880;
}

export function pathOf(trace, link) {
  return trace.meta.path.split(".").map((part) => (part === "{link}" ? link : part));
}

// One number of a slot in the unit that its chart shows; null where there is none.
export function valueOf(trace, slot, slot_s, link) {
  const raw = at(slot, pathOf(trace, link));
  if (!isNumber(raw)) return null;
  const { unit, share_of } = trace.meta;
  if (share_of) {
    const all = Object.values(slot[share_of] ?? {}).reduce((sum, value) => sum + (value ?? 0), 0);
    return all ? (100 * raw) / all : null;
  }
  if (unit === "Mb/s") return (raw * 8) / 1e6;
  if (unit === "ms") return raw * 1000;
  if (unit === "per min") return (raw * 60) / slot_s;
  return raw;
}

// Plotly draws a stack across nulls, so each run of figures becomes a stack of its own.
function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    const last = found.at(-1);
    if (last && last.at(-1) === index - 1) last.push(index);
    else found.push([index]);
  });
  return found;
}

const moment = (t_s) => new Date(t_s * 1000).toISOString().slice(0, 23);

function vertical(t_s, dash, token = "var(--text-3)") {
  return {
    type: "line", xref: "x", x0: moment(t_s), x1: moment(t_s), yref: "paper", y0: 0, y1: 1,
    line: { color: colour(token), width: 1, dash }, layer: "above",
  };
}

function bands(view, isMissing, key, least) {
  const text = t(key);
  const missing = view.slots.map((slot, index) => (view.times[index] >= view.begun_s && isMissing(slot) ? 1 : null));
  const shapes = [];
  const annotations = [];
  for (const run of runs(missing)) {
    if (run.at(-1) === view.slots.length - 1 && run.length < 2) continue;
    const from = view.times[run[0]];
    const to = view.times[run.at(-1)] + view.slot_s;
    if (key === "chart.no_data") {
      shapes.push({
        type: "rect", xref: "x", yref: "paper", x0: moment(from), x1: moment(to), y0: 0, y1: 1,
        line: { width: 0 }, fillcolor: colour("var(--inset)"), layer: "below",
      });
    }
    if ((to - from) / (view.end_s - view.start_s) > least) {
      annotations.push({
        xref: "x", x: moment((from + to) / 2), yref: "paper", y: 0.5, text: text.replace(" ", "<br>"),
        showarrow: false, font: { size: 10.5, color: colour("var(--text-3)") },
      });
    }
  }
  return { shapes, annotations };
}

export class Chart {
  constructor(element, id, template, link = null) {
    this.element = element;
    this.id = id;
    this.template = template;
    this.link = link;
    this.isVisible = false;
    this.isDrawn = false;
    this.cells = "share";
    this.scale = null;
  }

  get traces() {
    return this.template.data;
  }

  // Fraction of the plot's width under a pixel, or null outside; margins are fixed, so no private field is needed.
  fractionAt(clientX) {
    const box = this.element.getBoundingClientRect();
    const { l, r } = this.template.layout.margin;
    const fraction = (clientX - box.left - l) / (box.width - l - r);
    return fraction >= 0 && fraction <= 1 ? fraction : null;
  }

  draw(view, limits) {
    if (!window.Plotly) return;
    const layout = resolved(structuredClone(this.template.layout));
    layout.width = this.element.clientWidth;
    layout.height = this.element.clientHeight;
    if (!layout.width || !layout.height) return;
    layout.xaxis.range = [moment(view.start_s), moment(view.end_s)];
    layout.xaxis.dtick = minutesBetween(view, layout) * 60_000;
    if (layout.xaxis.dtick >= 86_400_000) layout.xaxis.tickformat = "%b %d";
    else if (view.end_s - view.start_s > 86_400) layout.xaxis.tickformat = "%H:%M\n%b %d";
    const data = this.id === "heat" ? this.#cells(view, limits) : this.#series(view, layout);
    this.#bound(view, layout, limits);
    const least = 36 / (layout.width - layout.margin.l - layout.margin.r);
    const missing = bands(view, (slot) => this.#isMissing(slot), "chart.no_data", least);
    const quiet = ["ttft", "pipelines"].includes(this.id)
      ? bands(view, (slot) => slot !== null && slot.requests === 0, "chart.no_traffic", least)
      : { shapes: [], annotations: [] };
    layout.shapes = [...missing.shapes, ...(layout.shapes ?? []).filter((s) => s.visible !== false), ...this.#marks(view)];
    layout.annotations = [...(layout.annotations ?? []), ...missing.annotations, ...quiet.annotations];
    if (this.id === "ttft") layout.annotations.push(...this.#tags(view, layout));
    window.Plotly.react(this.element, data, layout, CONFIG);
    this.isDrawn = true;
  }

  // The page's own ground goes with it: text of a dark page cannot be read on a white one.
  picture() {
    const { data, layout } = this.element;
    return { data, layout: { ...layout, paper_bgcolor: colour("var(--panel)") } };
  }

  #isMissing(slot) {
    if (slot === null) return true;
    if (this.id === "wan") return at(slot, ["links", this.link]) === null;
    if (this.id === "relay") return slot.relay === null;
    if (this.id === "handoffs") return slot.handoffs === null || slot.handoffs === undefined;
    return slot.requests === null;
  }

  #series(view, layout) {
    const x = view.times.map((t) => moment(t + view.slot_s / 2));
    const data = [];
    this.tops = [];
    for (const template of this.traces) {
      const trace = resolved(structuredClone(template));
      const y = view.slots.map((slot) => (slot === null ? null : valueOf(template, slot, view.slot_s, this.link)));
      this.tops.push(y);
      if (!trace.stackgroup) {
        data.push({ ...trace, x, y });
        continue;
      }
      // A layer of nothing but zeros would lay its line over the one below.
      if (this.tops.length > 1 && !y.some((value) => value > 0)) continue;
      runs(y).forEach((run, index) => {
        const piece = { ...trace, stackgroup: `run${index}`, x: run.map((i) => x[i]), y: run.map((i) => y[i]) };
        if (run.length === 1) piece.mode = "lines+markers";
        data.push({ ...piece, marker: { size: 3, color: trace.line.color } });
      });
    }
    if (layout.barmode) data.forEach((trace) => trace.type === "bar" && (trace.width = view.slot_s * 760));
    return data;
  }

  #cells(view, limits) {
    // At least two slots make a column: one holds too few requests for a share to mean anything, or too few pixels.
    const plot = this.element.clientWidth;
    const widths = view.slot_s < 60 ? [2, 3, 6, 9, 18, 36] : [1, 2, 3, 6, 12];
    const width = widths.find((slots) => (plot * slots) / view.times.length >= 5) ?? widths.at(-1);
    this.cell_s = width * view.slot_s;
    const columns = [];
    for (let i = 0; i < view.times.length; i++) {
      const group = Math.floor(view.times[i] / (view.slot_s * width));
      if (columns.at(-1)?.group !== group) columns.push({ group, t: group * view.slot_s * width, slots: [] });
      columns.at(-1).slots.push(view.slots[i]);
    }
    const sums = columns.map(({ slots }) => {
      const present = slots.filter((slot) => slot?.buckets);
      if (!present.length) return null;
      return Array.from({ length: 7 }, (_, b) => present.reduce((sum, slot) => sum + slot.buckets[b], 0));
    });
    const shown = sums.map((counts) => {
      if (!counts) return null;
      const all = counts.reduce((a, b) => a + b, 0);
      if (!all) return null;
      return this.cells === "share" ? counts.map((n) => (100 * n) / all) : counts;
    });
    const top = ceiling(Math.max(1, ...shown.flatMap((column) => column ?? [])));
    this.scale = top;
    const x = columns.map(({ t }) => moment(t + (view.slot_s * width) / 2));
    const z = Array.from({ length: 7 }, (_, b) => shown.map((column) => (column ? Math.sqrt(column[b]) : null)));
    const over = [];
    columns.forEach(({ slots }, column) => {
      for (let b = 0; b < 7; b++) {
        const worst = Math.max(...slots.map((slot) => slot?.bucket_ttft_p99?.[b] ?? -1));
        if (limits.ttft_p99_s && worst > limits.ttft_p99_s) over.push([x[column], 6 - b]);
      }
    });
    const [cells, squares] = this.traces.map((trace) => resolved(structuredClone(trace)));
    if ((plot * width) / view.times.length < 8) Object.assign(squares.marker, { size: 4, line: { width: 0 } });
    return [
      { ...cells, x, y: [6, 5, 4, 3, 2, 1, 0], z, zmin: 0, zmax: Math.sqrt(top) },
      { ...squares, x: over.map(([t]) => t), y: over.map(([, row]) => row) },
    ];
  }

  #bound(view, layout, limits) {
    const highest = (series) => Math.max(0, ...series.map((value) => value ?? 0));
    const sums = (...series) => series[0].map((_, i) => series.reduce((sum, one) => sum + (one[i] ?? 0), 0));
    const limit = (name, value) => {
      const shape = layout.shapes.find((candidate) => candidate.name === name);
      if (shape && isNumber(value)) Object.assign(shape, { y0: value, y1: value, visible: true });
    };
    if (this.id === "ttft") this.#boundTtft(layout, limits, limit);
    if (this.id === "wan") {
      const capacity = (limits.links[this.link] ?? 0) * 8e-6;
      limit("capacity", capacity);
      const top = Math.max(capacity * 1.14, highest(sums(...this.tops)) * 1.05, 1);
      layout.yaxis.range = [0, top];
      if (capacity) {
        layout.yaxis.tickvals = [0, capacity / 2, capacity];
        layout.yaxis.ticktext = ["0", fixed(capacity / 2, 0), fixed(capacity, 0)];
        layout.annotations.push(this.#note(capacity, t("chart.capacity"), "bottom"));
      }
    }
    if (this.id === "relay") {
      limit("slots", limits.relay_slots);
      limit("ceiling", limits.relay_ceiling);
      const top = Math.max((limits.relay_slots ?? 1) * 1.16, highest(this.tops[0]) * 1.05, highest(this.tops[1]) * 1.05);
      layout.yaxis.range = [0, top];
      layout.yaxis.tickformat = "d";
      if (top < 8) layout.yaxis.dtick = top < 5 ? 1 : 2;
      if (limits.relay_slots) layout.annotations.push(this.#note(limits.relay_slots, t("chart.slots", { count: limits.relay_slots }), "bottom"));
      if (limits.relay_ceiling) {
        layout.annotations.push(this.#note(limits.relay_ceiling, t("chart.ceiling", { count: fixed(limits.relay_ceiling, 1) }), "top", "text-2"));
      }
    }
    if (this.id === "pipelines") this.#nameLayers(layout);
    if (this.id === "handoffs") {
      layout.yaxis.range = [0, ceiling(highest(sums(this.tops[0], this.tops[1])) * 1.1)];
      layout.yaxis2.range = [0, ceiling(highest(this.tops[2]) * 1.45 || 100)];
      const caption = (y, text) => ({
        xref: "paper", x: 0, xanchor: "left", xshift: 4, yref: "paper", y, yanchor: "top", text, showarrow: false,
        font: { size: 10.5, color: colour("var(--text-3)") }, bgcolor: colour("var(--panel)"),
      });
      layout.annotations.push(caption(1.04, t("chart.stall")), caption(0.57, t("chart.handoffs_per_minute")));
    }
  }

  #boundTtft(layout, limits, limit) {
    const seen = this.tops.flat().filter((value) => value > 0);
    const slo = limits.ttft_p99_s;
    const low = Math.min(...seen, slo ?? Infinity, 0.3) * 0.8;
    const high = Math.max(...seen, slo ?? 0, 1) * 1.35;
    const from = LOG_LADDER.findLast((step) => step <= low) ?? LOG_LADDER[0];
    const to = LOG_LADDER.find((step) => step >= high) ?? LOG_LADDER.at(-1);
    layout.yaxis.range = [Math.log10(from), Math.log10(to)];
    limit("slo.ttft_p99_s", slo);
    const labels = this.traces.map((trace, i) => [this.tops[i].findLast((v) => v !== null), trace.name, trace.line.color]);
    if (slo) labels.push([slo, t("chart.slo_label", { limit: fixed(slo, slo < 10 && slo % 1 ? 1 : 0) }), "var(--slo)"]);
    const pixels = layout.height - layout.margin.t - layout.margin.b;
    const place = (value) => ((Math.log10(value) - Math.log10(from)) / Math.log10(to / from)) * pixels;
    layout.annotations.push(...this.#endLabels(labels.filter(([value]) => value > 0), place, (value) => Math.log10(value)));
  }

  #nameLayers(layout) {
    const latest = this.tops.map((series) => series.findLast((value) => value !== null) ?? 0);
    let below = 0;
    const labels = this.traces.map((trace, i) => {
      const middle = below + latest[i] / 2;
      below += latest[i];
      return [middle, trace.name, trace.line.color.replace(")", "-text)"), latest[i]];
    });
    const pixels = layout.height - layout.margin.t - layout.margin.b;
    const present = labels.filter(([, , , share]) => share > 0);
    layout.annotations.push(...this.#endLabels(present, (value) => (value / 100) * pixels, (value) => value));
  }

  // Names at the right end of their lines, pushed apart until none covers another.
  #endLabels(labels, place, toAxis) {
    const sorted = [...labels].sort((a, b) => place(a[0]) - place(b[0]));
    const spots = sorted.map(([value]) => place(value));
    for (let i = 1; i < spots.length; i++) spots[i] = Math.max(spots[i], spots[i - 1] + 13);
    return sorted.map(([value, text, token], i) => ({
      xref: "paper", x: 1, xanchor: "left", xshift: 6, yref: "y", y: toAxis(value), yshift: spots[i] - place(value),
      text, showarrow: false, font: { size: 11, color: colour(token) },
    }));
  }

  #note(y, text, yanchor, token = "text-3") {
    return {
      xref: "paper", x: 0, xanchor: "left", xshift: 4, yref: "y", y, yanchor, text, showarrow: false,
      font: { size: 10.5, color: colour(`var(--${token})`) }, bgcolor: colour("var(--label)"), borderpad: 1,
    };
  }

  #marks(view) {
    return view.marks.map((mark) => vertical(mark.at_s, mark.kind === "policy" ? "solid" : "2px,2px"));
  }

  // Names of marks, in up to three rows so that none covers another; a mark without room keeps only its line.
  #tags(view, layout) {
    const width = layout.width - layout.margin.l - layout.margin.r;
    const ends = [-Infinity, -Infinity, -Infinity];
    const tags = [];
    for (const mark of view.marks) {
      const x = ((mark.at_s - view.start_s) / (view.end_s - view.start_s)) * width;
      const text = mark.label.length > 22 ? `${mark.label.slice(0, 21)}…` : mark.label;
      const length = text.length * 6 + 12;
      const isLeft = x + length > width;
      const from = isLeft ? x - length : x;
      const row = ends.findIndex((end) => end <= from);
      if (row < 0) continue;
      ends[row] = from + length;
      tags.push(this.#tag(mark, text, row, isLeft));
    }
    return tags;
  }

  #tag(mark, text, row, isLeft) {
    return {
      xref: "x", x: moment(mark.at_s), yref: "paper", y: 1, xanchor: isLeft ? "right" : "left", yanchor: "top", text,
      xshift: isLeft ? -3 : 3, yshift: -18 * row,
      showarrow: false, font: { size: 10.5, color: colour("var(--text)") }, bgcolor: colour("var(--raise)"),
      bordercolor: colour("var(--line-2)"), borderwidth: 1, borderpad: 2,
    };
  }
}

// Columns for the table view and the CSV of a panel.
export function columnsOf(chart, view) {
  if (chart.id === "heat") {
    const names = ["0–90 %", "90–93 %", "93–95 %", "95–97 %", "97–98 %", "98–99 %", "99–100 %"];
    return names.map((name, b) => ({ name, values: view.slots.map((slot) => slot?.buckets?.[b] ?? null) }));
  }
  return chart.traces.map((trace) => {
    const unit = trace.meta.unit ?? (chart.id === "ttft" ? "s" : "");
    const suffix = trace.meta.share_of ? "%" : unit === "per min" ? t("chart.per_minute") : unit;
    const name = [chart.link, trace.name].filter(Boolean).join(" ");
    return {
      name: suffix ? `${name}, ${suffix}` : name,
      values: view.slots.map((slot) => (slot === null ? null : valueOf(trace, slot, view.slot_s, chart.link))),
    };
  });
}

export function crosshair(charts, onMove) {
  const show = (fraction, view) => {
    for (const chart of charts()) {
      let line = chart.element.querySelector(":scope > .cross");
      if (fraction === null) {
        line?.remove();
        continue;
      }
      if (!line) {
        line = document.createElement("div");
        line.className = "cross";
        line.append(document.createElement("em"));
        chart.element.append(line);
      }
      const { l, r, t, b } = chart.template.layout.margin;
      line.style.left = `${l + (chart.element.clientWidth - l - r) * fraction}px`;
      line.style.top = `${t}px`;
      line.style.height = `${chart.element.clientHeight - t - b}px`;
      line.firstChild.textContent = clock(view.start_s + fraction * (view.end_s - view.start_s), true);
      line.firstChild.hidden = b < 12;
    }
  };
  return { show, attach: (chart) => {
    chart.element.addEventListener("pointermove", (event) => onMove(chart.fractionAt(event.clientX)));
    chart.element.addEventListener("pointerleave", () => onMove(null));
  } };
}
