// What the page knows: the slots of the last quarter of an hour, the last requests, and the newest tick. Bounded.
export const SLOTS = 90;
const ROWS = 40;
const MARKS = 40;
const SHORTEST_SPAN_S = 180;

export function at(object, path) {
  let value = object;
  for (const part of path) {
    if (value === null || value === undefined) return null;
    value = value[part];
  }
  return value ?? null;
}

const nameOfMark = (mark) => `${mark.at_s}/${mark.label}`;

export class Store {
  constructor() {
    this.clear();
  }

  clear() {
    this.slots = new Map();
    this.rows = [];
    this.marks = [];
    this.tick = null;
    this.id = null;
    this.slot_s = 10;
  }

  takeSnapshot(snapshot) {
    this.clear();
    this.slot_s = snapshot.slot_s ?? 10;
    for (const slot of snapshot.slots ?? []) this.slots.set(slot.at_s, slot);
    this.rows = (snapshot.requests ?? []).slice(0, ROWS);
    this.marks = (snapshot.marks ?? []).slice(-MARKS);
    this.tick = snapshot;
    this.id = snapshot.id ?? null;
    this.#trim();
  }

  takeTick(tick) {
    if (tick.slot) this.slots.set(tick.slot.at_s, tick.slot);
    const known = new Set(this.rows.map((row) => row.id));
    const fresh = (tick.requests ?? []).filter((row) => !known.has(row.id));
    this.rows = [...fresh, ...this.rows].slice(0, ROWS);
    this.takeMarks(tick.marks ?? []);
    this.tick = tick;
    this.id = tick.id ?? this.id;
    this.#trim();
  }

  takeMarks(marks) {
    const known = new Set(this.marks.map(nameOfMark));
    this.marks.push(...marks.filter((mark) => !known.has(nameOfMark(mark))));
    this.marks = this.marks.sort((a, b) => a.at_s - b.at_s).slice(-MARKS);
  }

  // A grid without holes: a slot nobody reported is null, so that a gap stays a gap on every chart.
  view(range_s = SLOTS * 10) {
    const now_s = this.tick?.now_s ?? 0;
    const known = [...this.slots.keys()];
    // The feed decides which slot is open: it waits a little for the last batches of the one before.
    const last = known.length ? Math.max(...known) : Math.floor(now_s / this.slot_s) * this.slot_s;
    const oldest = last - (Math.min(SLOTS, range_s / this.slot_s) - 1) * this.slot_s;
    const first = Math.max(oldest, Math.min(known.length ? Math.min(...known) : last, last - SHORTEST_SPAN_S));
    const times = [];
    for (let t = first; t <= last; t += this.slot_s) times.push(t);
    const begun = known.length ? Math.min(...known) : last;
    return {
      now_s,
      slot_s: this.slot_s,
      times,
      slots: times.map((t) => this.slots.get(t) ?? null),
      start_s: first,
      end_s: last + this.slot_s,
      begun_s: begun,
      marks: this.marks.filter((mark) => mark.at_s >= first),
      tiles: this.tick?.tiles ?? {},
      links: this.tick?.links ?? [],
      nodes: this.tick?.nodes ?? [],
      sources: this.tick?.sources ?? [],
    };
  }

  #trim() {
    const oldest = (this.tick?.now_s ?? 0) - (SLOTS + 1) * this.slot_s;
    for (const t of this.slots.keys()) if (t < oldest) this.slots.delete(t);
  }
}
