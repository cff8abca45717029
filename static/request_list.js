// The table of requests: filters act at once, and while nobody reads in it, new requests come in by themselves.
const PERIOD_MS = 5000;
const form = document.getElementById("request-filters");
let isPaused = false;

form.addEventListener("change", (event) => event.target.matches("select") && form.requestSubmit());
// Empty fields have no place in an address that somebody may want to share.
form.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
});

document.addEventListener("pdd:pause", () => {
  isPaused = !isPaused;
  document.dispatchEvent(new CustomEvent("pdd:paused", { detail: isPaused }));
});
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-action=pause]")) document.dispatchEvent(new CustomEvent("pdd:pause"));
});

const isRead = (table) => table.matches(":hover") || table.contains(document.activeElement);

setInterval(() => {
  const table = document.getElementById("request-table");
  if (isPaused || document.hidden || table.dataset.live !== "true" || isRead(table)) return;
  window.htmx.ajax("GET", table.dataset.url, { target: table, swap: "outerHTML" });
}, PERIOD_MS);
