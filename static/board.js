// All charts of the page: which are in sight, one crosshair over them, and each panel as table, CSV or picture.
import { Chart, columnsOf, crosshair } from "./charts.js";
import { clock, element, fixed } from "./format.js";
import { t } from "./strings.js";
import { nameOf } from "./tiles.js";

const TABLE_ROWS = 40;

export class Board {
  // `redraw` is called when a chart comes into sight; `onPointer` with the fraction of the time axis, or null.
  constructor(figures, { redraw, onPointer, onAdd }) {
    this.onAdd = onAdd;
    this.figures = figures;
    this.charts = [];
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = this.charts.find((one) => one.element === entry.target);
        if (chart) chart.isVisible = entry.isIntersecting;
      }
      redraw();
    }, { rootMargin: "120px" });
    this.cross = crosshair(() => this.charts.filter((chart) => chart.isVisible && chart.isDrawn), onPointer);
    for (const holder of document.querySelectorAll("[data-figure]")) {
      this.#add(holder, holder.dataset.figure, figures[holder.dataset.figure], null);
    }
  }

  get heat() {
    return this.charts.find((chart) => chart.id === "heat");
  }

  draw(view, limits) {
    for (const chart of this.charts) if (chart.isVisible) chart.draw(view, limits);
  }

  // One chart for each link that the telemetry names, made anew only when the names change.
  syncLinks(links) {
    const holder = document.getElementById("links");
    const names = links.map(nameOf);
    if (names.join() === (holder.dataset.names ?? "")) return;
    holder.dataset.names = names.join();
    holder.dataset.count = names.length;
    for (const chart of this.charts.filter((one) => one.id === "wan")) this.seen.unobserve(chart.element);
    this.charts = this.charts.filter((one) => one.id !== "wan");
    holder.replaceChildren(...links.map((link, index) => this.#link(link, index === links.length - 1)));
  }

  toggleTable(panel, button, view) {
    const isTable = !panel.classList.contains("as-table");
    const height = panel.querySelector(".panel-body").offsetHeight;
    panel.classList.toggle("as-table", isTable);
    button.setAttribute("aria-pressed", String(isTable));
    const holder = panel.querySelector(".table-view");
    holder.hidden = !isTable;
    holder.tabIndex = 0;
    holder.style.height = `${height}px`;
    if (isTable) this.#fillTable(holder, panel, view);
  }

  saveCsv(panel, view) {
    const { head, rows } = this.#rows(panel, view);
    const quoted = head.map((name) => `"${name.replaceAll('"', '""')}"`);
    const lines = rows.map(([t, ...values]) => [new Date(t * 1000).toISOString(), ...values.map((value) => value ?? "")].join(","));
    const url = URL.createObjectURL(new Blob([[quoted.join(","), ...lines, ""].join("\n")], { type: "text/csv" }));
    save(`${panel.dataset.panel}.csv`, url);
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  async savePng(panel) {
    for (const chart of this.#of(panel).filter((one) => one.isDrawn)) {
      const { clientWidth: width, clientHeight: height } = chart.element;
      const picture = await window.Plotly.toImage(chart.picture(), { format: "png", width, height, scale: 2 });
      save(`${panel.dataset.panel}.png`, picture);
    }
  }

  #of(panel) {
    return this.charts.filter((chart) => panel.contains(chart.element));
  }

  #rows(panel, view) {
    const columns = this.#of(panel).flatMap((chart) => columnsOf(chart, view));
    const rows = view.times.map((t, i) => [t, ...columns.map((column) => column.values[i])]);
    return { head: [t("chart.time_utc"), ...columns.map((column) => column.name)], rows };
  }

  #fillTable(holder, panel, view) {
    const { head, rows } = this.#rows(panel, view);
    const cell = (value) => element("td", {}, value === null ? t("chart.no_data") : fixed(value, Number.isInteger(value) ? 0 : 2));
    const newest = rows.reverse().slice(0, TABLE_ROWS);
    holder.replaceChildren(element("table", { class: "table" },
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...newest.map(([t, ...values]) => element("tr", {}, element("td", {}, clock(t, true)), ...values.map(cell))))));
  }

  #add(holder, id, template, link) {
    const chart = new Chart(holder, id, template, link);
    this.charts.push(chart);
    this.seen.observe(holder);
    this.cross.attach(chart);
    this.onAdd(chart);
  }

  #link(link, isLast) {
    const plot = element("div", { class: "chart chart-link", role: "img", "aria-label": t("live.link_label", { name: nameOf(link) }) });
    const template = structuredClone(this.figures.wan);
    if (!isLast) {
      Object.assign(template.layout.xaxis, { showticklabels: false, ticks: "" });
      template.layout.margin.b = 6;
    }
    this.#add(plot, "wan", template, nameOf(link));
    const title = element("h3", {}, `${link.source} → ${link.target}`);
    const facts = element("div", { class: "readout" }, title, element("dl", { class: "facts" }));
    return element("div", { class: "link", "data-link": nameOf(link) }, plot, facts);
  }
}

function save(name, href) {
  element("a", { href, download: name }).click();
}
