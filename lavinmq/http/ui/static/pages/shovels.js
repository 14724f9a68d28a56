// Shovels: parameters that say what is moved where, and how that goes.

import { get, listOf, path, request, rowsOf } from "../lib/api.js";
import { byId, h } from "../lib/dom.js";
import { actionButton, onSubmit } from "../lib/form.js";
import { fillVhosts } from "../lib/frame.js";
import { Table } from "../lib/table.js";
import { state } from "../lib/things.js";

const form = /** @type {HTMLFormElement} */ (byId("createShovel"));
const field = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
const uris = (/** @type {unknown} */ given) => (Array.isArray(given) ? given : [given ?? ""]).map(String).join(" ");
const hidden = (/** @type {string} */ uri) => uri.replaceAll(/:[^:@/ ]*@/g, ":***@");

/** @param {import("../lib/api.js").Row} value @param {"src" | "dest"} side */
function end(value, side) {
  const kind = value[`${side}-exchange`] !== undefined ? "exchange" : "queue";
  return [hidden(uris(value[`${side}-uri`])), h("small", {}, value[`${side}-${kind}`] ? `${kind} ${value[`${side}-${kind}`]}` : "")];
}

/** @type {import("../lib/api.js").Row[] | null} how they go; null: not known yet */
let states = null;
const stateOf = (/** @type {import("../lib/api.js").Row} */ row) => states?.find((each) => each.name === row.name && each.vhost === row.vhost) ?? {};

const table = new Table({
  id: "table", box: "table-box", path: () => listOf("parameters/shovel"), key: ["vhost", "name"], isMain: true,
  counter: "pagename-label", empty: "There are no shovels",
  beside: async () => {
    states = rowsOf(await get(listOf("shovels")).catch(() => []));
    return true;
  },
  columns: [
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Name", sort: "name", cell: (row) => row.name },
    { label: "Source", cell: (row) => end(row.value ?? {}, "src") },
    { label: "Prefetch", number: true, cell: (row) => row.value?.["src-prefetch-count"] ?? "" },
    { label: "Destination", cell: (row) => end(row.value ?? {}, "dest") },
    { label: "Reconnect delay", number: true, cell: (row) => row.value?.["reconnect-delay"] ?? "" },
    { label: "Ack mode", cell: (row) => row.value?.["ack-mode"] ?? "" },
    { label: "Delete after", cell: (row) => row.value?.["src-delete-after"] ?? "" },
    { label: "Moved", number: true, cell: (row) => stateOf(row).confirmed ?? "" },
    { label: "In flight", number: true, cell: (row) => stateOf(row).in_flight ?? "" },
    { label: "State", cell: (row) => [state(stateOf(row).state), h("small", {}, stateOf(row).error ?? "")] },
    {
      label: "",
      cell: (row) => h("span", { class: "actions require-policymaker" },
        actionButton("Edit", async () => edit(row), { role: "" }),
        states && pauseButton(row, stateOf(row).state === "Paused"),
        actionButton("Delete", async () => {
          await request("DELETE", path`parameters/shovel/${row.vhost}/${row.name}`);
          await table.reload();
        }, { role: "", className: "row-button danger", confirm: `Delete the shovel ${row.name}?` })),
    },
  ],
});

/** @param {import("../lib/api.js").Row} row @param {boolean} isPaused */
const pauseButton = (row, isPaused) => actionButton(isPaused ? "Resume" : "Pause", async () => {
  // One that does not run is only paused when that is asked for.
  const pause = stateOf(row).state === "Running" ? "pause" : "pause?force=true";
  await request("PUT", path`shovels/${row.vhost}/${row.name}/` + (isPaused ? "resume" : pause));
  await table.reload();
}, { role: "", confirm: isPaused ? "" : `Pause the shovel ${row.name}?` });

/** @type {Record<string, unknown>} what the form has no field for, of the shovel that is edited */
let others = {};
const IN_FORM = new Set(["src-uri", "src-queue", "src-exchange", "src-exchange-key", "src-consumer-args", "src-prefetch-count",
  "src-delete-after", "dest-uri", "dest-queue", "dest-exchange", "reconnect-delay", "ack-mode"]);

/** @param {import("../lib/api.js").Row} row */
function edit(row) {
  others = Object.fromEntries(Object.entries(row.value ?? {}).filter(([key]) => !IN_FORM.has(key)));
  const value = row.value ?? {};
  const kind = (/** @type {string} */ side) => (value[`${side}-exchange`] !== undefined ? "exchange" : "queue");
  const fields = {
    vhost: row.vhost, name: row.name, src_uri: uris(value["src-uri"]),
    src_type: value["src-consumer-args"]?.["x-stream-offset"] ? "stream" : kind("src"), src_endpoint: value[`src-${kind("src")}`] ?? "",
    src_key: value["src-exchange-key"] ?? "", src_offset: value["src-consumer-args"]?.["x-stream-offset"] ?? "",
    prefetch: value["src-prefetch-count"] ?? 1000, delete_after: value["src-delete-after"] ?? "never",
    dest_uri: uris(value["dest-uri"]), dest_type: kind("dest"), dest_endpoint: value[`dest-${kind("dest")}`] ?? "",
    reconnect_delay: value["reconnect-delay"] ?? 5, ack_mode: value["ack-mode"] ?? "on-confirm",
  };
  for (const [name, text] of Object.entries(fields)) field(name).value = String(text);
  field("name").readOnly = true;
  form.scrollIntoView();
  field("src_uri").focus();
}

function showDestination() {
  const isHttp = /^https?:/.test(field("dest_uri").value);
  for (const each of form.querySelectorAll(".dest")) /** @type {HTMLElement} */ (each).hidden = isHttp;
}
field("dest_uri").addEventListener("input", showDestination);
form.addEventListener("reset", () => {
  others = {};
  field("name").readOnly = false;
});

onSubmit("createShovel", async (data) => {
  const listed = (/** @type {string} */ text) => {
    const all = text.trim().split(/\s+/);
    return all.length > 1 ? all : all[0];
  };
  /** @type {Record<string, unknown>} */
  const value = {
    ...others,
    "src-uri": listed(data.src_uri), "dest-uri": listed(data.dest_uri), "src-prefetch-count": Number(data.prefetch),
    "src-delete-after": data.delete_after, "reconnect-delay": Number(data.reconnect_delay), "ack-mode": data.ack_mode,
  };
  value[data.src_type === "exchange" ? "src-exchange" : "src-queue"] = data.src_endpoint;
  if (data.src_type === "exchange") value["src-exchange-key"] = data.src_key;
  if (data.src_type === "stream") {
    const offset = data.src_offset || "first";
    value["src-consumer-args"] = { "x-stream-offset": /^\d+$/.test(offset) ? Number(offset) : offset };
  }
  if (!/^https?:/.test(data.dest_uri)) value[data.dest_type === "exchange" ? "dest-exchange" : "dest-queue"] = data.dest_endpoint;
  await request("PUT", path`parameters/shovel/${data.vhost}/${data.name}`, { body: { value } });
  await table.reload();
  return `The shovel ${data.name} is set`;
});
void fillVhosts("vhost").catch(() => undefined);
