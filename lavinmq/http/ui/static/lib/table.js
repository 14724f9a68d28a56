// Tables: the server sorts, searches and pages; rows are changed in place.

import { rowsOf } from "./api.js";
import { change, parameters } from "./address.js";
import { byId, focusOn, h, keepFocus, show } from "./dom.js";
import { live } from "./live.js";

/** @typedef {import("./api.js").Row} Row */
/**
 * @typedef {object} Column
 * @property {string} label
 * @property {(row: Row) => import("./dom.js").Child | import("./dom.js").Child[]} cell
 * @property {string} [sort] what the server sorts by
 * @property {boolean} [number]
 * @property {string} [heading] of a check box in the place of the label
 */
/**
 * @typedef {object} Options
 * @property {string} id of the table
 * @property {string} box id of the element it goes into
 * @property {() => string} path of the list
 * @property {string[]} key fields that tell rows apart
 * @property {Column[]} columns
 * @property {string} [empty] said when there is nothing
 * @property {string} [counter] id of what shows how many there are
 * @property {boolean} [isMain] its state is in the address
 * @property {boolean} [isStill] it is not loaded by itself
 * @property {(rows: Row[], answer: any) => Row[] | void} [arrived]
 * @property {(rows: Row[]) => Promise<boolean>} [beside] asks what else is shown of rows, which do not wait for it; whether
 *   that has changed
 */

const STATE = ["page", "page_size", "name", "use_regex", "sort", "sort_reverse"];
const PAGE_SIZE = 100;
const NUMBERS = ["page", "page_size"];
const MOST = 10_000; // rows of a page, by the API

export class Table {
  /** @param {Options} options */
  constructor(options) {
    this.options = options;
    /** @type {Map<string, {row: HTMLTableRowElement, data: Row}>} */
    this.shown = new Map();
    /** @type {Row} */
    this.own = {};
    this.hiddenKey = `hiddenTableCols${location.pathname}${options.id}`;
    /** @type {Set<string>} */
    this.hidden = new Set(JSON.parse(sessionStorage.getItem(this.hiddenKey) ?? "[]"));
    this.stateKey = `${location.pathname.split("/").pop() || "overview"}-queryState`;
    if (options.isMain) this.restore();
    this.filter = h("input", {
      type: "search", class: "filter-table", placeholder: "Filter regex", "aria-label": "Filter regex",
      value: this.state.name ?? "", maxlength: 1000,
    });
    this.info = h("span", { class: "table-page-info" });
    const chooser = h("button", { type: "button", class: "row-button", "aria-expanded": "false", click: () => this.chooseColumns(chooser) }, "Columns");
    this.tools = h("div", { class: "table-tools" }, this.filter, this.info, h("span", { class: "grow" }), chooser);
    this.error = h("p", { id: `${options.id}-error`, class: "error", role: "alert", hidden: true });
    this.body = h("tbody");
    this.heads = options.columns.map((column) => {
      const head = h("th", { scope: "col", class: column.number ? "number" : "", "data-sort-key": column.sort });
      if (column.sort) head.append(h("button", { type: "button", click: () => this.sortBy(column) }, column.label));
      else if (column.heading) head.append(h("input", { type: "checkbox", id: column.heading, "aria-label": "Tick all" }));
      else head.append(column.label || h("span", { class: "unseen" }, "Actions"));
      return head;
    });
    this.pages = h("nav", { class: "pagination", tabindex: -1, "aria-label": "Pages of the table", hidden: true });
    this.build();
    this.reload = options.isStill ? async () => {} : live({
      path: () => this.path(), take: (answer) => this.take(answer), failed: (error) => this.failed(error),
    });
    if (options.isMain) window.addEventListener("hashchange", () => void this.moved());
  }

  restore() {
    const kept = sessionStorage.getItem(this.stateKey);
    if (kept && !STATE.some((name) => parameters().has(name))) {
      const merged = parameters();
      for (const [name, value] of new URLSearchParams(kept)) merged.set(name, value);
      if (merged.toString()) history.replaceState(null, "", `#${merged}`);
    }
  }

  /** @returns {Record<string, string>} */
  get state() {
    const from = this.options.isMain ? Object.fromEntries(parameters()) : this.own;
    // A number that the API would refuse cannot be mended on the page, and is kept for the next visit.
    const isGood = (/** @type {string} */ name) => !NUMBERS.includes(name)
      || (/^[1-9]\d*$/.test(from[name] ?? "") && (name === "page" || Number(from[name]) <= MOST));
    return Object.fromEntries(STATE.filter((name) => from[name] && isGood(name)).map((name) => [name, from[name]]));
  }

  /** @param {Record<string, string | number | null>} changes */
  set(changes) {
    if (this.options.isMain) {
      change(changes);
      return;
    }
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) delete this.own[name];
      else this.own[name] = String(value);
    }
    void this.moved();
  }

  async moved() {
    const { name } = this.state;
    if (document.activeElement !== this.filter) this.filter.value = name ?? "";
    await this.reload();
  }

  build() {
    const { id } = this.options;
    let timer = 0;
    const apply = () => {
      clearTimeout(timer);
      const text = this.filter.value;
      if ((this.state.name ?? "") === text) return;
      this.set(text ? { name: text, use_regex: "true", page: 1 } : { name: null, use_regex: null, page: 1 });
    };
    this.filter.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(apply, 500);
    });
    this.filter.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.filter.value = "";
      if (event.key === "Enter" || event.key === "Escape") {
        event.preventDefault();
        apply();
      }
    });
    const table = h("table", { id, class: "table" }, h("thead", {}, h("tr", {}, this.heads)), this.body);
    byId(this.options.box).replaceChildren(
      this.tools, this.error,
      h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": `Table ${id}` }, table),
      this.pages,
    );
    this.showColumns();
  }

  /** @param {HTMLElement} chooser */
  chooseColumns(chooser) {
    const open = this.tools.nextElementSibling;
    if (open?.classList.contains("columns-box")) {
      open.remove();
      chooser.setAttribute("aria-expanded", "false");
      focusOn(chooser);
      return;
    }
    chooser.setAttribute("aria-expanded", "true");
    const box = h("div", {
      class: "columns-box", role: "group", "aria-label": "Columns to show",
      keydown: (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && this.chooseColumns(chooser),
    });
    for (const column of this.options.columns.filter((each) => each.label)) {
      const tick = h("input", { type: "checkbox" });
      tick.checked = !this.hidden.has(column.label);
      tick.addEventListener("change", () => {
        if (tick.checked) this.hidden.delete(column.label);
        else this.hidden.add(column.label);
        sessionStorage.setItem(this.hiddenKey, JSON.stringify([...this.hidden]));
        this.showColumns();
      });
      box.append(h("label", {}, tick, " ", column.label));
    }
    this.tools.after(box);
  }

  showColumns() {
    const isHidden = this.options.columns.map((column) => this.hidden.has(column.label));
    for (const row of [this.heads, ...[...this.shown.values()].map((each) => [...each.row.cells])]) {
      row.forEach((cell, at) => {
        cell.hidden = isHidden[at] ?? false;
      });
    }
  }

  /** @param {Column} column */
  sortBy(column) {
    const { sort, sort_reverse } = this.state;
    const isReverse = sort === column.sort && sort_reverse !== "true";
    this.set({ sort: column.sort ?? "", sort_reverse: String(isReverse), page: 1 });
  }

  /** What is asked of the API for what is shown. */
  path() {
    const state = this.state;
    const query = new URLSearchParams({ page: "1", page_size: String(PAGE_SIZE), ...state });
    if (this.options.isMain) sessionStorage.setItem(this.stateKey, new URLSearchParams(state).toString());
    const path = this.options.path();
    return `${path}${path.includes("?") ? "&" : "?"}${query}`;
  }

  /** @param {any} answer */
  async take(answer) {
    let rows = rowsOf(answer);
    const counted = Array.isArray(answer) ? null : answer;
    if (counted && counted.page_count > 0 && counted.page > counted.page_count) {
      this.set({ page: counted.page_count });
      return;
    }
    rows = this.options.arrived?.(rows, answer) ?? rows;
    this.render(rows);
    this.count(counted, rows.length);
    const mine = this.shown;
    if ((await this.options.beside?.(rows)) && this.shown === mine) this.render(rows);
  }

  /** @param {import("./api.js").ApiError | null} error */
  failed(error) {
    if (!error) this.fail("");
    else this.fail(error.status === 403 ? `Access denied: ${error.message}` : `Something went wrong: ${error.message}`);
    return true;
  }

  /** @param {string} text */
  fail(text) {
    this.error.textContent = text;
    this.error.hidden = !text;
  }

  /**
   * @param {Row | null} counted
   * @param {number} n
   */
  count(counted, n) {
    const total = counted?.total_count ?? n;
    const matched = counted?.filtered_count ?? total;
    const first = ((counted?.page ?? 1) - 1) * (counted?.page_size ?? PAGE_SIZE) + 1;
    this.info.textContent = n ? `${first}–${first + n - 1} of ${matched}` : "0 results";
    if (this.options.counter) show(this.options.counter, total);
    const sort = this.state.sort;
    this.options.columns.forEach((column, at) => {
      const head = this.heads[at];
      const isSorted = Boolean(column.sort) && column.sort === sort;
      const isDown = this.state.sort_reverse === "true";
      head?.classList.toggle("sorting_asc", isSorted && !isDown);
      head?.classList.toggle("sorting_desc", isSorted && isDown);
      if (isSorted) head?.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else head?.removeAttribute("aria-sort");
    });
    this.page(counted?.page ?? 1, counted?.page_count ?? 1);
  }

  /**
   * @param {number} at
   * @param {number} count
   */
  page(at, count) {
    const mark = `${at}/${count}`;
    if (this.pages.dataset.mark === mark) return;
    this.pages.dataset.mark = mark;
    this.pages.hidden = count < 2;
    /** @param {string} text @param {number} to */
    const item = (text, to) => {
      const button = h("button", { type: "button", class: "page-item", click: () => this.set({ page: to }) }, text);
      button.disabled = to < 1 || to > count;
      if (text === String(at)) {
        button.classList.add("active");
        button.setAttribute("aria-current", "page");
      }
      return button;
    };
    const numbers = [...new Set([1, at - 2, at - 1, at, at + 1, at + 2, count])].filter((n) => n >= 1 && n <= count);
    /** @type {Node[]} */
    const items = [item("Previous", at - 1)];
    numbers.forEach((n, index) => {
      if (index && n - (numbers[index - 1] ?? 0) > 1) items.push(h("span", {}, "…"));
      items.push(item(String(n), n));
    });
    items.push(item("Next", at + 1));
    keepFocus(this.pages, () => this.pages.replaceChildren(...items));
  }

  /** @param {Row} row */
  keyOf(row) {
    return JSON.stringify(this.options.key.map((name) => row[name]));
  }

  /** @param {Row[]} rows */
  render(rows) {
    const before = this.shown;
    this.shown = new Map();
    /** @type {HTMLTableRowElement[]} */
    const wanted = [];
    for (const data of rows) {
      let key = this.keyOf(data);
      while (this.shown.has(key)) key += "+";
      const row = before.get(key)?.row ?? this.newRow(data);
      this.fill(row, data);
      this.shown.set(key, { row, data });
      wanted.push(row);
    }
    if (wanted.length === 0) {
      const text = this.state.name ? "Nothing matches" : this.options.empty ?? "Nothing here";
      this.showRows([h("tr", {}, h("td", { class: "empty", colspan: this.options.columns.length }, h("span", {}, text)))]);
    } else if (wanted.length !== this.body.rows.length || wanted.some((row, at) => this.body.rows[at] !== row)) {
      this.showRows(wanted);
    }
    if (this.hidden.size) this.showColumns();
  }

  /** @param {HTMLTableRowElement[]} rows */
  showRows(rows) {
    keepFocus(this.body, () => this.body.replaceChildren(...rows), { isMadeAnew: false });
  }

  /** @param {Row} data */
  newRow(data) {
    const row = h("tr");
    for (const name of this.options.key) row.setAttribute(`data-${name.replaceAll("_", "-")}`, JSON.stringify(data[name]));
    for (const column of this.options.columns) row.append(h("td", { class: column.number ? "number" : "text" }));
    return row;
  }

  /**
   * @param {HTMLTableRowElement} row
   * @param {Row} data
   */
  fill(row, data) {
    this.options.columns.forEach((column, at) => {
      const cell = row.cells[at];
      const content = column.cell(data);
      if (!cell) return;
      if (typeof content === "string" || typeof content === "number") {
        if (cell.textContent !== String(content)) cell.textContent = String(content);
        return;
      }
      const made = h("td", {}, content);
      const same = made.childNodes.length === cell.childNodes.length &&
        [...made.childNodes].every((node, index) => node.isEqualNode(cell.childNodes[index] ?? null));
      if (!same) keepFocus(cell, () => cell.replaceChildren(...made.childNodes));
    });
  }
}
