// One user.

import { get, path, request } from "../lib/api.js";
import { parameter, to } from "../lib/address.js";
import { byId, facts, h, show } from "../lib/dom.js";
import { actionButton, onSubmit } from "../lib/form.js";
import { fillVhosts } from "../lib/frame.js";
import { live } from "../lib/live.js";
import { Table } from "../lib/table.js";
import { startPassword, tagsOf } from "../lib/users.js";

const name = () => parameter("name");
const form = /** @type {HTMLFormElement} */ (byId("setPermission"));
const field = (/** @type {string} */ named) => /** @type {HTMLInputElement} */ (form.elements.namedItem(named));
let isFilled = false;
show("pagename-label", name());

const reload = live({ path: () => path`users/${name()}`, take: (one) => {
  facts("details", [
    ["Tags", tagsOf(one) || "none: it may not use the HTTP API"],
    ["Has password", one.password_hash ? "yes" : "no"],
    ["Hashed with", one.hashing_algorithm || "–"],
  ]);
  if (!isFilled) /** @type {HTMLInputElement} */ (byId("tags")).value = tagsOf(one);
  isFilled = true;
} });

const permissions = new Table({
  id: "permissions", box: "permissions-box", path: () => path`users/${name()}/permissions`, key: ["vhost"], empty: "It may use no virtual host",
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => h("a", { href: to("vhost", { name: row.vhost }) }, row.vhost) },
    { label: "Configure", cell: (row) => h("code", {}, row.configure) },
    { label: "Write", cell: (row) => h("code", {}, row.write) },
    { label: "Read", cell: (row) => h("code", {}, row.read) },
    {
      label: "",
      cell: (row) => h("span", { class: "actions require-administrator" },
        actionButton("Edit", async () => {
          for (const each of ["vhost", "configure", "write", "read"]) field(each).value = row[each];
          field("configure").focus();
        }, { role: "" }),
        actionButton("Clear", async () => {
          await request("DELETE", path`permissions/${row.vhost}/${name()}`);
          await permissions.reload();
        }, { role: "" })),
    },
  ],
});

onSubmit("setPermission", async ({ vhost, ...rights }) => {
  await request("PUT", path`permissions/${vhost}/${name()}`, { body: rights });
  await permissions.reload();
  return "Set; open connections follow at once";
}, { isKept: true });
onSubmit("explain", async ({ vhost, ...about }) => {
  const said = await get(path`permissions/${vhost}/${name()}/effective` + `?${new URLSearchParams(about)}`);
  const told = (/** @type {boolean} */ allowed, /** @type {string} */ why) => `${allowed ? "Allowed" : "Denied"}. ${why}`;
  facts("explained", [
    ["Configure: declare, delete", told(said.configure.allowed, said.configure.why)],
    ["Write: publish to it, bind it to an exchange", told(said.write.allowed, said.write.why)],
    ["Read: consume, get, purge, bind from it", told(said.read.allowed, said.read.why)],
    ["Publish with the routing key", told(said.write.allowed && said.topic.write, said.topic.why)],
    ["Bind from it with the routing key", told(said.read.allowed && said.topic.read, said.topic.why)],
  ]);
}, { isKept: true });
onSubmit("updateUser", async ({ password, without, tags }) => {
  await request("PUT", path`users/${name()}`, {
    body: { tags, ...(without ? { password_hash: "" } : password ? { password } : {}) },
  });
  isFilled = false;
  await reload();
  return "Changed";
}, { confirm: ({ without }) => (without ? `Remove the password of ${name()}?` : "") });
onSubmit("deleteUser", async () => {
  await request("DELETE", path`users/${name()}`);
  location.assign("users");
}, { confirm: () => `Delete the user ${name()}?` });
startPassword();
for (const id of ["vhost", "explain-vhost"]) void fillVhosts(id).catch(() => undefined);
window.addEventListener("hashchange", () => location.reload());
