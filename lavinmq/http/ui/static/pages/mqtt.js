// Clients of MQTT: their sessions, what they share, and what virtual hosts keep for them.

import { chosenVhost, listOf } from "../lib/api.js";
import { to } from "../lib/address.js";
import { h, show } from "../lib/dom.js";
import { bytes, count, duration, keepAlive } from "../lib/format.js";
import "../lib/frame.js";
import { Table } from "../lib/table.js";
import { queueLink, state } from "../lib/things.js";

/** @typedef {import("../lib/api.js").Row} Row */

/** @param {Row[]} rows of a list that has no address for one virtual host */
const ofChosen = (rows) => {
  const vhost = chosenVhost();
  return vhost ? rows.filter((row) => row.vhost === vhost) : rows;
};

/** @param {Row} row */
function expiry(row) {
  if (row.expiry === 0) return "with its client";
  return typeof row.expiry === "number" ? duration(row.expiry) : "never";
}

new Table({
  id: "table", box: "table-box", path: () => listOf("mqtt/sessions"), key: ["vhost", "client_id"], isMain: true,
  counter: "pagename-label", empty: "No client has a session",
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    {
      label: "Client ID", sort: "client_id",
      cell: (row) => h("a", { href: to("mqtt-session", { vhost: row.vhost, client_id: row.client_id }) }, row.client_id),
    },
    { label: "State", sort: "connected", cell: (row) => state(row.connected ? "connected" : "away") },
    { label: "User", sort: "user", cell: (row) => row.user ?? "" },
    { label: "Waiting", sort: "messages_ready", number: true, cell: (row) => count(row.messages_ready) },
    { label: "In flight", sort: "in_flight", number: true, cell: (row) => (row.connected ? count(row.in_flight) : "") },
    { label: "Subscriptions", sort: "subscriptions", number: true, cell: (row) => count(row.subscriptions) },
    { label: "Ends", sort: "expiry", cell: expiry },
    { label: "Bytes", sort: "message_bytes", number: true, cell: (row) => bytes(row.message_bytes) },
    { label: "Dropped", sort: "dropped", number: true, cell: (row) => (row.connected ? count(row.dropped) : "") },
    { label: "Keep alive", sort: "keepalive", number: true, cell: (row) => (row.connected ? keepAlive(row) : "") },
    { label: "Protocol", sort: "protocol", cell: (row) => row.protocol ?? "" },
    { label: "Connection", cell: (row) => row.connection && h("a", { href: to("connection", { name: row.connection }) }, row.connection) },
  ],
});

new Table({
  id: "shared-table", box: "shared-box", path: () => "mqtt/shared-subscriptions", key: ["vhost", "queue"],
  empty: "Nothing is shared",
  arrived: (rows) => {
    const shown = ofChosen(rows);
    show("shared-count", shown.length);
    return shown;
  },
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Group", sort: "group", cell: (row) => row.group },
    { label: "Topic filter", sort: "filter", cell: (row) => row.filter },
    { label: "Queue", sort: "queue", cell: (row) => queueLink({}, row.queue, row.vhost) },
    { label: "Members", sort: "members", number: true, cell: (row) => count(row.members) },
    { label: "Waiting", sort: "messages_ready", number: true, cell: (row) => count(row.messages_ready) },
    { label: "In flight", sort: "messages_unacknowledged", number: true, cell: (row) => count(row.messages_unacknowledged) },
  ],
});

new Table({
  id: "vhosts-table", box: "vhosts-box", path: () => "mqtt", key: ["vhost"], arrived: ofChosen,
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => h("a", { href: to("vhost", { name: row.vhost }) }, row.vhost) },
    { label: "Clients", sort: "clients", number: true, cell: (row) => count(row.clients) },
    { label: "Sessions", sort: "sessions", number: true, cell: (row) => count(row.sessions) },
    { label: "Subscriptions", sort: "subscriptions", number: true, cell: (row) => count(row.subscriptions) },
    { label: "Messages", sort: "messages", number: true, cell: (row) => count(row.messages) },
    { label: "Retained messages", sort: "retained_messages", number: true, cell: (row) => count(row.retained_messages) },
    { label: "Retained bytes", sort: "retained_bytes", number: true, cell: (row) => bytes(row.retained_bytes) },
    { label: "Retained in memory", sort: "retained_memory", number: true, cell: (row) => bytes(row.retained_memory) },
    { label: "Session log", sort: "session_bytes", number: true, cell: (row) => bytes(row.session_bytes) },
    { label: "Wills waiting", sort: "wills_waiting", number: true, cell: (row) => count(row.wills_waiting) },
    { label: "Files", sort: "is_well", cell: (row) => (row.is_well ? "well" : h("b", { class: "error" }, "cannot be read")) },
  ],
});
