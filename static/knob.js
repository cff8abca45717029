// The knob's two faces, slider and number, the changed state, and why Apply is locked. The server checks it all again.
const trim = (value) => String(+value.toFixed(3));

function nearest(steps, value) {
  let best = 0;
  steps.forEach((step, index) => {
    if (Math.abs(step - value) < Math.abs(steps[best] - value)) best = index;
  });
  return best;
}

function wire(form) {
  const steps = JSON.parse(form.dataset.steps);
  const live = Number(form.dataset.live);
  const slider = form.querySelector("input[type=range]");
  const number = form.querySelector("input[name=value]");
  const reason = form.querySelector("[name=reason]");
  const apply = form.querySelector("[data-apply]");
  const output = form.querySelector("output");
  const why = form.querySelector("[data-why]");
  const tick = form.querySelector(".knob-live line");
  const at = nearest(steps, live) / (steps.length - 1);
  tick.setAttribute("x1", `${2.5 + 95 * at}%`);
  tick.setAttribute("x2", `${2.5 + 95 * at}%`);

  const judge = () => {
    const value = Number(number.value);
    const isNumber = number.value.trim() !== "" && Number.isFinite(value);
    const isChanged = isNumber && value !== live;
    form.classList.toggle("is-changed", isChanged);
    slider.setAttribute("aria-valuetext", isNumber ? `${trim(value)} seconds` : "");
    output.replaceChildren();
    if (isChanged) {
      const bold = document.createElement("b");
      bold.textContent = trim(value);
      output.append(`${trim(live)} → `, bold, " s");
    } else {
      const bold = document.createElement("b");
      bold.textContent = trim(live);
      output.append(bold, " s");
    }
    const missing = [!isChanged && "move the threshold", !reason.value.trim() && "give a reason"].filter(Boolean);
    apply.setAttribute("aria-disabled", String(missing.length > 0));
    why.textContent = missing.length ? `To apply: ${missing.join(", then ")}.` : why.dataset.ready;
    const badge = document.getElementById("knob-badge");
    badge.className = isChanged ? "badge accent" : "";
    badge.textContent = isChanged ? "Changed, not applied" : "";
  };
  slider.addEventListener("input", () => {
    number.value = trim(steps[Number(slider.value)]);
    judge();
  });
  number.addEventListener("input", () => {
    slider.value = nearest(steps, Number(number.value));
    judge();
  });
  reason.addEventListener("input", judge);
  form.querySelector("[data-reset]").addEventListener("click", () => {
    number.value = trim(live);
    slider.value = nearest(steps, live);
    form.querySelectorAll("[aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
    judge();
  });
  form.addEventListener("htmx:beforeRequest", (event) => {
    if (apply.getAttribute("aria-disabled") !== "true") return;
    event.preventDefault();
    (form.classList.contains("is-changed") ? reason : slider).focus();
  });
  judge();
}

export function wireKnobs() {
  for (const form of document.querySelectorAll("form[data-steps]:not([data-wired])")) {
    form.dataset.wired = "true";
    wire(form);
  }
}
