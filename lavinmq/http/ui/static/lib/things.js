// What several pages show of queues, exchanges and their like.

import { to } from "./address.js";
import { h } from "./dom.js";
import { json } from "./format.js";

/** @typedef {import("./api.js").Row} Row */

/** @param {Row} row */
export function queueLink(row, name = row.name, vhost = row.vhost) {
  const isStream = row.arguments?.["x-queue-type"] === "stream";
  return h("a", { href: to(isStream ? "stream" : "queue", { vhost, name }) }, name);
}

/** Whether a consumer is one of AMQP, which can be cancelled. @param {Row} row */
export const isOfChannel = (row) => row.channel_details?.number !== 0;

/** The channel of a consumer, or the connection of a client of MQTT. @param {Row} row */
export function channelLink(row) {
  const name = row.channel_details?.name ?? "";
  return h("a", { href: to(isOfChannel(row) ? "channel" : "connection", { name }) }, name);
}

/** @param {string} vhost @param {string} name */
export const exchangeLink = (vhost, name) => h("a", { href: to("exchange", { vhost, name }) }, name || "(default)");

/** @param {Row} row */
export function features(row) {
  /** @type {[unknown, string, string][]} */
  const all = [
    [row.durable, "D", "Durable"], [row.auto_delete, "AD", "Auto delete"], [row.exclusive, "E", "Exclusive"],
    [row.internal, "I", "Internal"], [row.arguments?.["x-delayed-exchange"], "d", "Delayed"],
  ];
  const shown = all.filter(([has]) => has).map(([, short, long]) => h("abbr", { title: long }, short));
  if (Object.keys(row.arguments ?? {}).length) shown.push(h("abbr", { title: json(row.arguments) }, "Args"));
  return shown;
}

/** @param {Row} row */
export function policyLink(row, field = "policy", page = "policies") {
  const name = row[field];
  return name ? h("a", { href: to(page, { name, vhost: row.vhost }) }, name) : "";
}

/** @param {unknown} state */
export function state(state) {
  const text = String(state ?? "");
  return h("span", { class: `state-${text.toLowerCase()}` }, text);
}

/** @param {Row | null | undefined} table as JSON, in a line. */
export function inline(table) {
  return table && Object.keys(table).length ? h("code", {}, JSON.stringify(table)) : "";
}

/**
 * Arguments with whether each is in force.
 * @param {Row} thing
 */
export function argumentFacts(thing) {
  const inForce = new Set(thing.effective_arguments ?? Object.keys(thing.arguments ?? {}));
  return /** @type {[string, Node][]} */ (Object.entries(thing.arguments ?? {}).map(([name, value]) => [
    name,
    h("span", inForce.has(name) ? {} : { class: "inactive", title: "Has no effect here" }, JSON.stringify(value)),
  ]));
}

/**
 * A message that the API has given.
 * @param {Row} message
 * @param {string} title
 */
export function messageCard(message, title) {
  const properties = { ...message.properties };
  return h("article", { class: "message" },
    h("h3", {}, title),
    h("dl", { class: "facts" },
      [["Exchange", message.exchange || "(default)"], ["Routing key", message.routing_key],
        ["Redelivered", message.redelivered ? "yes" : "no"], ["Properties", inline(properties) || "none"],
        ["Payload", `${message.payload_bytes} bytes, as ${message.payload_encoding}`]]
        .flatMap(([name, value]) => [h("dt", {}, /** @type {string} */ (name)), h("dd", {}, value)])),
    h("pre", { tabindex: 0 }, message.payload));
}
