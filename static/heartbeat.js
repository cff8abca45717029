// The bar of pages that have no live figures of their own: asks every few seconds how the fleet is and how old that is.
import { drawBar } from "./status.js";

const PERIOD_MS = 5000;
const STALE_AFTER_S = 5;
const LOST_AFTER_MS = 12_000;

let newest = null;
let heardAt = null;

function stateNow(age_s) {
  if (heardAt === null) return performance.now() > LOST_AFTER_MS ? "lost" : "loading";
  if (performance.now() - heardAt > LOST_AFTER_MS) return "lost";
  if (newest.fleet === null) return "empty";
  return age_s > STALE_AFTER_S + PERIOD_MS / 1000 ? "stale" : "live";
}

function draw() {
  const age_s = newest?.age_s === null || newest === null ? null : newest.age_s + (performance.now() - heardAt) / 1000;
  drawBar({ now: stateNow(age_s), age_s, isPaused: false, fleet: newest?.fleet ?? null });
}

async function ask() {
  if (!document.hidden) {
    try {
      const reply = await fetch("/live/pulse", { headers: { Accept: "application/json" } });
      if (reply.status === 401) return location.assign("/login");
      if (reply.ok) {
        newest = await reply.json();
        heardAt = performance.now();
      }
    } catch {
      // Nobody answered; the age that grows on the page says so.
    }
  }
  draw();
  setTimeout(ask, PERIOD_MS);
}

document.addEventListener("visibilitychange", draw);
setInterval(() => document.hidden || draw(), 1000);
ask();
