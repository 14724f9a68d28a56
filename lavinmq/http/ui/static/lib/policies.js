// The pages of policies, users' and operators'.

import { listOf, path, request } from "./api.js";
import { byId, h } from "./dom.js";
import { actionButton, jsonHelpers, jsonObject, onSubmit } from "./form.js";
import { json } from "./format.js";
import { fillVhosts } from "./frame.js";
import { Table } from "./table.js";
import { inline } from "./things.js";

/** @type {Record<string, string>} */
const TARGETS = {
  all: "Exchanges & Queues", exchanges: "Exchanges", queues: "Queues", classic_queues: "Classic queues",
  quorum_queues: "Quorum queues", streams: "Streams",
};

/**
 * @param {string} kind of the API: `policies` or `operator-policies`
 * @param {string} role who may change them
 * @param {[string, unknown][]} defaults what the helpers insert
 */
export function policyPage(kind, role, defaults) {
  const form = /** @type {HTMLFormElement} */ (byId("createPolicy"));
  const field = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
  const table = new Table({
    id: "table", box: "table-box", path: () => listOf(kind), key: ["vhost", "name"], isMain: true,
    counter: "pagename-label", empty: "There are no policies",
    columns: [
      { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
      { label: "Name", sort: "name", cell: (row) => row.name },
      { label: "Pattern", sort: "pattern", cell: (row) => h("code", {}, row.pattern) },
      { label: "Apply to", sort: "apply-to", cell: (row) => TARGETS[row["apply-to"]] ?? row["apply-to"] },
      { label: "Definition", cell: (row) => inline(row.definition) },
      { label: "Priority", sort: "priority", number: true, cell: (row) => row.priority },
      {
        label: "",
        cell: (row) => h("span", { class: `actions ${role}` },
          actionButton("Edit", async () => {
            for (const name of ["vhost", "name", "pattern", "apply-to", "priority"]) field(name).value = String(row[name]);
            field("definition").value = json(row.definition);
            form.scrollIntoView();
            field("pattern").focus();
          }, { role: "" }),
          actionButton("Delete", async () => {
            await request("DELETE", path`${kind}/${row.vhost}/${row.name}`);
            await table.reload();
          }, { role: "", className: "row-button danger", confirm: `Delete the policy ${row.name}?` })),
      },
    ],
  });
  onSubmit("createPolicy", async (data) => {
    await request("PUT", path`${kind}/${data.vhost}/${data.name}`, {
      body: {
        pattern: data.pattern, "apply-to": data["apply-to"], priority: Number(data.priority),
        definition: jsonObject(data.definition),
      },
    });
    await table.reload();
    return `The policy ${data.name} is in force`;
  });
  jsonHelpers("dataTags", "definition", defaults);
  void fillVhosts("vhost").catch(() => undefined);
}
