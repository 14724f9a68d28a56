// Federation: where messages come from, and the links that bring them.

import { listOf, path, request } from "../lib/api.js";
import { byId, h } from "../lib/dom.js";
import { actionButton, onSubmit } from "../lib/form.js";
import { fillVhosts } from "../lib/frame.js";
import { Table } from "../lib/table.js";
import { state } from "../lib/things.js";

const NUMBERS = ["prefetch-count", "reconnect-delay", "max-hops", "expires", "message-ttl"];
const TEXTS = ["uri", "ack-mode", "exchange", "queue", "consumer-tag"];
const hidden = (/** @type {unknown} */ uri) => String(uri ?? "").replaceAll(/:[^:@/ ]*@/g, ":***@");
const form = /** @type {HTMLFormElement} */ (byId("createUpstream"));
const field = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
/** @param {string} label @param {string} name @returns {import("../lib/table.js").Column} */
const plain = (label, name) => ({ label, sort: `value.${name}`, cell: (row) => String(row.value?.[name] ?? "") });

const upstreams = new Table({
  id: "upstreamTable", box: "upstream-box", path: () => listOf("parameters/federation-upstream"), key: ["vhost", "name"], isMain: true,
  counter: "pagename-label", empty: "There are no upstreams",
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Name", sort: "name", cell: (row) => row.name },
    { label: "URI", cell: (row) => hidden(row.value?.uri) },
    plain("Prefetch", "prefetch-count"), plain("Reconnect delay", "reconnect-delay"), plain("Ack mode", "ack-mode"),
    plain("Exchange", "exchange"), plain("Max hops", "max-hops"), plain("Expiry", "expires"), plain("Message TTL", "message-ttl"),
    plain("Queue", "queue"), plain("Consumer Tag", "consumer-tag"),
    {
      label: "",
      cell: (row) => h("span", { class: "actions require-policymaker" },
        actionButton("Edit", async () => {
          field("vhost").value = row.vhost;
          field("name").value = row.name;
          for (const name of [...NUMBERS, ...TEXTS]) field(name).value = String(row.value?.[name] ?? (name === "ack-mode" ? "on-confirm" : ""));
          form.scrollIntoView();
          field("uri").focus();
        }, { role: "" }),
        actionButton("Delete", async () => {
          await request("DELETE", path`parameters/federation-upstream/${row.vhost}/${row.name}`);
          await upstreams.reload();
        }, { role: "", className: "row-button danger", confirm: `Delete the upstream ${row.name}? Its links end.` })),
    },
  ],
});

/** @param {import("../lib/api.js").Row} row */
const linkPath = (row) => path`federation-links/${row.vhost}/${row.upstream}/${row.type}/${row.resource}/`;

const links = new Table({
  id: "linksTable", box: "links-box", path: () => listOf("federation-links"), key: ["vhost", "upstream", "type", "resource"],
  counter: "links-count", empty: "There are no links",
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Upstream", sort: "upstream", cell: (row) => row.upstream },
    { label: "URI", cell: (row) => hidden(row.uri) },
    { label: "Resource", sort: "resource", cell: (row) => [row.resource, h("small", {}, row.type)] },
    { label: "State", sort: "status", cell: (row) => [state(row.status), h("small", {}, row.error ?? "")] },
    { label: "Messages", number: true, sort: "confirmed", cell: (row) => row.confirmed ?? "" },
    { label: "Connected at", sort: "timestamp", cell: (row) => row.timestamp ?? "" },
    {
      label: "",
      cell: (row) => row.status === "error" ? "" : h("span", { class: "actions require-policymaker" },
        actionButton(row.status === "paused" ? "Resume" : "Pause", async () => {
          await request("PUT", linkPath(row) + (row.status === "paused" ? "resume" : "pause"));
          await links.reload();
        }, { role: "" })),
    },
  ],
});

onSubmit("createUpstream", async (data) => {
  /** @type {Record<string, unknown>} */
  const value = {};
  for (const name of TEXTS) if (data[name]) value[name] = data[name];
  for (const name of NUMBERS) if (data[name] !== "") value[name] = Number(data[name]);
  await request("PUT", path`parameters/federation-upstream/${data.vhost}/${data.name}`, { body: { value } });
  await upstreams.reload();
  return `The upstream ${data.name} is set`;
});
void fillVhosts("vhost").catch(() => undefined);
