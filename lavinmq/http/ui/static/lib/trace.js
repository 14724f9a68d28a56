// Trace: messages that pass an exchange or a queue, seen live for a minute, as a sample.

import { ApiError } from "./api.js";
import { card } from "./browse.js";
import { byId, h } from "./dom.js";
import { count } from "./format.js";

const MOST = 200; // messages that are kept on the page
const SECONDS = 60;

/**
 * Have the box for following work.
 * @param {() => string} place the path of the exchange or queue, below `api/`
 */
export function startTracing(place) {
  const list = h("div", { id: "traced" });
  const said = h("span", { id: "trace-said", role: "status", class: "soft" });
  const button = h("button", { type: "button", id: "trace-toggle", class: "require-management" }, "Follow for a minute");
  const rate = h("select", { id: "trace-rate", "aria-label": "Messages in a second at most" },
    [5, 20, 100].map((each) => h("option", { value: each }, `${each} messages/s at most`)));
  byId("trace").replaceChildren(h("div", { class: "table-tools" }, button, rate, said), list);
  /** @type {AbortController | null} */
  let stop = null;
  /** @param {string} line */
  const take = (line) => {
    const one = JSON.parse(line);
    if (one.seen === undefined) {
      list.prepend(card(one, `Passed ${new Date(one.at).toLocaleTimeString()}`));
      if (list.childElementCount > MOST) list.lastElementChild?.remove();
    } else said.textContent = `${count(one.seen)} passed, ${count(one.shown)} shown`;
  };
  const follow = async () => {
    stop = new AbortController();
    list.replaceChildren();
    button.textContent = "Stop";
    try {
      await read(`api/${place()}/trace`, { seconds: SECONDS, rate: Number(rate.value) }, stop.signal, take);
    } catch (error) {
      if (!stop.signal.aborted) said.textContent = error instanceof ApiError ? error.message : "The connection is lost";
    }
    stop = null;
    button.textContent = "Follow for a minute";
  };
  button.addEventListener("click", () => {
    if (stop) stop.abort();
    else void follow();
  });
  window.addEventListener("hashchange", () => stop?.abort());
}

/**
 * Read lines as they come.
 * @param {string} address
 * @param {unknown} body
 * @param {AbortSignal} signal
 * @param {(line: string) => void} take
 */
async function read(address, body, signal, take) {
  const answer = await fetch(address, {
    method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  if (!answer.ok || !answer.body) {
    const { reason } = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, reason || `Status ${answer.status}`);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (text + value).split("\n");
    text = lines.pop() ?? "";
    lines.forEach(take);
  }
}
