// One queue, in four tabs.

import { get, path, request, rowsOf } from "../lib/api.js";
import { change, parameter } from "../lib/address.js";
import { startBrowsing } from "../lib/browse.js";
import { Chart } from "../lib/chart.js";
import { byId, h, hide, show } from "../lib/dom.js";
import { act, actionButton, jsonObject, onSubmit } from "../lib/form.js";
import { count } from "../lib/format.js";
import "../lib/frame.js";
import { live } from "../lib/live.js";
import { publishForm } from "../lib/publish.js";
import { here, name, showQueue, startActions, suggestQueues, vhost } from "../lib/queue.js";
import { Table } from "../lib/table.js";
import { startTracing } from "../lib/trace.js";
import { channelLink, exchangeLink, inline, isOfChannel, messageCard } from "../lib/things.js";

const MORE = 10;
const SHOWN_BYTES = 50_000;
const chart = new Chart("chart", { title: "Message rates", unit: "/s" });
/** @type {import("../lib/api.js").Row} */
let one = {};
let nConsumers = 20;

const tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".tab")]);
function showTab() {
  const asked = parameter("tab");
  const chosen = tabs.some((tab) => tab.dataset.tab === asked) ? asked : "overview";
  for (const tab of tabs) {
    const isActive = tab.dataset.tab === chosen;
    tab.classList.toggle("active", isActive);
    tab.setAttribute("aria-selected", String(isActive));
    tab.tabIndex = isActive ? 0 : -1;
    byId(`pane-${tab.dataset.tab}`).hidden = !isActive;
  }
}
tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => change({ tab: tab.dataset.tab ?? "" }));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    const next = step !== undefined && tabs.at(step % tabs.length);
    if (!next) return;
    event.preventDefault();
    next.click();
    next.focus();
  });
});
showTab();

const consumers = new Table({
  id: "consumers-table", box: "consumers-box", path: () => "", key: ["consumer_tag", "channel_name"], isStill: true, empty: "Nobody consumes",
  columns: [
    { label: "Channel", cell: channelLink },
    { label: "Consumer tag", cell: (row) => row.consumer_tag },
    { label: "Ack required", cell: (row) => (row.ack_required ? "yes" : "no") },
    { label: "Exclusive", cell: (row) => (row.exclusive ? "yes" : "no") },
    { label: "Prefetch count", number: true, cell: (row) => count(row.prefetch_count) },
    {
      label: "",
      cell: (row) => isOfChannel(row) && actionButton("Cancel", async () => {
        const channel = row.channel_details ?? {};
        await request("DELETE", path`consumers/${vhost()}/${channel.connection_name}/${channel.number}/${row.consumer_tag}`);
        await reload();
      }, { confirm: `Cancel the consumer ${row.consumer_tag}? Its client is told.` }),
    },
  ],
});
consumers.tools.hidden = true;

const reload = live({ path: () => `${here()}?consumer_list_length=${nConsumers}`, take: (said) => {
  one = said;
  showQueue(one, chart);
  const total = one.consumers ?? 0;
  show("consumer-count", total);
  const rows = (one.consumer_details ?? []).map((/** @type {any} */ row) => ({ ...row, channel_name: row.channel_details?.name }));
  consumers.render(rows);
  const more = byId("load-more-consumers");
  hide(more, rows.length >= total, byId("consumers-table"));
  more.textContent = `Showing ${rows.length} of total ${total} consumers, click to load more`;
  hide(byId("restart"), one.state !== "closed", byId("main"));
} });

const bindings = new Table({
  id: "bindings-table", box: "bindings-box", path: () => `${here()}/bindings`, key: ["source", "properties_key"], empty: "Bound to the default exchange only",
  arrived: (rows, answer) => {
    // A list that is not paged still has the one of the default exchange, which cannot be taken away.
    const n = answer?.total_count ?? rows.length;
    show("bindings-count", n);
    show("bindings-badge", n);
  },
  columns: [
    { label: "From", sort: "source", cell: (row) => exchangeLink(row.vhost ?? vhost(), row.source) },
    { label: "Binding key", sort: "routing_key", cell: (row) => row.routing_key },
    { label: "Arguments", cell: (row) => inline(row.arguments) },
    {
      label: "",
      cell: (row) => row.source !== "" && actionButton("Unbind", async () => {
        await request("DELETE", path`bindings/${vhost()}/e/${row.source}/q/${row.destination}/${row.properties_key}`);
        await bindings.reload();
      }),
    },
  ],
});

byId("load-more-consumers").addEventListener("click", () => {
  nConsumers += MORE;
  void reload();
});
byId("restart").addEventListener("click", () => void act(async () => {
  await request("PUT", `${here()}/restart`);
  await reload();
}));
startActions(() => one, reload);
startBrowsing(reload);
startTracing(here);
onSubmit("purgeQueue", async ({ count: n }) => {
  await request("DELETE", `${here()}/contents${n ? `?count=${n}` : ""}`);
  await reload();
  return "Purged";
}, { confirm: ({ count: n }) => `Delete ${n ? `the ${n} oldest` : `all ${count(one.messages_ready)}`} messages that are ready in ${name()}?` });
onSubmit("addBinding", async ({ source, routing_key, arguments: given }) => {
  await request("POST", path`bindings/${vhost()}/e/${source}/q/${name()}`, { body: { routing_key, arguments: jsonObject(given) } });
  await bindings.reload();
  return "Bound";
});
publishForm(() => ({ vhost: vhost(), exchange: "", key: name() }));
onSubmit("getMessages", async ({ mode, encoding, messages }) => {
  const got = await request("POST", `${here()}/get`, {
    body: { count: Number(messages), ack_mode: mode, encoding, truncate: SHOWN_BYTES },
  });
  byId("messages").replaceChildren(...(got.length
    ? got.map((/** @type {any} */ each, /** @type {number} */ at) => messageCard(each, `Message ${at + 1}`))
    : [h("p", { class: "soft" }, "The queue is empty")]));
  await reload();
}, {
  isKept: true,
  confirm: ({ mode, messages }) => (mode === "reject_requeue_true" ? "" : `Take ${messages} messages out of ${name()}?`),
});
onSubmit("moveForm", async ({ destination, count: n }) => {
  const said = await request("POST", `${here()}/move`, { body: { destination, ...(n ? { count: Number(n) } : {}) } });
  await reload();
  return `Moved ${count(said?.moved)}`;
}, { confirm: ({ destination, count: n }) => `Move ${n || "all"} messages from ${name()} to ${destination}?` });

async function suggest() {
  const exchanges = rowsOf(await get(path`exchanges/${vhost()}` + "?page=1&page_size=1000&columns=name"));
  byId("sources").replaceChildren(...exchanges.filter((row) => row.name).map((row) => h("option", { value: row.name })));
}
for (const fill of [suggest, suggestQueues]) void fill().catch(() => undefined);

let shown = `${vhost()}\n${name()}`;
window.addEventListener("hashchange", () => {
  showTab();
  const now = `${vhost()}\n${name()}`;
  if (now === shown) return;
  shown = now;
  byId("messages").replaceChildren();
  void reload();
  void bindings.reload();
});
