// Messages seen where they are, and what is done with those that are ticked.

import { request } from "./api.js";
import { byId, h, hide } from "./dom.js";
import { act, InputError, onSubmit } from "./form.js";
import { count, json } from "./format.js";
import { here, name } from "./queue.js";
import { inline } from "./things.js";

const SHOWN_BYTES = 50_000;
const HEX_BYTES = 4096;
/** @typedef {import("./api.js").Row} Row */

/** @param {Row} message @returns {Uint8Array} */
function bytesOf(message) {
  if (message.payload_encoding !== "base64") return new TextEncoder().encode(message.payload);
  const text = atob(String(message.payload).replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(text, (each) => each.charCodeAt(0));
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const codes = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(47)}  ${text}`);
  }
  return lines.join("\n") + (bytes.length > HEX_BYTES ? "\n…" : "");
}

/** The payload as JSON in lines, "" if it is none. @param {Row} message */
function decoded(message) {
  if (message.payload_encoding === "base64" || !/^\s*[[{]/.test(message.payload)) return "";
  try {
    return json(JSON.parse(message.payload));
  } catch {
    return "";
  }
}

/** @param {Row} message */
function payloadBox(message) {
  const pretty = decoded(message);
  const isText = message.payload_encoding !== "base64";
  const shown = h("pre", { tabindex: 0 });
  /** @type {[string, () => string][]} */
  const forms = [];
  if (pretty) forms.push(["JSON", () => pretty]);
  if (isText) forms.push(["Text", () => message.payload]);
  forms.push(["Hex", () => hex(bytesOf(message))]);
  const choose = h("select", { "aria-label": "Show the payload as", change: () => {
    shown.textContent = forms[choose.selectedIndex]?.[1]() ?? "";
  } }, forms.map(([label]) => h("option", {}, label)));
  shown.textContent = forms[0]?.[1]() ?? "";
  return [choose, shown];
}

/** How a message died, as a table. @param {unknown} deaths the header x-death */
function deathTable(deaths) {
  if (!Array.isArray(deaths) || !deaths.length) return null;
  const text = (/** @type {unknown} */ value) => (Array.isArray(value) ? value.join(", ") : String(value ?? ""));
  return h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Death history" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Queue", "Reason", "Times", "First", "Exchange", "Routing keys"].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, deaths.map((death) => h("tr", {},
      ["queue", "reason", "count", "time", "exchange", "routing-keys"].map((field) => h("td", {}, text(death?.[field]))))))));
}

/** @param {Row} message @param {string} [passed] in place of where it is: when it has passed */
export function card(message, passed) {
  const { headers, ...properties } = message.properties ?? {};
  const { "x-death": deaths, ...others } = headers ?? {};
  const at = new Date(message.stored);
  const isOfStream = message.offset !== undefined;
  const title = passed ?? (isOfStream ? `Offset ${message.offset}, stored ${at.toLocaleString()}` : `Stored ${at.toLocaleString()}`);
  const cut = bytesOf(message).length < message.payload_bytes ? ", the beginning" : "";
  return h("article", { class: "message" },
    h("h4", {}, message.id && h("input", { type: "checkbox", class: "require-management", value: message.id, "aria-label": `Choose the message: ${title}` }), " ", title),
    h("dl", { class: "facts" },
      [["Exchange", message.exchange || "(default)"], ["Routing key", message.routing_key],
        ...(passed || isOfStream ? [] : [["Redelivered", message.redelivered ? "yes" : "no"], ["Deliveries that count", count(message.delivery_count)]]),
        ["Properties", inline(properties) || "none"], ["Headers", inline(others) || "none"],
        ["Payload", `${count(message.payload_bytes)} bytes${cut}`]]
        .flatMap(([label, value]) => [h("dt", {}, /** @type {string} */ (label)), h("dd", {}, value)])),
    deathTable(deaths), payloadBox(message));
}

/** @param {string} label @param {Record<string, unknown>} attributes of the field */
const field = (label, attributes) => h("label", {}, `${label} `, h("input", attributes));

/** Have the box for browsing work. @param {() => Promise<void>} reload of what else the page shows */
export function startBrowsing(reload) {
  const list = h("div", { id: "browsed" });
  const more = h("button", { type: "button", id: "browse-more", class: "row-button", hidden: true }, "More");
  const said = h("p", { id: "browse-said", role: "status" });
  byId("browse").replaceChildren(
    h("form", { id: "browseMessages", class: "stacked" },
      field("From", { name: "from", placeholder: "0, -10, 5m or a time" }),
      field("Number of messages", { name: "n", type: "number", min: 1, max: 1000, value: 20, required: true }),
      field("Routing key has", { name: "key", maxlength: 255 }),
      field("Header", { name: "header", maxlength: 255 }),
      field("Header value", { name: "value" }),
      field("Body has", { name: "text" }),
      h("button", { type: "submit" }, "Browse messages")),
    said, list, h("p", {}, more));
  /** @type {Row} */
  let asked = {};
  let shown = 0;
  /** @param {Row} body @param {boolean} isFirst */
  async function see(body, isFirst) {
    const answer = await request("POST", `${here()}/browse`, { body });
    if (isFirst) {
      list.replaceChildren();
      shown = 0;
    }
    const cards = answer.messages.map((/** @type {Row} */ each) => card(each));
    list.append(...cards);
    shown += cards.length;
    said.textContent = `${count(shown)} shown, ${count(answer.scanned)} looked at${answer.more ? "" : ": these are all"}`;
    asked = { ...body, cursor: answer.more };
    hide(more, !answer.more, cards[0]?.querySelector("input, select") ?? list);
  }
  onSubmit("browseMessages", async ({ from, n, key, header, value, text }) => {
    const isNumber = /^-?\d+$/.test(from.trim());
    await see({
      count: Number(n), truncate: SHOWN_BYTES, routing_key: key, header, text,
      ...(value && { value }), ...(from.trim() && (isNumber ? { position: Number(from) } : { since: from.trim() })),
    }, true);
  }, { isKept: true });
  more.addEventListener("click", () => void act(() => see(asked, false)));
  window.addEventListener("hashchange", () => {
    list.replaceChildren();
    said.textContent = "";
    more.hidden = true;
  });
  const ticked = () => /** @type {HTMLInputElement[]} */ ([...list.querySelectorAll("input:checked")]);
  onSubmit("chosenMessages", async ({ what, destination }) => {
    const chosen = ticked();
    if (!chosen.length) throw new InputError("Choose messages first: each has a check box");
    if (what !== "delete" && !destination) throw new InputError("A queue is wanted for them");
    const answer = await request("POST", `${here()}/browse/${what}`, {
      body: { ids: chosen.map((each) => each.value), ...(what !== "delete" && { destination }) },
    });
    if (what !== "copy") for (const each of chosen) each.closest("article")?.remove();
    await reload();
    const done = answer.deleted ?? answer.moved ?? answer.copied;
    return `${count(done)} done, ${count(answer.gone)} were gone, ${count(answer.refused)} refused`;
  }, {
    isKept: true,
    confirm: ({ what, destination }) => {
      const n = ticked().length;
      if (!n || (what !== "delete" && !destination)) return "";
      return what === "delete" ? `Delete ${n} chosen messages from ${name()}?`
        : `${what === "move" ? "Move" : "Copy"} ${n} chosen messages from ${name()} to ${destination}?`;
    },
  });
}
