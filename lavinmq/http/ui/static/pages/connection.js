// One connection.

import { path, request } from "../lib/api.js";
import { parameter, to } from "../lib/address.js";
import { Chart } from "../lib/chart.js";
import { facts, h, show } from "../lib/dom.js";
import { onSubmit } from "../lib/form.js";
import { bytes, count, time } from "../lib/format.js";
import "../lib/frame.js";
import { live } from "../lib/live.js";
import { Table } from "../lib/table.js";
import { state } from "../lib/things.js";

const name = () => parameter("name");
const chart = new Chart("chart", { title: "Data rates", unit: "/s", isBytes: true });

/** @typedef {import("../lib/api.js").Row} Row */
/** @param {Row} one */
const isMqtt = (one) => String(one.protocol ?? "").startsWith("MQTT");
/** @param {Row} one @returns {[string, import("../lib/dom.js").Child][]} */
const ofAmqp = (one) => [["Channel max", count(one.channel_max)], ["Frame max", bytes(one.frame_max)]];
/** @param {Row} one @returns {[string, import("../lib/dom.js").Child][]} */
const ofMqtt = (one) => [
  ["Protocol", one.protocol],
  ["Client ID", h("a", { href: to("mqtt-session", { vhost: one.vhost, client_id: one.client_id }) }, one.client_id ?? "")],
];

live({ path: () => path`connections/${name()}`, take: (one) => {
  show("pagename-label", `${one.name ?? name()} in virtual host ${one.vhost ?? ""}`);
  facts("details", [
    ["Username", one.user], ["State", state(one.state)], ["Connected at", time(one.connected_at)],
    ["Heartbeat", `${one.timeout} s`], ["Authentication", one.auth_mechanism],
    ...(isMqtt(one) ? ofMqtt(one) : ofAmqp(one)), ["TLS version", one.tls_version ?? "no TLS"], ["Cipher", one.cipher],
  ]);
  const client = one.client_properties ?? {};
  const link = typeof client.information === "string" && /^https?:\/\//.test(client.information)
    ? h("a", { href: client.information, rel: "noopener noreferrer", target: "_blank" }, client.information)
    : client.information;
  const able = Object.entries(client.capabilities ?? {}).filter(([, has]) => has).map(([each]) => each);
  facts("client", [
    ["Name", client.connection_name], ["Capabilities", able.join(", ")], ["Product", client.product],
    ["Version", client.version], ["Platform", client.platform], ["Information", link],
  ]);
  for (const box of document.querySelectorAll(".amqp")) {
    /** @type {HTMLElement} */ (box).hidden = isMqtt(one);
  }
  chart.update([
    { label: "Send", values: one.send_oct_details?.log ?? [] },
    { label: "Receive", values: one.recv_oct_details?.log ?? [] },
  ]);
} });

new Table({
  id: "table", box: "table-box", path: () => path`connections/${name()}/channels`, key: ["name"], empty: "It has no channels",
  columns: [
    { label: "Name", sort: "name", cell: (row) => h("a", { href: to("channel", { name: row.name }) }, row.name) },
    { label: "Virtual Host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Username", sort: "user", cell: (row) => row.user },
    { label: "Mode", sort: "confirm", cell: (row) => (row.confirm ? "Confirm" : "") },
    { label: "Consumers", sort: "consumer_count", number: true, cell: (row) => count(row.consumer_count) },
    { label: "Prefetch limit", sort: "prefetch_count", number: true, cell: (row) => count(row.prefetch_count) },
    { label: "Messages Unacknowledged", sort: "messages_unacknowledged", number: true, cell: (row) => count(row.messages_unacknowledged) },
  ],
});

onSubmit("closeConnection", async ({ reason }) => {
  await request("DELETE", path`connections/${name()}`, { headers: { "X-Reason": encodeURI(reason).replaceAll("%20", " ") } });
  location.assign("connections");
});
window.addEventListener("hashchange", () => location.reload());
