// What the pages of a queue and a stream have in common.

import { get, path, request, rowsOf } from "./api.js";
import { parameter, to } from "./address.js";
import { logs } from "./chart.js";
import { byId, facts, h, show } from "./dom.js";
import { onSubmit } from "./form.js";
import { bytes, count } from "./format.js";
import { argumentFacts, features, inline, policyLink, state } from "./things.js";

export const name = () => parameter("name");
export const vhost = () => parameter("vhost");
export const here = () => path`queues/${vhost()}/${name()}`;
const RATES = ["publish", "deliver", "deliver_get", "ack", "get", "confirm", "redeliver", "reject", "return_unroutable", "dedup"];

/**
 * @param {import("./api.js").Row} one
 * @param {import("./chart.js").Chart} chart
 */
export function showQueue(one, chart) {
  show("pagename-label", `${name()} in virtual host ${vhost()}`);
  document.title = `${name()} | LavinMQ`;
  const argument = argumentFacts(one);
  facts("details", [
    ["Features", h("span", {}, features(one))], ["State", state(one.state)], ["Consumers", count(one.consumers)],
    ["Policy", policyLink(one) || "none"],
    ["Operator policy", policyLink(one, "operator_policy", "operator-policies") || "none"],
    ["Effective policy definition", inline(one.effective_policy_definition) || "none"],
  ]);
  facts("arguments-shown", argument.length ? argument : [["None", ""]]);
  /** @type {[string, number, number][]} */
  const rows = [
    ["total", one.messages, one.total_bytes], ["ready", one.messages_ready, one.message_bytes_ready],
    ["unacked", one.messages_unacknowledged, one.message_bytes_unacknowledged],
  ];
  for (const [id, n, size] of rows) {
    show(`q-${id}`, count(n));
    show(`q-${id}-bytes`, bytes(size));
    show(`q-${id}-avg`, n ? bytes(size / n) : "–");
  }
  byId("q-unacked-link").setAttribute("href", to("unacked", { vhost: vhost(), name: name() }));
  chart.update(logs(one.message_stats ?? {}, RATES));
  const button = byId("pauseQueue").querySelector("button");
  const what = document.documentElement.classList.contains("stream") ? "stream" : "queue";
  if (button) button.textContent = `${one.state === "paused" ? "Resume" : "Pause"} ${what}`;
}

/** Suggest the other queues of the virtual host where one is asked for. */
export async function suggestQueues() {
  const rows = rowsOf(await get(path`queues/${vhost()}` + "?page=1&page_size=1000&columns=name"));
  byId("queue-names").replaceChildren(...rows.filter((row) => row.name !== name()).map((row) => h("option", { value: row.name })));
}

/** @param {() => import("./api.js").Row} one @param {() => Promise<void>} reload */
export function startActions(one, reload) {
  const isPaused = () => one().state === "paused";
  onSubmit("pauseQueue", async () => {
    await request("PUT", `${here()}/${isPaused() ? "resume" : "pause"}`);
    await reload();
  }, { confirm: () => (isPaused() ? "" : `Pause ${name()}? Its consumers get nothing until it is resumed.`) });
  onSubmit("deleteQueue", async () => {
    await request("DELETE", here());
    location.assign("queues");
  }, { confirm: () => `Delete ${name()} with ${count(one().messages)} messages?` });
}
