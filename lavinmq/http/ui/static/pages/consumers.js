// Who takes messages from which queue.

import { listOf, path, request } from "../lib/api.js";
import { actionButton } from "../lib/form.js";
import { count } from "../lib/format.js";
import "../lib/frame.js";
import { Table } from "../lib/table.js";
import { channelLink, isOfChannel, queueLink } from "../lib/things.js";

const table = new Table({
  id: "table", box: "table-box", path: () => listOf("consumers"), key: ["consumer_tag", "channel_name", "queue_name"], isMain: true,
  counter: "pagename-label", empty: "Nobody consumes",
  arrived: (rows) => rows.map((row) => ({ ...row, channel_name: row.channel_details?.name, queue_name: row.queue?.name })),
  columns: [
    { label: "Virtual host", sort: "queue.vhost", cell: (row) => row.queue?.vhost },
    { label: "Queue", sort: "queue.name", cell: (row) => queueLink({}, row.queue?.name, row.queue?.vhost) },
    { label: "Channel", cell: channelLink },
    { label: "Consumer tag", sort: "consumer_tag", cell: (row) => row.consumer_tag },
    { label: "Ack required", sort: "ack_required", cell: (row) => (row.ack_required ? "yes" : "no") },
    { label: "Exclusive", sort: "exclusive", cell: (row) => (row.exclusive ? "yes" : "no") },
    { label: "Prefetch count", sort: "prefetch_count", number: true, cell: (row) => count(row.prefetch_count) },
    {
      label: "",
      cell: (row) => isOfChannel(row) && actionButton("Cancel", async () => {
        const channel = row.channel_details ?? {};
        await request("DELETE", path`consumers/${row.queue?.vhost}/${channel.connection_name}/${channel.number}/${row.consumer_tag}`);
        await table.reload();
      }, { confirm: `Cancel the consumer ${row.consumer_tag}? Its client is told.` }),
    },
  ],
});
