// The pages of policies, users' and operators'.

import { ApiError, get, listOf, path, request } from "./api.js";
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
            form.dispatchEvent(new Event("input"));
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
  showMatches(form);
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

const WAIT_MS = 300;

/**
 * Show what a pattern matches while it is typed; the broker matches, one question at a time.
 * @param {HTMLFormElement} form
 */
function showMatches(form) {
  const value = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name)).value;
  const place = byId("matches");
  let timer = 0;
  let isBusy = false;
  let asked = "";
  const ask = async () => {
    const pattern = value("pattern");
    const question = pattern && value("vhost") ? path`policy-matches/${value("vhost")}` + "?" + new URLSearchParams({ pattern, "apply-to": value("apply-to") }) : "";
    if (isBusy || question === asked) return;
    asked = question;
    isBusy = true;
    try {
      place.textContent = question ? told(await get(question)) : "";
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      place.textContent = error.message;
    } finally {
      isBusy = false;
      wait();
    }
  };
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => void ask(), WAIT_MS);
  };
  for (const event of ["input", "change"]) form.addEventListener(event, wait);
  form.addEventListener("reset", () => setTimeout(wait));
}

/** @param {{queues: number, exchanges: number, names: {kind: string, name: string}[]}} found */
function told({ queues, exchanges, names }) {
  if (!names.length) return "It matches nothing that is there now.";
  const more = queues + exchanges - names.length;
  const listed = names.map((each) => each.name || "(default)").join(", ") + (more ? ` and ${more} more` : "");
  const count = (/** @type {number} */ n, /** @type {string} */ what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  return `It matches ${count(queues, "queue")} and ${count(exchanges, "exchange")}: ${listed}`;
}
