// Users.

import { ApiError, get, path, request, rowsOf } from "../lib/api.js";
import { to } from "../lib/address.js";
import { h } from "../lib/dom.js";
import { onSubmit } from "../lib/form.js";
import "../lib/frame.js";
import { Table } from "../lib/table.js";
import { startPassword, tagsOf } from "../lib/users.js";

/** @type {import("../lib/api.js").Row[]} who may use which virtual host */
let rights = [];
const table = new Table({
  id: "table", box: "table-box", path: () => "users", key: ["name"], isMain: true, counter: "pagename-label",
  beside: async () => {
    rights = rowsOf(await get("permissions").catch(() => []));
    return true;
  },
  columns: [
    { label: "Name", sort: "name", cell: (row) => h("a", { href: to("user", { name: row.name }) }, row.name) },
    { label: "Tags", sort: "tags", cell: (row) => tagsOf(row) },
    { label: "Can access virtual hosts", cell: (row) => rights.filter((each) => each.user === row.name).map((each) => each.vhost).join(", ") },
    { label: "Has password", cell: (row) => (row.password_hash ? "yes" : "no") },
  ],
});

/** @param {string} name */
async function isThere(name) {
  try {
    await get(path`users/${name}`);
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return false;
    throw error;
  }
}

onSubmit("createUser", async ({ name, password, tags }) => {
  const isKnown = await isThere(name);
  if (isKnown && !confirm(`The user ${name} is there already. Change password and tags?`)) return "Nothing is changed";
  await request("PUT", path`users/${name}`, { body: { ...(password ? { password } : isKnown ? {} : { password_hash: "" }), tags } });
  await table.reload();
  return `The user ${name} is there`;
});
startPassword();
