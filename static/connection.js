// The one EventSource of the page: snapshot first, then ticks; resumes, starts again, backs off, and knows the data's age.
import { isNumber } from "./format.js";
import { t } from "./strings.js";

const STALE_AFTER_S = 5;
const BACK_OFF_MS = [1000, 2000, 4000, 8000, 15000];

export class Connection {
  // `onTick` gets each new tick; `onChange` is called when the picture as a whole is new, or the connection is.
  constructor(store, { onTick, onChange }) {
    this.store = store;
    this.onTick = onTick;
    this.onChange = onChange;
    this.isLost = false;
    this.failure = "";
    this.isEmpty = false;
    this.attempts = 0;
    this.receivedAt = null;
    this.ageAtReceipt_s = 0;
  }

  // Seconds since the newest figures were made; null before the first.
  get age_s() {
    return this.receivedAt === null ? null : this.ageAtReceipt_s + (performance.now() - this.receivedAt) / 1000;
  }

  get state() {
    if (this.isLost) return "lost";
    if (this.store.tick === null) return this.isEmpty ? "empty" : "loading";
    return this.age_s > STALE_AFTER_S ? "stale" : "live";
  }

  // How old the newest word of a gateway was when its tick was made.
  get gatewayAge_s() {
    const gateways = (this.store.tick?.sources ?? []).filter((one) => one.kind === "gateway");
    return Math.max(0, ...gateways.map((one) => one.age_s).filter(isNumber));
  }

  async connect() {
    clearTimeout(this.timer);
    try {
      await this.#loadSnapshot();
      this.failure = "";
      this.isLost = false;
      this.#openStream();
    } catch (error) {
      this.#lose(error);
    }
    this.onChange();
  }

  retryNow() {
    this.attempts = 0;
    this.connect();
  }

  async #loadSnapshot() {
    const reply = await fetch("/live/snapshot", { headers: { Accept: "application/json" } });
    if (reply.status === 401) {
      location.assign("/login");
      throw new Error(t("common.failed_network"));
    }
    if (reply.status === 204) {
      this.isEmpty = true;
      return;
    }
    if (!reply.ok) {
      const problem = await reply.json().catch(() => ({}));
      throw new Error(problem.detail ?? t("common.failed_status", { status: reply.status }));
    }
    const snapshot = await reply.json();
    this.store.takeSnapshot(snapshot);
    this.#received(snapshot.age_s ?? 0);
  }

  #openStream() {
    this.source?.close();
    const from = this.store.id ? `?from=${encodeURIComponent(this.store.id)}` : "";
    this.source = new EventSource(`/live/events${from}`);
    this.source.addEventListener("open", () => (this.attempts = 0));
    this.source.addEventListener("tick", (event) => {
      const tick = JSON.parse(event.data);
      this.store.takeTick(tick);
      this.#received(0);
      this.onTick(tick);
    });
    this.source.addEventListener("reset", () => this.#loadSnapshot().then(this.onChange, (error) => this.#lose(error)));
    this.source.addEventListener("error", () => this.#lose());
  }

  // The browser would retry by itself, but not after a refusal; one rule for both, with a growing pause.
  #lose(error) {
    this.source?.close();
    this.source = null;
    // What fetch itself throws means only that nobody answered.
    this.failure = error && !(error instanceof TypeError) ? error.message : "";
    this.isLost = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), BACK_OFF_MS[Math.min(this.attempts, BACK_OFF_MS.length - 1)]);
    this.attempts += 1;
    this.onChange();
  }

  #received(age_s) {
    this.isEmpty = false;
    this.failure = "";
    this.receivedAt = performance.now();
    this.ageAtReceipt_s = age_s;
  }
}
