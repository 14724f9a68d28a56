// One virtual host.

import { get, path, request, rowsOf } from "../lib/api.js";
import { parameter, to } from "../lib/address.js";
import { byId, facts, h, show } from "../lib/dom.js";
import { actionButton, onSubmit } from "../lib/form.js";
import { count } from "../lib/format.js";
import { known } from "../lib/frame.js";
import { live } from "../lib/live.js";
import { is } from "../lib/session.js";
import { Table } from "../lib/table.js";

const name = () => parameter("name");
const LIMITS = ["max-connections", "max-queues"];
show("pagename-label", name());

live({ path: () => path`vhosts/${name()}`, take: (one) => {
  facts("details", [
    ["Ready", count(one.messages_ready)], ["Unacknowledged", count(one.messages_unacknowledged)], ["Total", count(one.messages)],
    ["Description", one.description || "–"], ["Tags", (one.tags ?? []).join(", ") || "–"],
  ]);
} });
const reload = live({ path: () => path`vhost-limits/${name()}`, take: (limits) => {
  const value = rowsOf(limits)[0]?.value ?? {};
  facts("limits", LIMITS.map((each) => [each === "max-queues" ? "Queues" : "Connections", value[each] === undefined ? "no limit" : count(value[each])]));
} });

void known.then(() => {
  if (!is()) return;
  const permissions = new Table({
    id: "permissions", box: "permissions-box", path: () => path`vhosts/${name()}/permissions`, key: ["user"], empty: "Nobody but administrators",
    columns: [
      { label: "User", sort: "user", cell: (row) => h("a", { href: to("user", { name: row.user }) }, row.user) },
      { label: "Configure", cell: (row) => h("code", {}, row.configure) },
      { label: "Write", cell: (row) => h("code", {}, row.write) },
      { label: "Read", cell: (row) => h("code", {}, row.read) },
      {
        label: "",
        cell: (row) => actionButton("Clear", async () => {
          await request("DELETE", path`permissions/${name()}/${row.user}`);
          await permissions.reload();
        }, { role: "require-administrator" }),
      },
    ],
  });
  onSubmit("setPermission", async ({ user, ...rights }) => {
    await request("PUT", path`permissions/${name()}/${user}`, { body: rights });
    await permissions.reload();
    return "Set; open connections follow at once";
  }, { isKept: true });
  void get("users").then((users) => {
    byId("user").replaceChildren(...rowsOf(users).map((each) => h("option", { value: each.name }, each.name)));
  }).catch(() => undefined);
});

onSubmit("setLimits", async (data) => {
  for (const limit of LIMITS) {
    await request("PUT", path`vhost-limits/${name()}/${limit}`, { body: { value: data[limit] === "" ? -1 : Number(data[limit]) } });
  }
  await reload();
  return "Set";
}, { isKept: true });
onSubmit("deleteVhost", async () => {
  await request("DELETE", path`vhosts/${name()}`);
  if (sessionStorage.getItem("vhost") === name()) sessionStorage.removeItem("vhost");
  location.assign("vhosts");
}, { confirm: () => `Delete the virtual host ${name()} with all its queues and messages?` });
window.addEventListener("hashchange", () => location.reload());
