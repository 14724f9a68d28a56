// One exchange.

import { get, path, request, rowsOf } from "../lib/api.js";
import { parameter } from "../lib/address.js";
import { Chart, logs } from "../lib/chart.js";
import { byId, facts, h, show } from "../lib/dom.js";
import { actionButton, jsonObject, onSubmit } from "../lib/form.js";
import "../lib/frame.js";
import { live } from "../lib/live.js";
import { publishForm } from "../lib/publish.js";
import { Table } from "../lib/table.js";
import { startTracing } from "../lib/trace.js";
import { argumentFacts, exchangeLink, features, inline, policyLink, queueLink } from "../lib/things.js";

const name = () => parameter("name");
const vhost = () => parameter("vhost");
const inPath = () => name() || "amq.default";
const chart = new Chart("chart", { title: "Message rates", unit: "/s" });

const reload = live({ path: () => path`exchanges/${vhost()}/${inPath()}`, take: (one) => {
  show("pagename-label", `${name() || "(default)"} in virtual host ${vhost()}`);
  facts("details", [
    ["Type", one.type], ["Features", h("span", {}, features(one))],
    ["Policy", policyLink(one) || "none"], ["Operator policy", policyLink(one, "operator_policy", "operator-policies") || "none"],
  ]);
  const given = argumentFacts(one);
  facts("arguments-shown", given.length ? given : [["None", ""]]);
  chart.update(logs(one.message_stats ?? {}, ["publish_in", "publish_out", "unroutable", "dedup"]));
} });

const bindings = new Table({
  id: "bindings-table", box: "bindings-box", key: ["destination_type", "destination", "properties_key"],
  path: () => path`exchanges/${vhost()}/${inPath()}/bindings/source`, counter: "bindings-count", empty: "Nothing is bound to it",
  columns: [
    { label: "Type", sort: "destination_type", cell: (row) => row.destination_type },
    {
      label: "To", sort: "destination",
      cell: (row) => (row.destination_type === "queue" ? queueLink({}, row.destination, row.vhost) : exchangeLink(row.vhost, row.destination)),
    },
    { label: "Binding key", sort: "routing_key", cell: (row) => row.routing_key },
    { label: "Arguments", cell: (row) => inline(row.arguments) },
    {
      label: "",
      cell: (row) => name() !== "" && actionButton("Unbind", async () => {
        const kind = row.destination_type === "queue" ? "q" : "e";
        await request("DELETE", path`bindings/${row.vhost}/e/${row.source}/${kind}/${row.destination}/${row.properties_key}`);
        await bindings.reload();
      }),
    },
  ],
});

async function suggest() {
  const kind = /** @type {HTMLSelectElement} */ (byId("kind")).value === "q" ? "queues" : "exchanges";
  const rows = rowsOf(await get(path`${kind}/${vhost()}` + "?page=1&page_size=1000&columns=name"));
  byId("destinations").replaceChildren(...rows.map((row) => h("option", { value: row.name })));
}

onSubmit("addBinding", async ({ kind, destination, routing_key, arguments: given }) => {
  await request("POST", path`bindings/${vhost()}/e/${name()}/${kind}/${destination}`, {
    body: { routing_key, arguments: jsonObject(given) },
  });
  await bindings.reload();
  return "Bound";
});
startTracing(() => path`exchanges/${vhost()}/${inPath()}`);
publishForm(() => ({ vhost: vhost(), exchange: name() }));
onSubmit("deleteExchange", async () => {
  await request("DELETE", path`exchanges/${vhost()}/${inPath()}`);
  location.assign("exchanges");
}, { confirm: () => `Delete the exchange ${name()} with its bindings?` });
byId("kind").addEventListener("change", () => void suggest().catch(() => undefined));
void suggest().catch(() => undefined);
window.addEventListener("hashchange", () => {
  void reload();
  void bindings.reload();
});
