// The session of one client of MQTT.

import { path, request } from "../lib/api.js";
import { parameter, to } from "../lib/address.js";
import { facts, h, show } from "../lib/dom.js";
import { onSubmit } from "../lib/form.js";
import { bytes, count, duration, keepAlive, time } from "../lib/format.js";
import "../lib/frame.js";
import { live } from "../lib/live.js";
import { Table } from "../lib/table.js";
import { queueLink, state } from "../lib/things.js";

const vhost = () => parameter("vhost");
const client = () => parameter("client_id");
const here = () => path`mqtt/sessions/${vhost()}/${client()}`;
/** @type {import("../lib/api.js").Row} */
let one = {};

live({ path: here, take: (said) => {
  one = said;
  show("pagename-label", `${client()} in virtual host ${vhost()}`);
  document.title = `${client()} | LavinMQ`;
  const ends = one.expiry === 0 ? "with its client" : one.expiry ? `${duration(one.expiry)} after its client` : "never by itself";
  facts("details", [
    ["State", state(one.connected ? "connected" : "away")],
    ["Connection", one.connection && h("a", { href: to("connection", { name: one.connection }) }, one.connection)],
    ["Username", one.user], ["Protocol", one.protocol],
    ["Keep alive", one.connected ? keepAlive(one) : undefined],
    ["Connected at", one.connected ? time(one.connected_at) : undefined],
    ["Ends", ends], ["Will", one.connected ? (one.has_will ? "yes" : "none") : undefined],
    ["Queue", queueLink({}, one.queue, one.vhost)],
  ]);
  facts("stats", [
    ["Waiting", count(one.messages_ready)], ["Unacknowledged", count(one.messages_unacknowledged)],
    ["Bytes", bytes(one.message_bytes)],
    ["In flight", one.connected ? `${count(one.in_flight)} of ${count(one.receive_maximum)}` : undefined],
    ["Received, not released", one.connected ? count(one.received) : undefined],
    ["Published by it", one.connected ? count(one.publish) : undefined],
    ["Refused of these", one.connected ? count(one.denied) : undefined],
    ["Dropped, too slow", one.connected ? count(one.dropped) : undefined],
  ]);
} });

new Table({
  id: "table", box: "table-box", path: () => `${here()}/subscriptions`, key: ["group", "filter"], empty: "It has subscribed to nothing",
  columns: [
    { label: "Topic filter", sort: "filter", cell: (row) => row.filter },
    { label: "Shared by", sort: "group", cell: (row) => row.group ?? "" },
    { label: "QoS", sort: "qos", number: true, cell: (row) => row.qos },
    { label: "No local", sort: "no_local", cell: (row) => (row.no_local ? "yes" : "") },
    { label: "Retain as published", sort: "retain_as_published", cell: (row) => (row.retain_as_published ? "yes" : "") },
    { label: "Retain handling", sort: "retain_handling", number: true, cell: (row) => row.retain_handling },
    { label: "Identifier", sort: "subscription_id", number: true, cell: (row) => row.subscription_id || "" },
  ],
});

onSubmit("deleteSession", async () => {
  await request("DELETE", path`queues/${vhost()}/${one.queue ?? ""}`);
  location.assign("mqtt");
}, { confirm: () => `End the session of ${client()} with ${count(one.messages)} messages?` });
window.addEventListener("hashchange", () => location.reload());
