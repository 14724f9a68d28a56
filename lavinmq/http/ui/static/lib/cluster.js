// The cluster on the page of the node: who leads and why, how far the others are, and what may be done about it.

import { path, request } from "./api.js";
import { byId, facts, h, hide, toast } from "./dom.js";
import { act, actionButton } from "./form.js";
import { bytes, count, time } from "./format.js";
import { Table } from "./table.js";

/** @typedef {import("./api.js").Row} Row */

const seconds = (/** @type {unknown} */ value) => (typeof value === "number" ? `${value.toFixed(1)} s` : "–");
/** @type {Row} */
let picture = {};

/**
 * A table whose rows come from elsewhere.
 * @param {string} id
 * @param {string[]} key
 * @param {string} empty
 * @param {import("./table.js").Column[]} columns
 */
function still(id, key, empty, columns) {
  const table = new Table({ id, box: `${id}-box`, path: () => "", key, isStill: true, empty, columns });
  table.tools.hidden = true;
  return table;
}

const followers = still("followers", ["id"], "There are no followers", [
  { label: "ID", cell: (row) => row.id },
  { label: "Remote address", cell: (row) => row.remote_address },
  { label: "Sent bytes", number: true, cell: (row) => bytes(row.sent_bytes) },
  { label: "Acked bytes", number: true, cell: (row) => bytes(row.acked_bytes) },
  { label: "Lag", number: true, cell: (row) => bytes(row.lag_in_bytes) },
]);

const nodes = still("cluster-nodes", ["id"], "No node is known", [
  { label: "ID", cell: (row) => row.id },
  { label: "State", cell: (row) => h("span", { class: STATES[row.state] ?? "" }, row.state) },
  { label: "In sync", cell: (row) => (row.in_sync ? "yes" : "no") },
  { label: "Lag", number: true, cell: (row) => bytes(row.follower.lag_in_bytes) },
  { label: "Lag in time", number: true, cell: (row) => seconds(row.follower.lag_seconds) },
  { label: "Version", cell: (row) => row.version ?? "–" },
  { label: "Address", cell: (row) => row.uri ?? "–" },
  {
    label: "",
    cell: (row) => (row.live || !row.member ? "" : h("span", { class: "actions require-administrator" },
      actionButton("Forget", async () => {
        await request("DELETE", path`cluster/nodes/${row.id}`);
        toast(`The node ${row.id} is forgotten`);
      }, {
        role: "", className: "row-button danger",
        confirm: `Forget the node ${row.id}? It counts no more among those of which most have to have what is acknowledged.`,
      }))),
  },
]);
const STATES = /** @type {Record<string, string>} */ ({ leads: "state-running", follows: "state-running", away: "state-closed", joins: "state-flow", "is behind": "state-flow" });

const elections = still("elections", ["epoch"], "None is known", [
  { label: "Epoch", cell: (row) => count(row.epoch) },
  { label: "Since", cell: (row) => time(row.at * 1000) },
  { label: "Leader", cell: (row) => row.node },
  { label: "Address", cell: (row) => row.uri ?? "–" },
  { label: "Ended because", cell: (row) => row.ended || (row.epoch === picture.epoch ? "" : "not known") },
]);

/** @param {Row} node @param {Row | undefined} follower */
function stateOf(node, follower) {
  if (node.id === picture.leader?.id) return "leads";
  if (!follower) return node.live ? "is not connected" : "away";
  if (follower.joining) return "joins";
  return follower.in_sync ? "follows" : "is behind";
}

/** @param {Row[]} rows of the node */
export function showFollowers(rows) {
  hide(byId("of-followers"), rows.length === 0, byId("main"));
  followers.render(rows);
}

/** @param {Row} said */
export function showCluster(said) {
  picture = said;
  const isNone = said.role === "none" && !said.leader;
  hide(byId("cluster"), isNone, byId("main"));
  byId("no-cluster").hidden = !isNone;
  if (isNone) return;
  const held = byId("cluster-held");
  held.textContent = said.acknowledges === false ? `Nothing is acknowledged: ${said.reasons?.acknowledges}` : "";
  held.hidden = !held.textContent;
  facts("cluster-facts", [
    ["Leader", said.leader?.id ?? "nobody"],
    ["Epoch", count(said.epoch)],
    ["In sync", `${said.in_sync.length} of ${said.members.length} nodes`],
    ["Needed to acknowledge", `${said.min_insync_replicas} nodes; ${said.acknowledges === false ? "too few are in sync" : "there are enough"}`],
    ["May be restarted", said.safe_to_restart ? "yes, this node" : `no: ${said.reasons?.safe_to_restart}`],
  ]);
  nodes.render(said.nodes.map((/** @type {Row} */ node) => {
    const found = said.followers.find((/** @type {Row} */ each) => each.id === node.id);
    return { ...node, state: stateOf(node, found), follower: found ?? {} };
  }));
  elections.render([...said.elections].reverse());
}

byId("transfer-btn").addEventListener("click", () => void act(async () => {
  await request("POST", "cluster/transfer");
  toast("Another node is going to lead");
}, "Have another node lead? All connections end, and clients connect again."));
