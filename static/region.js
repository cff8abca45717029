// Dragging over charts: a stretch of time to zoom to, or on the heat map one bucket over a time, and what differs there.
import { element, seconds } from "./format.js";
import { select, selectSpan, selection } from "./selection.js";
import { t } from "./strings.js";

const LEAST_PX = 6;
const BUCKETS = 7;
const CARD_MS = 250;
const CARD_KEPT_MS = 10_000;

const $ = (id) => document.getElementById(id);

function bucketAt(chart, clientY) {
  const box = chart.element.getBoundingClientRect();
  const { t: top, b: bottom } = chart.template.layout.margin;
  const row = Math.floor(((clientY - box.top - top) / (box.height - top - bottom)) * BUCKETS);
  return Math.max(0, Math.min(BUCKETS - 1, row));
}

export class Regions {
  // `viewNow` gives what the charts show; a drag on another chart than the heat map zooms.
  constructor(viewNow) {
    this.viewNow = viewNow;
    this.region = null;
    this.cards = null;
    this.read();
    document.addEventListener("click", (event) => this.#click(event));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.region && !document.querySelector("dialog[open]") && this.clear());
    for (const row of document.querySelectorAll("[data-select-bucket], [data-bucket]")) {
      const bucket = Number(row.dataset.selectBucket ?? row.dataset.bucket);
      row.addEventListener("pointerenter", () => this.#hover(bucket, row));
      row.addEventListener("pointerleave", () => this.#hover(null));
      row.addEventListener("focus", () => this.#hover(bucket, row));
      row.addEventListener("blur", () => this.#hover(null));
    }
  }

  attach(chart) {
    const holder = chart.element;
    holder.addEventListener("pointerdown", (event) => {
      const from = chart.fractionAt(event.clientX);
      if (from === null || event.button !== 0) return;
      const start = { x: event.clientX, from, bucket: chart.id === "heat" ? bucketAt(chart, event.clientY) : null };
      holder.setPointerCapture(event.pointerId);
      const move = (moved) => {
        const to = chart.fractionAt(moved.clientX) ?? (moved.clientX < start.x ? 0 : 1);
        if (Math.abs(moved.clientX - start.x) >= LEAST_PX) this.#box(chart, "drag", Math.min(from, to), Math.max(from, to), start.bucket);
      };
      const end = (ended) => {
        holder.removeEventListener("pointermove", move);
        holder.querySelector(":scope > .drag")?.remove();
        if (ended.type !== "pointerup") return;
        const to = chart.fractionAt(ended.clientX) ?? (ended.clientX < start.x ? 0 : 1);
        const isDrag = Math.abs(ended.clientX - start.x) >= LEAST_PX;
        this.#dragged(chart, start, isDrag ? to : null);
      };
      holder.addEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) holder.addEventListener(name, end, { once: true });
    });
  }

  #dragged(chart, start, to) {
    const view = this.viewNow();
    if (!view) return;
    const at = (fraction) => view.start_s + fraction * (view.end_s - view.start_s);
    if (chart.id !== "heat") {
      if (to !== null) selectSpan(at(Math.min(start.from, to)), at(Math.max(start.from, to)));
      return;
    }
    if (to !== null) this.choose(start.bucket, at(Math.min(start.from, to)), at(Math.max(start.from, to)));
    else this.#chooseCell(chart, start.bucket, at(start.from));
  }

  #chooseCell(chart, bucket, at_s) {
    const cell_s = chart.cell_s ?? 20;
    const from_s = Math.floor(at_s / cell_s) * cell_s;
    this.choose(bucket, from_s, from_s + cell_s);
  }

  // The region is part of the address, so that it can be shared.
  choose(bucket, from_s, to_s) {
    select({ region: `${bucket}.${Math.floor(from_s)}.${Math.ceil(to_s)}` }, { replaces: true });
  }

  clear() {
    select({ region: null }, { replaces: true });
  }

  read() {
    const parts = (new URLSearchParams(location.search).get("region") ?? "").split(".").map(Number);
    const [bucket, from_s, to_s] = parts;
    const isRegion = parts.length === 3 && parts.every(Number.isInteger) && bucket >= 0 && bucket < BUCKETS && from_s < to_s;
    const next = isRegion ? { bucket, from_s, to_s } : null;
    if (JSON.stringify(next) === JSON.stringify(this.region)) return;
    this.region = next;
    const holder = $("differs");
    holder.hidden = next === null;
    if (next === null) return holder.replaceChildren();
    holder.style.top = `${36 + 16 + (bucket + 1) * 22 + 6}px`;
    holder.replaceChildren(element("p", { class: "dim" }, t("common.loading")));
    const asked = new URLSearchParams({ bucket, from: from_s, to: to_s, ...(selection().site && { site: selection().site }) });
    window.htmx.ajax("GET", `/live/differences?${asked}`, { target: "#differs", swap: "innerHTML" });
  }

  draw(heat, view) {
    const old = heat?.element.querySelector(":scope > .region");
    if (!heat || !this.region) return old?.remove();
    const fraction = (at_s) => (at_s - view.start_s) / (view.end_s - view.start_s);
    const [from, to] = [fraction(this.region.from_s), fraction(this.region.to_s)].map((one) => Math.max(0, Math.min(1, one)));
    if (to <= from) return old?.remove();
    return this.#box(heat, "region", from, to, this.region.bucket);
  }

  #box(chart, name, from, to, bucket) {
    let box = chart.element.querySelector(`:scope > .${name}`);
    if (!box) {
      box = element("div", { class: name });
      chart.element.append(box);
    }
    const { l, r, t: top, b } = chart.template.layout.margin;
    const width = chart.element.clientWidth - l - r;
    const height = chart.element.clientHeight - top - b;
    box.style.left = `${l + width * from}px`;
    box.style.width = `${Math.max(3, width * (to - from))}px`;
    box.style.top = `${bucket === null ? top : top + (height / BUCKETS) * bucket}px`;
    box.style.height = `${bucket === null ? height : height / BUCKETS}px`;
  }

  #click(event) {
    if (event.target.closest("[data-clear]")) this.clear();
    if (event.target.closest("[data-zoom]") && this.region) selectSpan(this.region.from_s, this.region.to_s);
    const row = event.target.closest("[data-select-bucket]");
    const view = row && this.viewNow();
    if (view) this.choose(Number(row.dataset.selectBucket), view.start_s, view.end_s);
  }

  // Quantiles of one bucket over all that is shown, asked for once for all buckets and kept for a moment.
  #hover(bucket, row) {
    clearTimeout(this.waiting);
    const card = $("bucket-card");
    if (bucket === null) return void (card.hidden = true);
    this.waiting = setTimeout(async () => {
      const figures = await this.#figures();
      const own = figures?.[bucket];
      if (!own || !row.isConnected || this.region) return;
      const quantile = (name) => element("span", {}, element("span", { class: "dim" }, name.toUpperCase()), " ", own[name] === null ? "–" : `${seconds(own[name])} s`);
      card.replaceChildren(element("b", {}, `${own.range} %`), element("span", { class: "dim" }, t("live.requests", { count: own.requests })), ...["p50", "p90", "p99"].map(quantile));
      card.style.top = `${36 + 16 + bucket * 22 - 34}px`;
      card.hidden = false;
    }, CARD_MS);
    return undefined;
  }

  async #figures() {
    if (this.cards && performance.now() - this.cards.at < CARD_KEPT_MS && this.cards.search === location.search) return this.cards.figures;
    const reply = await fetch(`/live/buckets${location.search}`).catch(() => null);
    if (!reply?.ok) return null;
    this.cards = { at: performance.now(), search: location.search, figures: await reply.json() };
    return this.cards.figures;
  }
}
