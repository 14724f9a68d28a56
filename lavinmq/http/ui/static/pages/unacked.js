// Messages of a queue that were delivered and are not settled.

import { path } from "../lib/api.js";
import { parameter, to } from "../lib/address.js";
import { byId, h, show } from "../lib/dom.js";
import { count } from "../lib/format.js";
import "../lib/frame.js";
import { Table } from "../lib/table.js";

const name = () => parameter("name");
const vhost = () => parameter("vhost");
show("pagename-label", `${name()} in virtual host ${vhost()}`);
byId("queue-link").setAttribute("href", to("queue", { vhost: vhost(), name: name() }));
new Table({
  id: "table", box: "table-box", path: () => path`queues/${vhost()}/${name()}/unacked`, key: ["channel_name", "delivery_tag"], isMain: false,
  counter: "unacked-count", empty: "All that was delivered is settled",
  columns: [
    { label: "Message tag", sort: "delivery_tag", number: true, cell: (row) => row.delivery_tag },
    { label: "Consumer tag", sort: "consumer_tag", cell: (row) => row.consumer_tag },
    { label: "Channel", sort: "channel_name", cell: (row) => h("a", { href: to("channel", { name: row.channel_name ?? "" }) }, row.channel_name ?? "") },
    { label: "Seconds unacked", sort: "unacked_for_seconds", number: true, cell: (row) => count(row.unacked_for_seconds) },
  ],
});
window.addEventListener("hashchange", () => location.reload());
