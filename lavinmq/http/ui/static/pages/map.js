// A map of a virtual host: exchanges, what is bound to them, who consumes. Many things of a kind are
// shown as groups by the beginning of their names; a group is opened to see what is in it.

import { chosenVhost, get, path, rowsOf } from "../lib/api.js";
import { to } from "../lib/address.js";
import { act } from "../lib/form.js";
import { byId, h, show } from "../lib/dom.js";
import { count, rate } from "../lib/format.js";
import { fillVhosts, known } from "../lib/frame.js";
import { is } from "../lib/session.js";
import { clientOf, clientsOf, drawn, groupsOf, KINDS, waysOf } from "../lib/map.js";

/** @typedef {import("../lib/map.js").Thing} Thing */
/** @typedef {import("../lib/map.js").Way} Way */

const PAGE_SIZE = 1000;
const MOST_PAGES = 20; // 20 000 rows of a kind
const TABLE_ROWS = 500;
const form = /** @type {HTMLFormElement} */ (byId("map-form"));
const select = /** @type {HTMLSelectElement} */ (byId("map-vhost"));
const text = /** @type {HTMLInputElement} */ (byId("map-text"));
const details = /** @type {HTMLDetailsElement} */ (byId("map-details"));
/** @type {Thing[]} */
let things = [];
/** @type {Way[]} */
let ways = [];
/** @type {Set<string>} */
const open = new Set();
let isCut = false;
let asked = 0;

/**
 * All rows of a list in a virtual host, a page after the other.
 * @param {string} kind
 * @param {string} vhost
 * @param {string} columns
 */
async function all(kind, vhost, columns) {
  const found = [];
  // Who monitors sees virtual hosts that it has no permissions in, in lists of them all alone.
  const isOne = is() || (is("management", "policymaker") && !is("monitoring"));
  const list = !isOne ? kind : kind === "connections" ? path`vhosts/${vhost}/connections` : kind + path`/${vhost}`;
  for (let page = 1; page <= MOST_PAGES; page += 1) {
    const said = await get(`${list}?${new URLSearchParams({ page: String(page), page_size: String(PAGE_SIZE), columns })}`);
    for (const row of rowsOf(said)) if (isOne || (row.vhost ?? row.queue?.vhost) === vhost) found.push(row);
    if (page >= said.page_count) return found;
  }
  isCut = true;
  return found;
}

async function load() {
  const mine = ++asked;
  const vhost = select.value;
  isCut = false;
  if (!vhost) {
    show("map-said", "There is no virtual host that you may see.");
    return;
  }
  show("map-said", "Loading");
  const [exchanges, queues, bindings, consumers, connections] = await Promise.all([
    all("exchanges", vhost, "name,vhost,message_stats"),
    all("queues", vhost, "name,vhost,arguments,messages,message_stats"),
    all("bindings", vhost, "vhost,source,destination,destination_type,routing_key"),
    all("consumers", vhost, "queue,consumer_tag,channel_details"),
    all("connections", vhost, "name,vhost,client_properties,client_id"),
  ]);
  if (mine !== asked) return; // another one is under way
  const rateOf = (/** @type {any} */ row, /** @type {string} */ name) => row.message_stats?.[`${name}_details`]?.rate ?? 0;
  const isStream = (/** @type {any} */ row) => row.arguments?.["x-queue-type"] === "stream";
  things = [
    ...exchanges.map((row) => ({ kind: "exchange", name: row.name, label: row.name || "(default)", href: to("exchange", { vhost, name: row.name }), rate: rateOf(row, "publish_in"), messages: 0 })),
    ...queues.map((row) => ({ kind: "queue", name: row.name, label: row.name, href: to(isStream(row) ? "stream" : "queue", { vhost, name: row.name }), rate: rateOf(row, "deliver_get"), messages: row.messages })),
    ...clientsOf(consumers, connections, (name) => to("connection", { name })),
  ];
  ways = [
    ...bindings.filter((row) => row.source).map((row) => ({
      from: `exchange ${row.source}`, to: `${row.destination_type} ${row.destination}`, key: row.routing_key ?? "" })),
    ...consumers.map((row) => ({ from: `queue ${row.queue?.name}`, to: `client ${clientOf(row)}`, key: "" })),
  ];
  draw();
}

/** @type {[Element, Element][]} */
let lines = [];
function draw() {
  const focused = document.activeElement?.closest("[data-id]")?.getAttribute("data-id");
  const wanted = text.value.toLowerCase();
  const shown = new Map();
  for (const kind of KINDS) {
    const some = things.filter((each) => each.kind === kind && [each.label, each.name, each.more].join("\n").toLowerCase().includes(wanted));
    const groups = groupsOf(kind, some, open);
    for (const group of groups) for (const thing of group.things) shown.set(`${thing.kind} ${thing.name}`, group);
    byId(`map-${kind}`).replaceChildren(...groups.map(item));
  }
  const joined = waysOf(ways, shown);
  const at = (/** @type {string} */ id) => document.querySelector(`[data-id="${CSS.escape(id)}"]`);
  lines = joined.flatMap(({ from, to: end }) => {
    const pair = [at(from.id), at(end.id)];
    return pair[0] && pair[1] ? [/** @type {[Element, Element]} */ (pair)] : [];
  });
  drawn(byId("map"), lines);
  const said = KINDS.map((kind) => count(things.filter((each) => each.kind === kind).length));
  show("map-said", `${said[0]} exchanges, ${said[1]} queues, ${said[2]} connections that consume, ${count(ways.length)} ways between them.${isCut ? " There are more than are shown." : ""}`);
  write(joined);
  const again = focused && document.querySelector(`[data-id="${CSS.escape(focused)}"]`);
  if (again) /** @type {HTMLElement | null} */ (again.querySelector("button, a") ?? again)?.focus();
}

/** @param {import("../lib/map.js").Group} group */
function item(group) {
  const numbers = [group.more, group.messages ? `${count(group.messages)} messages` : "", group.rate ? rate(group.rate) : ""].filter(Boolean).join(", ");
  const label = group.isGroup
    ? h("button", {
      type: "button", class: "row-button", "aria-expanded": String(group.isOpen),
      click: () => {
        if (!open.delete(group.id)) open.add(group.id);
        draw();
      },
    }, `${group.label} (${count(group.size)})`)
    : h("a", { href: group.things[0]?.href }, group.label);
  return h("li", { "data-id": group.id, class: group.isInside ? "inside" : "" }, label, numbers && h("small", {}, numbers));
}

/** @param {ReturnType<typeof waysOf>} joined */
function write(joined) {
  if (!details.open) return;
  const heads = ["From", "To", "Ways", "Keys"].map((name) => h("th", { scope: "col" }, name));
  const rows = joined.slice(0, TABLE_ROWS).map((way) => h("tr", {},
    [way.from.label, way.to.label, count(way.n), [...way.keys].join(", ")].map((cell) => h("td", { class: "text" }, cell))));
  byId("map-table").replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)),
    joined.length > TABLE_ROWS ? h("p", { class: "soft" }, `and ${count(joined.length - TABLE_ROWS)} more`) : "");
}

details.addEventListener("toggle", draw);
text.addEventListener("input", draw);
select.addEventListener("change", () => void act(load));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  void act(load);
});
new ResizeObserver(() => drawn(byId("map"), lines)).observe(byId("map"));
void act(async () => {
  await known;
  await fillVhosts("map-vhost");
  if (!chosenVhost() && [...select.options].some((each) => each.value === "/")) select.value = "/";
  await load();
});
