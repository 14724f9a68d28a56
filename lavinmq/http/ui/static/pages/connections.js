// Who is connected.

import { listOf } from "../lib/api.js";
import { to } from "../lib/address.js";
import { h } from "../lib/dom.js";
import { bytes, short, time } from "../lib/format.js";
import "../lib/frame.js";
import { Table } from "../lib/table.js";
import { state } from "../lib/things.js";

new Table({
  id: "table", box: "table-box", path: () => listOf("connections"), key: ["name"], isMain: true,
  counter: "pagename-label", empty: "Nobody is connected",
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    {
      label: "Name", sort: "name",
      cell: (row) => [
        h("a", { href: to("connection", { name: row.name }) }, row.name),
        h("small", {}, row.client_properties?.connection_name ?? row.client_id ?? ""),
      ],
    },
    { label: "User", sort: "user", cell: (row) => row.user },
    { label: "State", sort: "state", cell: (row) => state(row.state) },
    { label: "TLS", sort: "ssl", cell: (row) => (row.ssl ? "yes" : "no") },
    { label: "TLS Version", sort: "tls_version", cell: (row) => row.tls_version ?? "" },
    { label: "Cipher", sort: "cipher", cell: (row) => row.cipher ?? "" },
    { label: "Protocol", sort: "protocol", cell: (row) => row.protocol },
    { label: "Channels", sort: "channels", number: true, cell: (row) => row.channels ?? "" },
    { label: "Channel max", sort: "channel_max", number: true, cell: (row) => row.channel_max ?? "" },
    { label: "Heartbeat", sort: "timeout", number: true, cell: (row) => `${row.timeout} s` },
    {
      label: "Client",
      cell: (row) => {
        const client = row.client_properties ?? {};
        return [[client.product, client.platform].filter(Boolean).join(" / "), h("small", {}, client.version ?? "")];
      },
    },
    { label: "Connected at", sort: "connected_at", cell: (row) => time(row.connected_at) },
    { label: "Received bytes", sort: "recv_oct_details.rate", number: true, cell: (row) => [bytes(row.recv_oct), h("small", {}, short(row.recv_oct_details?.rate, 1024, "B") + "/s")] },
    { label: "Sent bytes", sort: "send_oct_details.rate", number: true, cell: (row) => [bytes(row.send_oct), h("small", {}, short(row.send_oct_details?.rate, 1024, "B") + "/s")] },
  ],
});
