// The broker at a glance.

import { chosenVhost, path, request } from "../lib/api.js";
import { Chart, download, logs } from "../lib/chart.js";
import { startImport } from "../lib/definitions.js";
import { advise } from "../lib/advice.js";
import { show } from "../lib/dom.js";
import { onSubmit } from "../lib/form.js";
import { count, duration } from "../lib/format.js";
import { fillVhosts, known } from "../lib/frame.js";
import { live } from "../lib/live.js";
import { is } from "../lib/session.js";

const KEPT = "overview";
const RATES = ["publish", "deliver", "ack", "get", "deliver_get", "confirm", "redeliver", "reject"];
const depth = new Chart("depth-chart", { title: "Queued messages", isStacked: true });
const data = new Chart("data-chart", { title: "Data rates", unit: "/s", isBytes: true });
const rates = new Chart("rate-chart", { title: "Message rates", unit: "/s" });

/** @param {Record<string, any>} said */
function draw(said) {
  const totals = said.object_totals ?? {};
  for (const name of ["connections", "channels", "consumers", "exchanges", "queues", "bindings"]) {
    show(name, count(totals[name]));
  }
  show("uptime", duration(said.uptime ?? 0));
  const queued = said.queue_totals ?? {};
  depth.update([
    { label: "Ready", values: queued.messages_ready_log ?? [] },
    { label: "Unacked", values: queued.messages_unacknowledged_log ?? [] },
  ]);
  data.update([
    { label: "Send", values: said.send_oct_details?.log ?? [] },
    { label: "Receive", values: said.recv_oct_details?.log ?? [] },
  ]);
  rates.update(logs(said.message_stats ?? {}, RATES));
}

const kept = sessionStorage.getItem(KEPT);
if (kept) {
  const { vhost, said } = JSON.parse(kept);
  if (vhost === chosenVhost()) draw(said);
}

const ofVhost = () => (chosenVhost() ? `?vhost=${encodeURIComponent(chosenVhost())}` : "");
live({ path: () => `overview${ofVhost()}`, take: (said) => {
  sessionStorage.setItem(KEPT, JSON.stringify({ vhost: chosenVhost(), said }));
  draw(said);
} });

live({ path: () => "advice", take: advise, isAside: true });

startImport();

onSubmit("exportDefinitions", async ({ vhost }) => {
  const said = await request("GET", vhost === "_all" ? "definitions" : path`definitions/${vhost}`);
  const name = `lavinmq-definitions-${location.hostname}-${new Date().toISOString()}.json`;
  download(name, JSON.stringify(said, null, 2), "application/json");
}, { isKept: true });

void known.then(() => {
  if (!is()) return;
  for (const id of ["import-vhost", "export-vhost"]) void fillVhosts(id, { first: ["_all", "All"] });
});
