// One stream.

import { path, request } from "../lib/api.js";
import { to } from "../lib/address.js";
import { startBrowsing } from "../lib/browse.js";
import { Chart } from "../lib/chart.js";
import { byId, h, show } from "../lib/dom.js";
import { actionButton, onSubmit } from "../lib/form.js";
import { count } from "../lib/format.js";
import "../lib/frame.js";
import { live } from "../lib/live.js";
import { publishForm } from "../lib/publish.js";
import { here, name, showQueue, startActions, suggestQueues, vhost } from "../lib/queue.js";
import { Table } from "../lib/table.js";
import { startTracing } from "../lib/trace.js";
import { exchangeLink, inline, messageCard } from "../lib/things.js";

const SHOWN_BYTES = 50_000;
const chart = new Chart("chart", { title: "Message rates", unit: "/s" });
/** @type {import("../lib/api.js").Row} */
let one = {};

const consumers = new Table({
  id: "consumers-table", box: "consumers-box", path: () => "", key: ["consumer_tag"], isStill: true, empty: "Nobody reads it",
  columns: [
    { label: "Channel", cell: (row) => h("a", { href: to("channel", { name: row.channel_details?.name ?? "" }) }, row.channel_details?.name ?? "") },
    { label: "Consumer tag", cell: (row) => row.consumer_tag },
    { label: "Prefetch count", number: true, cell: (row) => count(row.prefetch_count) },
  ],
});
consumers.tools.hidden = true;

const reload = live({ path: here, take: (said) => {
  one = said;
  showQueue(one, chart);
  show("consumer-count", one.consumers ?? 0);
  consumers.render(one.consumer_details ?? []);
} });

const lag = new Chart("lag-chart", { title: "Lag of stored offsets" });
const offsets = new Table({
  id: "offsets-table", box: "offsets-box", path: () => `${here()}/stream/consumers`, key: ["name"], empty: "Nobody has stored one",
  columns: [
    { label: "Consumer", cell: (row) => row.name },
    { label: "Offset", number: true, cell: (row) => count(row.offset) },
    { label: "Lag", number: true, cell: (row) => count(row.lag) },
  ],
  arrived: (rows) => {
    const recorded = rows.filter((row) => row.lag_log.length);
    lag.update(recorded.map((row) => ({ label: row.name, values: row.lag_log })),
      rows.length ? "Nothing is recorded yet" : "Nobody has stored an offset");
  },
});
offsets.tools.hidden = true;

const bindings = new Table({
  id: "bindings-table", box: "bindings-box", path: () => `${here()}/bindings`, key: ["source", "properties_key"], counter: "bindings-count",
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

startActions(() => one, reload);
startBrowsing(reload);
startTracing(here);
publishForm(() => ({ vhost: vhost(), exchange: "", key: name() }));
void suggestQueues().catch(() => undefined);
onSubmit("getMessages", async ({ offset, messages, encoding }) => {
  const got = await request("POST", `${here()}/stream`, {
    body: { offset: offset.trim(), count: Number(messages), encoding, truncate: SHOWN_BYTES },
  });
  byId("messages").replaceChildren(...(got.length
    ? got.map((/** @type {any} */ each) => messageCard(each, `Offset ${each.properties?.headers?.["x-stream-offset"] ?? "?"}`))
    : [h("p", { class: "soft" }, "Nothing there")]));
}, { isKept: true });
window.addEventListener("hashchange", () => location.reload());
