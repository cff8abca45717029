// Other times and single sites: what the feed does not hold comes from sums in SQL, in the same shape.
import { isNumber } from "./format.js";
import { t } from "./strings.js";

const PERIOD_MS = 10_000;

export class History {
  constructor(onChange) {
    this.onChange = onChange;
    this.clear();
  }

  clear() {
    clearTimeout(this.timer);
    this.request?.abort();
    this.request = null;
    this.picture = null;
    this.failure = "";
  }

  // Keeps what is shown while it asks; a span that ends now is asked for again and again.
  async load(selection) {
    clearTimeout(this.timer);
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    try {
      const reply = await fetch(`/live/history${location.search}`, { signal: request.signal, headers: { Accept: "application/json" } });
      if (!reply.ok) throw new Error(t("common.failed_status", { status: reply.status }));
      this.picture = await reply.json();
      this.failure = "";
    } catch (error) {
      if (request.signal.aborted) return;
      this.failure = error instanceof TypeError ? t("common.failed_network") : error.message;
    }
    if (this.request !== request) return;
    if (!selection.isAbsolute) this.timer = setTimeout(() => this.load(selection), PERIOD_MS);
    this.onChange();
  }

  get rows() {
    return this.picture?.requests ?? [];
  }

  view(store, selection) {
    if (!this.picture) return null;
    const { slots, slot_s, tiles, marks, now_s } = this.picture;
    const isNear = (place) => !selection.site || place === selection.site;
    const live = store.view();
    const links = live.links.filter((link) => isNear(link.source) || isNear(link.target));
    const begun = slots.find((slot) => slot.requests !== null || slot.relay !== null);
    const first_s = slots[0]?.at_s ?? now_s - selection.range_s;
    return {
      now_s,
      slot_s,
      times: slots.map((slot) => slot.at_s),
      slots,
      start_s: first_s,
      end_s: (slots.at(-1)?.at_s ?? first_s) + slot_s,
      begun_s: begun?.at_s ?? first_s,
      marks: marks.filter((mark) => mark.at_s >= first_s),
      tiles: { ...tiles, wan_use: busiest(links, slots) },
      links,
      nodes: live.nodes.filter((node) => isNear(node.site)),
      sources: live.sources,
      isHistory: true,
    };
  }
}

function busiest(links, slots) {
  const uses = links.map((link) => {
    const used = slots.map((slot) => slot.links?.[link.name]?.bytes_per_s).filter(isNumber);
    const capacity_bytes_per_s = link.rate_cap_bytes_per_s ?? link.capacity_bytes_per_s;
    if (!used.length || !capacity_bytes_per_s) return null;
    const bytes_per_s = used.reduce((sum, value) => sum + value, 0) / used.length;
    return { link: link.name, bytes_per_s, capacity_bytes_per_s, ratio: bytes_per_s / capacity_bytes_per_s };
  });
  return uses.filter(Boolean).sort((a, b) => b.ratio - a.ratio)[0] ?? null;
}
