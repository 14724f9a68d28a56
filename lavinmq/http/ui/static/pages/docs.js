// The API as its own description tells it.

import { byId, h } from "../lib/dom.js";

const METHODS = ["get", "put", "post", "delete"];

/** @param {string} path @param {string} method @param {any} one */
function endpoint(path, method, one) {
  const body = Object.values(one.requestBody?.content ?? {})[0]?.schema ?? {};
  const required = new Set(body.required ?? []);
  const fields = Object.entries(body.properties ?? {}).map(([name, field]) => [name, required.has(name) ? "body, required" : "body", field.description]);
  const rows = [...(one.parameters ?? []).map((/** @type {any} */ each) => [each.name, each.in, each.description]), ...fields];
  return h("details", { "data-text": `${method} ${path} ${one.summary}`.toLowerCase() },
    h("summary", {}, h("span", { class: "method" }, method.toUpperCase()), h("code", {}, path), ` ${one.summary}`),
    h("p", {}, one.description),
    rows.length ? h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Parameters" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Name", "Where", "Meaning"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((/** @type {any} */ cell) => h("td", {}, cell ?? "")))))) ) : null,
    h("ul", {}, Object.entries(one.responses ?? {}).map(([status, answer]) => h("li", {}, h("b", {}, status), ` ${answer.description}`))));
}

const said = await (await fetch("openapi.json")).json();
/** @type {Map<string, HTMLElement[]>} */
const groups = new Map();
for (const [path, methods] of Object.entries(said.paths)) {
  for (const method of METHODS) {
    const one = methods[method];
    if (!one) continue;
    const group = one.tags?.[0] ?? "other";
    groups.set(group, [...(groups.get(group) ?? []), endpoint(path, method, one)]);
  }
}
byId("endpoints").replaceChildren(...[...groups].sort(([one], [other]) => one.localeCompare(other))
  .map(([name, all]) => h("section", {}, h("h2", {}, name), all)));

const find = /** @type {HTMLInputElement} */ (byId("find"));
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/);
  for (const section of document.querySelectorAll("section")) {
    const all = /** @type {HTMLElement[]} */ ([...section.querySelectorAll("details")]);
    for (const each of all) each.hidden = !words.every((word) => (each.dataset.text ?? "").includes(word));
    section.hidden = all.every((each) => each.hidden);
  }
});
