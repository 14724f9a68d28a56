// Virtual hosts.

import { ApiError, get, path, request, rowsOf } from "../lib/api.js";
import { to } from "../lib/address.js";
import { h } from "../lib/dom.js";
import { onSubmit } from "../lib/form.js";
import { count } from "../lib/format.js";
import { known } from "../lib/frame.js";
import { is } from "../lib/session.js";
import { Table } from "../lib/table.js";

/** @type {Map<string, string>} who may use which; asked for once in a page, not with each refresh */
const users = new Map();

/** @param {import("../lib/api.js").Row[]} rows */
async function askUsers(rows) {
  await known;
  const unknown = rows.filter((row) => !users.has(row.name));
  if (!is() || !unknown.length) return false;
  await Promise.all(unknown.map(async (row) => {
    try {
      const rights = rowsOf(await get(path`vhosts/${row.name}/permissions`));
      users.set(row.name, rights.map((each) => each.user).join(", "));
    } catch (error) {
      if (!(error instanceof ApiError) || error.status === 401) throw error;
      users.set(row.name, "");
    }
  }));
  return true;
}

const table = new Table({
  id: "table", box: "table-box", path: () => "vhosts", key: ["name"], isMain: true, counter: "pagename-label",
  beside: askUsers,
  columns: [
    {
      label: "Name", sort: "name",
      cell: (row) => [h("a", { href: to("vhost", { name: row.name }) }, row.name), h("small", {}, row.description ?? "")],
    },
    { label: "Users", cell: (row) => users.get(row.name) ?? "" },
    { label: "Messages Ready", sort: "messages_ready", number: true, cell: (row) => count(row.messages_ready) },
    { label: "Messages Unacknowledged", sort: "messages_unacknowledged", number: true, cell: (row) => count(row.messages_unacknowledged) },
    { label: "Total", sort: "messages", number: true, cell: (row) => count(row.messages) },
  ],
});

onSubmit("createVhost", async ({ name, description, tags }) => {
  /** @type {Record<string, string>} */
  const body = {};
  if (description) body.description = description;
  if (tags) body.tags = tags;
  await request("PUT", path`vhosts/${name}`, { body });
  await table.reload();
  return `The virtual host ${name} is there`;
});
