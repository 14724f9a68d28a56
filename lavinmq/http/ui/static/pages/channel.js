// One channel.

import { path, request } from "../lib/api.js";
import { parameter, to } from "../lib/address.js";
import { Chart, logs } from "../lib/chart.js";
import { byId, facts, h, show } from "../lib/dom.js";
import { onSubmit } from "../lib/form.js";
import { count } from "../lib/format.js";
import "../lib/frame.js";
import { live } from "../lib/live.js";
import { Table } from "../lib/table.js";
import { queueLink, state } from "../lib/things.js";

const name = () => parameter("name");
const chart = new Chart("chart", { title: "Message rates", unit: "/s" });
const table = new Table({
  id: "table", box: "table-box", path: () => "", key: ["consumer_tag"], isStill: true, empty: "It has no consumers",
  columns: [
    { label: "Consumer tag", cell: (row) => row.consumer_tag },
    { label: "Queue", cell: (row) => queueLink({}, row.queue?.name, row.queue?.vhost) },
    { label: "Ack required", cell: (row) => (row.ack_required ? "yes" : "no") },
    { label: "Exclusive", cell: (row) => (row.exclusive ? "yes" : "no") },
    { label: "Prefetch count", number: true, cell: (row) => count(row.prefetch_count) },
  ],
});
table.tools.hidden = true;

const reload = live({ path: () => path`channels/${name()}`, take: (one) => {
  show("pagename-label", `${one.name ?? name()} in virtual host ${one.vhost ?? ""}`);
  const connection = one.connection_details?.name ?? "";
  facts("details", [
    ["Connection", h("a", { href: to("connection", { name: connection }) }, connection)],
    ["Username", one.user], ["State", state(one.state)],
    ["Mode", one.confirm ? "Confirm" : one.transactional ? "Transaction" : "Neither confirms nor transactions"],
  ]);
  facts("stats", [
    ["Messages Unacknowledged", count(one.messages_unacknowledged)],
    ["Prefetch", count(one.prefetch_count)],
    ["Global prefetch count", count(one.global_prefetch_count)],
  ]);
  const field = /** @type {HTMLInputElement} */ (byId("prefetch"));
  if (document.activeElement !== field) field.value = String(one.prefetch_count ?? 0);
  chart.update(logs(one.message_stats ?? {}, ["publish", "confirm", "deliver", "get", "ack", "redeliver", "reject", "return_unroutable"]));
  table.render(one.consumer_details ?? []);
} });

onSubmit("setPrefetch", async ({ prefetch }) => {
  await request("PUT", path`channels/${name()}`, { body: { prefetch: Number(prefetch) } });
  await reload();
  return "Changed, for the consumers it has as well";
}, { isKept: true });
window.addEventListener("hashchange", () => location.reload());
