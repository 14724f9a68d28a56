// What seems wrong, in words, each with the page on which it is mended. The broker judges.

import { chosenVhost } from "./api.js";
import { to } from "./address.js";
import { byId, h } from "./dom.js";

/** @typedef {{kind: string, level: string, text: string, page: string, vhost: string, name: string}} Advice */

/** @type {Record<string, string>} */
const LEVELS = { error: "Error", warning: "Warning", hint: "Hint" };
/** @type {Record<string, string>} */
const PAGES = {
  queue: "Open the queue", unacked: "Show what is unacknowledged", nodes: "Open the node", mqtt: "Open the page of MQTT", policies: "Open the policies",
  "operator-policies": "Open the operator policies", vhosts: "Open the virtual hosts",
};

/** @param {Advice} one */
function address({ page, vhost, name }) {
  if (!name) return page;
  return to(page, page.endsWith("policies") ? { name } : { vhost, name });
}

let shown = "";
/** Show advice if there is any. @param {{advice: Advice[], more: number}} said */
export function advise(said) {
  const vhost = chosenVhost();
  const all = said.advice.filter((each) => !vhost || !each.vhost || each.vhost === vhost);
  const now = JSON.stringify([all, said.more]);
  if (now === shown) return; // a link keeps the focus
  shown = now;
  byId("advice").hidden = all.length === 0;
  byId("advice-list").replaceChildren(
    ...all.map((each) => h("li", { class: `advice-${each.level}` },
      h("b", {}, LEVELS[each.level] ?? each.level), `${each.text}. `, h("a", { href: address(each) }, PAGES[each.page] ?? each.page))),
    ...(said.more ? [h("li", { class: "advice-hint" }, `There are ${said.more} more like these.`)] : []),
  );
}
