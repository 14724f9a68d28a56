// Charts of the broker's records: lines over time, a legend of buttons, the numbers as a table, CSV.
// Charts of a page have the crosshair and what is zoomed in common, by mouse and by keys.
// uPlot draws; it comes as a script of its own, before the modules.

import { h } from "./dom.js";
import { short } from "./format.js";

/**
 * @typedef {object} Series
 * @property {string} label
 * @property {number[]} values the newest last
 */

const COLOURS = ["#2f7ed8", "#d9822b", "#2e9e5b", "#b04fc4", "#c93f3f", "#1f9fa8", "#8a7a1f", "#7a6ff0", "#d1568f", "#5f8a2f", "#7d6450", "#5f7285"];
const STEP_S = 5;
const HEIGHT = 220;
const TIME_SPACE = 80; // pixels for a label of the time axis, which has seconds when zoomed
const TIME_HEIGHT = 32;
const BYTE_STEPS = [1, 1024, 1024 ** 2, 1024 ** 3, 1024 ** 4].flatMap((unit) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * unit));
const LABEL_GAP = 8; // pixels between the edge, a label of the y axis, and the lines
const PAGE = "time"; // what charts of a page have in common has this key
const KEYS = "Arrow keys move the crosshair, plus and minus zoom, Escape shows all";

/** How wide the labels of an axis are. @param {any} plot @param {string[] | null} labels @param {number} axis @param {number} cycle */
function labelWidth(plot, labels, axis, cycle) {
  if (cycle > 1) return plot.axes[axis]._size; // it has been measured; a width that goes on changing never settles
  plot.ctx.font = plot.axes[axis].font[0]; // which is larger on screens with more pixels
  const widths = (labels ?? []).map((label) => plot.ctx.measureText(label).width);
  return Math.ceil(Math.max(0, ...widths) / devicePixelRatio) + 2 * LABEL_GAP;
}

export class Chart {
  /**
   * @param {string} id of the element it goes into
   * @param {{title: string, unit?: string, isStacked?: boolean, isBytes?: boolean}} options
   */
  constructor(id, { title, unit = "", isStacked = false, isBytes = false }) {
    this.options = { title, unit, isStacked, isBytes };
    this.box = h("div", {
      class: "chart-box", tabindex: 0, role: "application", "aria-roledescription": "chart",
      "aria-label": `${title}. ${KEYS}`, title: KEYS, keydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
    });
    this.legend = h("div", { class: "chart-legend", role: "group", "aria-label": `Lines of ${title}` });
    this.nothing = h("p", { class: "soft", hidden: true });
    this.text = h("div");
    this.none = h("p", { class: "soft" }, "There are no samples yet");
    this.box.append(this.none);
    const details = h("details", { toggle: () => this.write() }, h("summary", {}, "As a table"), this.text);
    this.details = details;
    /** @type {any} */
    this.plot = null;
    this.labels = "";
    /** @type {Series[]} */
    this.series = [];
    /** @type {number[]} */
    this.times = [];
    /** @type {Set<string>} */
    this.off = new Set();
    const place = document.getElementById(id);
    place?.replaceChildren(
      h("figure", { class: "chart", "aria-label": title },
        h("figcaption", {}, h("h3", {}, title),
          h("button", { type: "button", click: () => this.save() }, "CSV")),
        this.box, this.nothing, this.legend, details),
    );
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT })).observe(this.box);
    document.addEventListener("theme", () => this.draw(true));
  }

  /** @param {unknown} value */
  number(value) {
    return this.options.isBytes ? short(value, 1024, `B${this.options.unit}`) : `${short(value)}${this.options.unit}`;
  }

  /** @param {Series[]} series @param {string} nothing what is said when there is nothing to draw */
  update(series, nothing = "Nothing is recorded yet") {
    this.series = series;
    const n = Math.max(0, ...series.map((each) => each.values.length));
    this.nothing.textContent = nothing;
    this.nothing.hidden = n > 0;
    this.box.hidden = this.legend.hidden = this.details.hidden = n === 0;
    const end = Math.floor(Date.now() / 1000 / STEP_S) * STEP_S;
    this.times = Array.from({ length: n }, (_, at) => end - (n - 1 - at) * STEP_S);
    this.draw(false);
    this.write();
  }

  /** The lines as they are drawn, those of a stack on top of each other. */
  lines() {
    const n = this.times.length;
    /** @type {number[]} */
    let below = new Array(n).fill(0);
    return this.series.map((each) => {
      const gap = n - each.values.length;
      const line = this.times.map((_, at) => (at < gap ? null : (each.values[at - gap] ?? null)));
      if (!this.options.isStacked || this.off.has(each.label)) return line;
      below = line.map((value, at) => (value ?? 0) + (below[at] ?? 0));
      return [...below];
    });
  }

  /** @param {boolean} anew */
  draw(anew) {
    const uPlot = /** @type {any} */ (globalThis).uPlot;
    if (!uPlot || this.times.length === 0) return;
    const labels = this.series.map((each) => each.label).join("\n");
    const data = [this.times, ...this.lines()];
    if (!anew && this.plot && labels === this.labels) {
      this.plot.setData(data, !this.isZoomed);
      this.point(this.plot.cursor.idx);
      return;
    }
    this.labels = labels;
    this.none.remove();
    this.plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("--soft"), grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: this.box.clientWidth || 300, height: HEIGHT,
      padding: [10, 28, 0, 0],
      cursor: { y: false, sync: { key: PAGE, scales: ["x", null] }, points: { size: 6 } },
      legend: { show: false },
      hooks: { setCursor: [(/** @type {any} */ plot) => this.point(plot.cursor.idx)] },
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ _low, /** @type {number} */ high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [
        { ...axis, space: TIME_SPACE, size: TIME_HEIGHT, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 0], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 0]] },
        { ...axis, size: labelWidth, gap: LABEL_GAP, ...(this.options.isBytes && { incrs: BYTE_STEPS }),
          values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map((mark) => this.number(mark)) },
      ],
      // What lies on something is filled down to it, not to the ground.
      bands: this.options.isStacked ? this.series.slice(1).map((_, at) => ({ series: [at + 2, at + 1] })) : [],
      series: [{}, ...this.series.map((each, at) => ({
        label: each.label, stroke: COLOURS[at % COLOURS.length], width: 1.5, points: { show: false },
        show: !this.off.has(each.label),
        fill: this.options.isStacked ? `${COLOURS[at % COLOURS.length]}33` : undefined,
      }))],
    }, data, this.box);
    this.name();
  }

  /** Whether a part of the time is drawn. */
  get isZoomed() {
    const { min, max } = this.plot.scales.x;
    const [times] = this.plot.data;
    return min > times[0] || max < times.at(-1);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) this.move(step);
    else if (event.key === "+") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Escape") this.zoom(Infinity);
    else return;
    event.preventDefault();
  }

  /** Move the crosshair of all charts, from the newest sample if there is none. @param {number} step */
  move(step) {
    const [first, last] = this.plot.series[0].idxs;
    const { idx, left } = this.plot.cursor;
    const at = left < 0 || idx === null || idx === undefined ? last : Math.min(Math.max(idx + step, first), last);
    this.plot.setCursor({ left: this.plot.valToPos(this.times[at], "x"), top: 0 }, true, true);
  }

  /** Show a part of the time in all charts: around the crosshair, or up to the newest sample. @param {number} factor of what is shown */
  zoom(factor) {
    const { min, max } = this.plot.scales.x;
    const [first, end] = [this.times[0] ?? 0, this.times.at(-1) ?? 0];
    const width = Math.min(Math.max((max - min) * factor, STEP_S), end - first);
    const { idx, left } = this.plot.cursor;
    const middle = (left >= 0 && this.times[idx]) || end;
    const begin = Math.max(first, Math.min(middle - width / 2, end - width));
    for (const plot of /** @type {any} */ (globalThis).uPlot.sync(PAGE).plots) plot.setScale("x", { min: begin, max: begin + width });
    this.point(this.plot.cursor.idx);
  }

  /** The legend: a button for each line. */
  name() {
    this.marks = this.series.map(() => h("span"));
    this.legend.replaceChildren(...this.series.map((each, at) => {
      const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      bar.setAttribute("width", "12");
      bar.setAttribute("height", "4");
      bar.setAttribute("fill", COLOURS[at % COLOURS.length] ?? "");
      swatch.append(bar);
      swatch.setAttribute("aria-hidden", "true");
      const button = h("button", {
        type: "button", "aria-pressed": String(!this.off.has(each.label)),
        click: () => {
          if (!this.off.delete(each.label)) this.off.add(each.label);
          button.setAttribute("aria-pressed", String(!this.off.has(each.label)));
          this.plot?.setSeries(at + 1, { show: !this.off.has(each.label) });
          this.draw(false);
        },
      }, swatch, h("span", {}, each.label), this.marks?.[at]);
      return button;
    }));
    this.point(null);
  }

  /** @param {number | null | undefined} at */
  point(at) {
    this.series.forEach((each, index) => {
      const gap = this.times.length - each.values.length;
      const value = each.values[(at ?? this.times.length - 1) - gap];
      const mark = this.marks?.[index];
      if (mark) mark.textContent = value === undefined ? "" : this.number(value);
    });
  }

  /** The alternative in text, written while somebody reads it. */
  write() {
    if (!this.details.open) return;
    const rows = this.series.map((each) => {
      const values = each.values;
      const sum = values.reduce((total, value) => total + value, 0);
      const cells = [values.at(-1), Math.min(...values), sum / (values.length || 1), Math.max(...values)];
      return h("tr", {}, h("th", { scope: "row" }, each.label), cells.map((cell) => h("td", { class: "number" }, values.length ? this.number(cell) : "–")));
    });
    const heads = ["Line", "Now", "Least", "Mean", "Most"].map((name) => h("th", { scope: "col" }, name));
    this.text.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
  }

  /** Have the browser save what is drawn. */
  save() {
    // A name may be of anybody: a spreadsheet takes one that begins so for a formula.
    const quote = (/** @type {string} */ text) => `"${text.replace(/^(?=[=+\-@\t\r])/, "'").replaceAll('"', '""')}"`;
    const head = ["time", ...this.series.map((each) => quote(each.label))].join(",");
    const lines = this.times.map((time, at) => [
      new Date(time * 1000).toISOString(),
      ...this.series.map((each) => each.values[at - (this.times.length - each.values.length)] ?? ""),
    ].join(","));
    download(`${this.options.title}.csv`, [head, ...lines].join("\r\n"), "text/csv");
  }
}

/**
 * Have the browser save a text as a file.
 * @param {string} name
 * @param {string} text
 * @param {string} kind
 */
export function download(name, text, kind) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/**
 * The records of fields as lines: `publish_details.log` is "publish".
 * @param {Record<string, any>} stats
 * @param {string[]} names
 * @returns {Series[]}
 */
export function logs(stats, names) {
  return names.map((name) => ({
    label: name.replaceAll("_", " "),
    values: stats?.[`${name}_details`]?.log ?? stats?.[`${name}_log`] ?? [],
  }));
}
