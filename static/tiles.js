// The key figures: text and SVG, once a second, each with its change since the policy last changed.
import { t } from "./strings.js";
import { bytes, element, fixed, isNumber, megabits, percent, seconds, shape, tokens, unit, widthOf } from "./format.js";

const SETTLE_SLOTS = 3;
const COMPARED_SLOTS = 18;
export const SAME = 0.1;

const part = (tile, name) => tile.querySelector(`[data-part="${name}"]`);
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

export const SERIES = {
  ttft_p50: (slot) => slot?.ttft?.p50 ?? null,
  ttft_p90: (slot) => slot?.ttft?.p90 ?? null,
  ttft_p99: (slot) => slot?.ttft?.p99 ?? null,
  served: (slot, view) => (isNumber(slot?.served) ? slot.served / view.slot_s : null),
  share: (slot) => (slot?.output_tokens ? slot.eager_tokens / slot.output_tokens : null),
  wan: (slot, view, link) => {
    const capacity = view.links.find((one) => nameOf(one) === link)?.capacity_bytes_per_s;
    const used = slot?.links?.[link]?.bytes_per_s;
    return isNumber(used) && capacity ? used / capacity : null;
  },
  lag: (slot, view) => (isNumber(slot?.lag_token_s) ? slot.lag_token_s / view.slot_s : null),
  load: (slot) => (slot?.relay?.slots ? slot.relay.running / slot.relay.slots : null),
};

export const nameOf = (item) => item.name;

// Means before and since the last policy mark; the first slots after it still answer the old one.
export function sinceMark(view, series) {
  const mark = view.marks.filter((one) => one.kind === "policy").at(-1);
  if (!mark) return null;
  const values = view.slots.map((slot) => series(slot, view));
  const closed = view.times.map((t, i) => ({ t, value: values[i] })).slice(0, -1).filter(({ value }) => value !== null);
  const before = closed.filter(({ t }) => t + view.slot_s <= mark.at_s).slice(-COMPARED_SLOTS);
  const after = closed.filter(({ t }) => t >= mark.at_s + SETTLE_SLOTS * view.slot_s).slice(-COMPARED_SLOTS);
  if (before.length < 3 || after.length < 3) return null;
  return { label: mark.label, before: mean(before.map((p) => p.value)), after: mean(after.map((p) => p.value)) };
}

function changeText(change, show, lessIsBetter) {
  if (!change) return null;
  const delta = change.after - change.before;
  if (Math.abs(delta) <= SAME * Math.max(Math.abs(change.before), 1e-9)) return element("span", {}, t("live.same_since", { mark: change.label }));
  const arrow = delta < 0 ? "▼" : "▲";
  if (lessIsBetter === null) return element("span", {}, t("live.changed_since", { change: `${arrow} ${show(Math.abs(delta))}`, mark: change.label }));
  const isBetter = delta < 0 === lessIsBetter;
  return element("span", { class: isBetter ? "better" : "worse" }, t(isBetter ? "live.better" : "live.worse", { change: `${arrow} ${show(Math.abs(delta))}` }));
}

function spark(holder, view, values, top) {
  const width = Math.max(40, widthOf(holder) - 4);
  const height = 20;
  const present = values.filter((value) => value !== null);
  if (present.length < 2) return holder.replaceChildren();
  const high = top ?? Math.max(...present);
  const low = top ? 0 : Math.min(...present);
  const x = (index) => (index / Math.max(1, values.length - 1)) * width;
  const y = (value) => height - 2 - ((value - low) / (high - low || 1)) * (height - 4);
  let path = "";
  values.forEach((value, index) => {
    if (value === null) return;
    path += `${values[index - 1] === null || index === 0 ? "M" : "L"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const svg = shape("svg", { width, height, "aria-hidden": "true" });
  const mark = view.marks.filter((one) => one.kind === "policy").at(-1);
  if (mark) {
    const at = ((mark.at_s - view.start_s) / (view.end_s - view.start_s)) * width;
    svg.append(shape("path", { class: "mark", d: `M${at.toFixed(1)} 0V${height}` }));
  }
  svg.append(shape("path", { d: path }));
  const last = values.findLastIndex((value) => value !== null);
  svg.append(shape("circle", { cx: x(last), cy: y(values[last]), r: 2 }));
  holder.replaceChildren(svg);
}

const none = () => element("span", { class: "none" }, "–");

function put(tile, value, delta) {
  part(tile, "value").replaceChildren(...value);
  part(tile, "delta").replaceChildren(...[delta].flat().filter(Boolean));
}

export class Tiles {
  constructor(root = document) {
    this.tiles = Object.fromEntries(
      ["ttft", "served", "share", "wan", "lag", "load"].map((id) => [id, root.getElementById(`tile-${id}`)]),
    );
  }

  draw(view) {
    this.#ttft(view);
    this.#served(view);
    this.#share(view);
    this.#wan(view);
    this.#lag(view);
    this.#load(view);
  }

  #spark(id, view, series, top) {
    // The slot that still fills would end every line in a dip.
    spark(part(this.tiles[id], "spark"), view, view.slots.slice(0, -1).map((slot) => series(slot, view)), top);
  }

  #ttft(view) {
    const tile = this.tiles.ttft;
    const { ttft, slo = {}, requests } = view.tiles;
    const goals = [["P90", slo.ttft_p90_s], ["P99", slo.ttft_p99_s]].filter(([, limit]) => isNumber(limit));
    part(tile, "slo").textContent = goals.length ? t("live.slo_scope", { goals: goals.map(([q, limit]) => `${q} ≤ ${+limit.toFixed(2)} s`).join(" · ") }) : "";
    for (const q of ["p50", "p90", "p99"]) {
      const value = ttft?.[q];
      const limit = slo[`ttft_${q}_s`];
      const holder = part(tile, q);
      holder.replaceChildren(...(isNumber(value) ? [seconds(value), unit("s")] : [none()]));
      const bar = part(tile, `${q}-bar`);
      const isOver = isNumber(value) && isNumber(limit) && value > limit;
      holder.closest(".third").dataset.tone = isOver ? "bad" : "";
      bar.hidden = !isNumber(limit);
      if (isNumber(limit)) {
        bar.firstElementChild.style.width = `${Math.min(100, 80 * ((value ?? 0) / limit))}%`;
        bar.title = isNumber(value) ? t("live.of_objective", { share: percent(value / limit, 0) }) : "";
      }
      const change = changeText(sinceMark(view, SERIES[`ttft_${q}`]), (d) => `${seconds(d)} s`, true);
      const idle = q === "p50" ? (requests ? "" : t("live.no_traffic")) : isOver ? element("span", { class: "worse" }, t("live.over_slo")) : isNumber(value) && isNumber(limit) ? t("live.of_slo", { share: percent(value / limit, 0) }) : "";
      part(tile, `${q}-delta`).replaceChildren(change ?? idle);
    }
  }

  #served(view) {
    const { rps, goodput_rps: good, requests } = view.tiles;
    if (!isNumber(rps)) return put(this.tiles.served, [none()], t("live.no_data"));
    const small = element("small", {}, ` / ${fixed(good, 2)}`);
    const inSlo = rps > 0 ? t("live.in_slo", { share: percent(good / rps) }) : t("live.no_traffic");
    put(this.tiles.served, [fixed(rps, 2), small], [inSlo, requests && t("live.requests", { count: requests })].filter(Boolean).join(", "));
    this.#spark("served", view, SERIES.served);
  }

  #share(view) {
    const share = view.tiles.rld_share;
    const change = changeText(sinceMark(view, SERIES.share), (d) => `${percent(d)} pt`, null);
    put(this.tiles.share, isNumber(share) ? [percent(share), unit("%")] : [none()], isNumber(share) ? (change ?? t(view.isHistory ? "live.of_span" : "live.last_minutes")) : t("live.no_output"));
    this.#spark("share", view, SERIES.share);
  }

  #wan(view) {
    const use = view.tiles.wan_use;
    const tile = this.tiles.wan;
    part(tile, "scope").textContent = use ? (view.links.length > 1 ? t("live.busiest", { link: use.link }) : use.link) : "";
    if (!use) return put(tile, [none()], t("live.no_link"));
    const link = view.links.find((one) => nameOf(one) === use.link);
    const queue = bytes(link?.queued_bytes ?? 0);
    const small = element("small", {}, t("live.of_capacity", { capacity: fixed(megabits(use.capacity_bytes_per_s), 0) }));
    tile.dataset.tone = use.ratio >= 0.95 ? "bad" : "";
    put(tile, [percent(use.ratio, 0), unit("%"), small], link ? t("live.queue_flows", { queue: queue.join(" "), flows: link.flows }) : "");
    this.#spark("wan", view, (slot) => SERIES.wan(slot, view, use.link), 1);
  }

  #lag(view) {
    const lag = view.tiles.cache_lag_tokens;
    const [value, name] = tokens(lag);
    const change = changeText(sinceMark(view, SERIES.lag), (d) => tokens(d).join(" "), true);
    put(this.tiles.lag, isNumber(lag) ? [value, unit(name)] : [none()], isNumber(lag) ? (change ?? t(view.isHistory ? "live.of_span" : "live.mean_minutes")) : t("live.no_sample"));
    this.#spark("lag", view, SERIES.lag);
  }

  #load(view) {
    const ratio = view.tiles.relay_utilization;
    const slots = view.nodes.filter((node) => node.role === "relay");
    const running = slots.reduce((sum, node) => sum + (node.running ?? 0), 0);
    const all = slots.reduce((sum, node) => sum + (node.slots ?? 0), 0);
    const text = all ? t("live.slots_now", { running: fixed(running, Number.isInteger(running) ? 0 : 1), all }) : t("live.no_relay_node");
    put(this.tiles.load, isNumber(ratio) ? [percent(ratio, 0), unit("%")] : [none()], text);
    this.#spark("load", view, SERIES.load, 1);
  }
}
