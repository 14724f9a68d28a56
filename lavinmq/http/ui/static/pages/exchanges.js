// Exchanges.

import { get, listOf, path, request } from "../lib/api.js";
import { byId, h } from "../lib/dom.js";
import { jsonHelpers, jsonObject, onSubmit } from "../lib/form.js";
import { rate } from "../lib/format.js";
import { fillVhosts } from "../lib/frame.js";
import { Table } from "../lib/table.js";
import { exchangeLink, features, policyLink } from "../lib/things.js";

const table = new Table({
  id: "table", box: "table-box", path: () => listOf("exchanges"), key: ["vhost", "name"], isMain: true,
  counter: "pagename-label", empty: "There are no exchanges",
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Name", sort: "name", cell: (row) => exchangeLink(row.vhost, row.name) },
    { label: "Type", sort: "type", cell: (row) => row.type },
    { label: "Features", cell: (row) => features(row) },
    { label: "Policy", sort: "policy", cell: (row) => policyLink(row) },
    { label: "Message rate in", sort: "message_stats.publish_in_details.rate", number: true, cell: (row) => rate(row.message_stats?.publish_in_details?.rate) },
    { label: "Message rate out", sort: "message_stats.publish_out_details.rate", number: true, cell: (row) => rate(row.message_stats?.publish_out_details?.rate) },
  ],
});

onSubmit("addExchange", async ({ vhost, name, arguments: given, ...rest }) => {
  await request("PUT", path`exchanges/${vhost}/${name}`, { body: { ...rest, arguments: jsonObject(given) } });
  await table.reload();
  return `The exchange ${name} is there`;
});
jsonHelpers("dataTags", "arguments", [
  ["x-alternate-exchange", ""], ["x-message-deduplication", true], ["x-cache-size", 1000], ["x-cache-ttl", 60000],
  ["x-deduplication-header", "x-deduplication-header"], ["x-algorithm", "ring"],
]);
void fillVhosts("vhost").catch(() => undefined);
void get("overview").then((said) => {
  byId("type").replaceChildren(...(said.exchange_types ?? []).map((/** @type {any} */ each) => h("option", { value: each.name }, each.human)));
}).catch(() => undefined);
