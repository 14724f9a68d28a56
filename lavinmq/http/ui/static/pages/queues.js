// Queues: the list, and what is done with many of them.

import { listOf, path, request } from "../lib/api.js";
import { byId, h, hide, toast } from "../lib/dom.js";
import { act, jsonHelpers, jsonObject, onSubmit } from "../lib/form.js";
import { bytes, count, rate } from "../lib/format.js";
import { fillVhosts } from "../lib/frame.js";
import { Table } from "../lib/table.js";
import { features, policyLink, queueLink, state } from "../lib/things.js";

/** @type {Map<string, {vhost: string, name: string, messages: number}>} */
const ticked = new Map();
const keyOf = (/** @type {any} */ row) => JSON.stringify([row.vhost, row.name]);
/** @param {string} label @param {string} name @returns {import("../lib/table.js").Column} */
const rateColumn = (label, name) => ({
  label, sort: `message_stats.${name}_details.rate`, number: true,
  cell: (row) => rate(row.message_stats?.[`${name}_details`]?.rate),
});

const table = new Table({
  id: "table", box: "table-box", path: () => listOf("queues"), key: ["vhost", "name"], isMain: true,
  counter: "pagename-label", empty: "There are no queues",
  arrived: () => {
    setTimeout(showTicked);
  },
  columns: [
    {
      label: "", heading: "multi-check-all",
      cell: (row) => h("input", { type: "checkbox", class: "row-check", "data-key": keyOf(row), "aria-label": `Tick ${row.name}` }),
    },
    { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
    { label: "Name", sort: "name", cell: (row) => queueLink(row) },
    { label: "Features", cell: (row) => features(row) },
    { label: "Policy", sort: "policy", cell: (row) => policyLink(row) },
    { label: "Consumers", sort: "consumers", number: true, cell: (row) => count(row.consumers) },
    { label: "State", sort: "state", cell: (row) => state(row.state) },
    { label: "Messages Ready", sort: "messages_ready", number: true, cell: (row) => count(row.messages_ready) },
    { label: "Messages Unacknowledged", sort: "messages_unacknowledged", number: true, cell: (row) => count(row.messages_unacknowledged) },
    { label: "Total", sort: "messages", number: true, cell: (row) => count(row.messages) },
    rateColumn("Publish rate", "publish"), rateColumn("Deliver rate", "deliver"),
    rateColumn("Redeliver rate", "redeliver"), rateColumn("Ack rate", "ack"),
    { label: "Disk space used", sort: "total_bytes", number: true, cell: (row) => bytes(row.total_bytes) },
  ],
});

const all = /** @type {HTMLInputElement} */ (byId("multi-check-all"));
const boxes = () => /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(".row-check")]);

function showTicked() {
  for (const box of boxes()) box.checked = ticked.has(box.dataset.key ?? "");
  for (const [key, one] of ticked) one.messages = table.shown.get(key)?.data.messages ?? one.messages;
  all.checked = boxes().length > 0 && boxes().every((box) => box.checked);
  hide(byId("multiselect-controls"), ticked.size === 0, all);
  byId("multi-count").textContent = `${ticked.size} ticked`;
}

/** @param {HTMLInputElement} box */
function take(box) {
  const key = box.dataset.key ?? "";
  const [vhost, name] = JSON.parse(key);
  if (box.checked) ticked.set(key, { vhost, name, messages: 0 });
  else ticked.delete(key);
}

byId("table").addEventListener("change", (event) => {
  if (event.target === all) {
    for (const box of boxes()) {
      box.checked = all.checked;
      take(box);
    }
  } else if (event.target instanceof HTMLInputElement) {
    take(event.target);
  }
  showTicked();
});
document.querySelector(".popup-close")?.addEventListener("click", () => {
  ticked.clear();
  showTicked();
});

/** @param {string} verb @param {(one: {vhost: string, name: string}) => string} target */
async function forAll(verb, target) {
  let n = 0;
  try {
    for (const [key, one] of [...ticked]) {
      await request("DELETE", target(one));
      ticked.delete(key);
      n += 1;
    }
  } finally {
    showTicked();
    await table.reload();
  }
  toast(`${verb}: ${n}`);
}

const named = () => {
  const names = [...ticked.values()].map((each) => each.name);
  return names.slice(0, 10).join(", ") + (names.length > 10 ? ` and ${names.length - 10} more` : "");
};
const inThem = () => count([...ticked.values()].reduce((sum, each) => sum + each.messages, 0));
byId("multi-delete").addEventListener("click", () =>
  void act(() => forAll("Deleted", ({ vhost, name }) => path`queues/${vhost}/${name}`), `Delete ${ticked.size} queues with ${inThem()} messages? ${named()}`));
byId("multi-purge").addEventListener("click", () =>
  void act(() => forAll("Purged", ({ vhost, name }) => path`queues/${vhost}/${name}/contents`), `Delete what is ready of ${inThem()} messages in ${ticked.size} queues? ${named()}`));

onSubmit("declare", async ({ vhost, name, arguments: given, ...rest }) => {
  await request("PUT", path`queues/${vhost}/${name}`, { body: { ...rest, arguments: jsonObject(given) } });
  await table.reload();
  return `The queue ${name} is there`;
});
jsonHelpers("dataTags", "arguments", [
  ["x-expires", 60000], ["x-max-length", 1000], ["x-message-ttl", 60000], ["x-delivery-limit", 10], ["x-overflow", "reject-publish"],
  ["x-dead-letter-exchange", ""], ["x-dead-letter-routing-key", ""], ["x-max-priority", 10], ["x-queue-type", "stream"],
  ["x-max-age", "1D"], ["x-message-deduplication", true], ["x-cache-size", 1000], ["x-cache-ttl", 60000],
  ["x-deduplication-header", "x-deduplication-header"],
]);
void fillVhosts("vhost").catch(() => undefined);
