// Definitions from a file: what they would change is shown first, then changed or not.

import { path, request } from "./api.js";
import { byId, h, hide, toast } from "./dom.js";
import { act, InputError, onSubmit } from "./form.js";
import { count } from "./format.js";

const SHOWN = 200;
/** @typedef {{kind: string, vhost: string | null, name: string, action: string}} Change */
/** @typedef {{place: string, reason: string}} Skipped */
/** @typedef {{unchanged: number, changes: Change[], skipped: Skipped[], notes: unknown[]}} Plan */

/** Have the form of the overview work. */
export function startImport() {
  const box = byId("importPlan");
  const form = /** @type {HTMLFormElement} */ (byId("importDefinitions"));
  const close = () => {
    hide(box, true, form.elements[0] ?? form);
    box.replaceChildren();
  };
  form.addEventListener("input", close);
  onSubmit("importDefinitions", async ({ vhost }) => {
    const file = /** @type {HTMLInputElement} */ (form.elements.namedItem("file")).files?.[0];
    if (!file) throw new InputError("Choose a file");
    const place = vhost === "_all" ? "definitions/upload" : path`definitions/${vhost}/upload`;
    const send = (/** @type {string} */ query) => {
      const sent = new FormData();
      sent.append("file", file);
      return request("POST", place + query, { form: sent });
    };
    /** @type {Plan} */
    const plan = await send("?dry_run=true");
    box.replaceChildren(...described(plan), h("p", { class: "actions" },
      plan.changes.length > 0 && h("button", { type: "button", click: () => void act(async () => {
        await send("");
        close();
        form.reset();
        toast("The definitions are in force");
      }) }, "Apply"),
      h("button", { type: "button", class: "row-button", click: close }, plan.changes.length ? "Change nothing" : "Close")));
    box.hidden = false;
    box.focus();
  }, { isKept: true });
}

/** @param {Plan} plan */
function described({ unchanged, changes, skipped, notes }) {
  const n = (/** @type {string} */ action) => count(changes.filter((each) => each.action === action).length);
  const rows = changes.slice(0, SHOWN).map((each) => h("tr", {},
    [each.action, each.kind, each.vhost ?? "", each.name].map((text) => h("td", { class: "text" }, text))));
  const heads = ["Action", "Kind", "Virtual host", "Name"].map((text) => h("th", { scope: "col" }, text));
  const list = (/** @type {string} */ title, /** @type {string[]} */ texts) => texts.length > 0 && [
    h("h4", {}, title), h("ul", {}, texts.slice(0, SHOWN).map((text) => h("li", {}, text)))];
  return [
    h("p", {}, changes.length ? `${n("create")} would be made, ${n("update")} changed, ${count(unchanged)} stay as they are.` : "Nothing would change."),
    ...(rows.length ? [h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Changes" },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)))] : []),
    ...(changes.length > SHOWN ? [h("p", { class: "soft" }, `and ${count(changes.length - SHOWN)} more`)] : []),
    ...(list("Left out", skipped.map((each) => `${each.place}: ${each.reason}`)) || []),
    ...(list("Without effect", notes.map(noted)) || []),
  ];
}

/** @param {unknown} note */
function noted(note) {
  return typeof note === "string" ? note : Object.values(/** @type {Record<string, string>} */ (note)).join(": ");
}
