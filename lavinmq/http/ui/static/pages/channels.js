// Channels of all connections.

import { listOf } from "../lib/api.js";
import "../lib/frame.js";
import { Table } from "../lib/table.js";
import { to } from "../lib/address.js";
import { h } from "../lib/dom.js";
import { count } from "../lib/format.js";

new Table({
  id: "table", box: "table-box", path: () => listOf("channels"), key: ["name"], isMain: true,
  counter: "pagename-label", empty: "There are no channels",
  columns: [
    { label: "Name", sort: "name", cell: (row) => h("a", { href: to("channel", { name: row.name }) }, row.name) },
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "User", sort: "user", cell: (row) => row.user },
    { label: "Mode", sort: "confirm", cell: (row) => (row.confirm ? "Confirm" : row.transactional ? "Transaction" : "") },
    { label: "Consumers", sort: "consumer_count", number: true, cell: (row) => count(row.consumer_count) },
    { label: "Prefetch limit", sort: "prefetch_count", number: true, cell: (row) => count(row.prefetch_count) },
    { label: "Messages Unacknowledged", sort: "messages_unacknowledged", number: true, cell: (row) => count(row.messages_unacknowledged) },
  ],
});
