// Ctrl-K: a search in the names of everything. The API is asked for a few names of each kind; loaded
// when somebody searches first.

import { ApiError, get, rowsOf } from "./api.js";
import { to } from "./address.js";
import { h } from "./dom.js";
import { is } from "./session.js";
import { isOfChannel } from "./things.js";

/** @typedef {import("./api.js").Row} Row */
/** @typedef {{label: string, more: string, href: string}} Hit */
/**
 * @typedef {object} Kind
 * @property {string} label
 * @property {string} path of the list
 * @property {string} columns that the hits are made of
 * @property {(row: Row) => string} href
 * @property {(row: Row) => string[]} [said] what it is called, and what is told beside that; unless told, its name and virtual host
 * @property {string[]} [tags] whoever has none of them is not answered
 */

const MOST = 6;
const MAX_LENGTH = 200;
const WAIT_MS = 200;
const named = (/** @type {string} */ page) => (/** @type {Row} */ row) => to(page, { vhost: row.vhost, name: row.name });
const isStream = (/** @type {Row} */ row) => row.arguments?.["x-queue-type"] === "stream";
/** @type {Kind[]} */
const KINDS = [
  { label: "Queues", path: "queues", columns: "name,vhost,arguments", href: (row) => named(isStream(row) ? "stream" : "queue")(row) },
  { label: "Exchanges", path: "exchanges", columns: "name,vhost", href: named("exchange") },
  {
    label: "Connections", path: "connections", columns: "name,vhost,client_properties,client_id", href: (row) => to("connection", { name: row.name }),
    said: (row) => [row.client_properties?.connection_name, row.client_id, row.name, row.vhost].filter(Boolean).slice(0, 2),
  },
  {
    label: "Consumers", path: "consumers", columns: "consumer_tag,queue,channel_details", href: (row) => to(isOfChannel(row) ? "channel" : "connection", { name: row.channel_details?.name ?? "" }),
    said: (row) => [row.consumer_tag, row.queue?.name ?? ""],
  },
  {
    label: "MQTT sessions", path: "mqtt/sessions", columns: "client_id,vhost", href: (row) => to("mqtt-session", { vhost: row.vhost, client_id: row.client_id }),
    said: (row) => [row.client_id, row.vhost],
  },
  { label: "Virtual hosts", path: "vhosts", columns: "name", href: (row) => to("vhost", { name: row.name }) },
  { label: "Policies", path: "policies", columns: "name,vhost", href: (row) => to("policies", { name: row.name }), tags: ["policymaker"] },
  { label: "Operator policies", path: "operator-policies", columns: "name,vhost", href: (row) => to("operator-policies", { name: row.name }), tags: ["policymaker"] },
  { label: "Shovels", path: "parameters/shovel", columns: "name,vhost", href: (row) => to("shovels", { name: row.name }), tags: ["policymaker"] },
  { label: "Upstreams", path: "parameters/federation-upstream", columns: "name,vhost", href: (row) => to("federation", { name: row.name }), tags: ["policymaker"] },
  { label: "Users", path: "users", columns: "name", href: (row) => to("user", { name: row.name }), tags: [] },
];

/** Whether the frame offers an item to the user. @param {Element} item */
const isOffered = (item) =>
  [...item.classList, ...(item.parentElement?.closest("li")?.classList ?? [])]
    .filter((name) => name.startsWith("require-")).every((name) => is(name.slice("require-".length)));

/** @param {string} text @returns {Hit[]} pages of the menu */
function pages(text) {
  return [...document.querySelectorAll("#menu-content li li")].filter(isOffered).flatMap((item) => {
    const label = item.querySelector(".menu-item-label")?.textContent ?? "";
    const href = item.querySelector("a")?.getAttribute("href") ?? "";
    return label.toLowerCase().includes(text.toLowerCase()) ? [{ label, more: "", href }] : [];
  });
}

/** @param {Kind} kind @param {string} text @returns {Promise<[string, Hit[], number]>} with how many there are */
async function ask(kind, text) {
  const pattern = `(?i)${text.replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&")}`;
  const query = new URLSearchParams({ name: pattern, use_regex: "true", page: "1", page_size: String(MOST), columns: kind.columns });
  try {
    const said = await get(`${kind.path}?${query}`);
    const hits = rowsOf(said).map((row) => {
      const [label, more] = kind.said?.(row) ?? [row.name, row.vhost];
      return { label: String(label ?? ""), more: String(more ?? ""), href: kind.href(row) };
    }).filter((hit) => hit.label);
    return [kind.label, hits, said.filtered_count ?? hits.length];
  } catch (error) {
    if (error instanceof ApiError && (error.status === 403 || error.status === 400)) return [kind.label, [], 0];
    throw error;
  }
}

class Search {
  constructor() {
    this.field = h("input", {
      type: "search", id: "search-field", role: "combobox", "aria-expanded": "true", "aria-controls": "search-hits", "aria-autocomplete": "list",
      "aria-label": "Search everything", placeholder: "Queues, exchanges, connections, consumers, users, pages", autocomplete: "off", maxlength: MAX_LENGTH,
      input: () => this.wait(), keydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
    });
    this.list = h("div", { id: "search-hits", role: "listbox", "aria-label": "What was found" });
    this.said = h("p", { id: "search-said", class: "soft", role: "status" });
    this.dialog = h("dialog", { id: "search", "aria-label": "Search", click: (/** @type {Event} */ event) => event.target === this.dialog && this.dialog.close() },
      this.field, this.list, this.said);
    document.body.append(this.dialog);
    this.timer = 0;
    this.isBusy = false;
    this.asked = "";
    this.at = 0;
  }

  open() {
    if (this.dialog.open) return;
    this.dialog.showModal();
    this.field.select();
    if (!this.list.firstChild) this.show([["Pages", pages(""), 0]]);
  }

  wait() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.find(), WAIT_MS);
  }

  /** One question of each kind at a time; what was typed meanwhile is asked behind it. */
  async find() {
    const text = this.field.value.trim();
    if (this.isBusy || text === this.asked) return;
    this.asked = text;
    this.isBusy = true;
    /** @type {[string, Hit[], number][]} */
    const found = [["Pages", pages(text), 0]];
    try {
      if (text) found.push(...await Promise.all(KINDS.filter(({ tags }) => !tags || is(...tags)).map((kind) => ask(kind, text))));
      this.show(found);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.show(found);
      this.said.textContent = error.message;
      this.asked = "\n";
    } finally {
      this.isBusy = false;
    }
    if (this.field.value.trim() !== text) this.wait();
  }

  /** @param {[string, Hit[], number][]} found */
  show(found) {
    this.at = 0;
    let n = 0;
    const groups = found.filter(([, hits]) => hits.length);
    this.list.replaceChildren(...groups.map(([label, hits, count], at) => h("div", { role: "group", "aria-labelledby": `search-group-${at}` },
      h("div", { class: "search-group", id: `search-group-${at}` }, count > hits.length ? `${label}, ${hits.length} of ${count}` : label),
      hits.map((hit) => h("a", { role: "option", id: `search-hit-${n++}`, href: hit.href, tabindex: -1, "aria-selected": "false", click: () => this.dialog.close() },
        h("span", {}, hit.label), hit.more && h("small", {}, hit.more))))));
    this.said.textContent = n ? `${n} found` : "Nothing has such a name";
    this.mark();
  }

  get hits() {
    return /** @type {HTMLAnchorElement[]} */ ([...this.list.querySelectorAll("[role=option]")]);
  }

  mark() {
    for (const [at, hit] of this.hits.entries()) hit.setAttribute("aria-selected", String(at === this.at));
    const hit = this.hits[this.at];
    hit?.scrollIntoView({ block: "nearest" });
    this.field.setAttribute("aria-activedescendant", hit?.id ?? "");
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const n = this.hits.length;
    if (step && n) {
      event.preventDefault();
      this.at = (this.at + step + n) % n;
      this.mark();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.hits[this.at]?.click();
    }
  }
}

/** @type {Search | null} */
let search = null;
/** Show it. */
export function open() {
  search ??= new Search();
  search.open();
}
