// The log as it comes; the newest lines are kept, a bounded number of them.

import { byId, h, show } from "../lib/dom.js";
import { time } from "../lib/format.js";
import { known } from "../lib/frame.js";
import { is } from "../lib/session.js";

const MAX_LINES = 2000;
const LEVELS = ["trace", "debug", "info", "notice", "warn", "error", "fatal"];
const SCROLL = "lmq.logScrollMode";
const body = byId("livelog-body");
const scroll = byId("log-scroll");
const level = /** @type {HTMLSelectElement} */ (byId("log-level"));
const text = /** @type {HTMLInputElement} */ (byId("log-text"));
let isFollowing = localStorage.getItem(SCROLL) !== "top";

/** @param {HTMLElement} row */
function hide(row) {
  const isLow = LEVELS.indexOf(row.dataset.level ?? "") < LEVELS.indexOf(level.value);
  row.hidden = isLow || !(row.textContent ?? "").toLowerCase().includes(text.value.toLowerCase());
}

function follow() {
  if (isFollowing) scroll.scrollTop = scroll.scrollHeight;
}

function start() {
  const stream = new EventSource("api/livelog");
  stream.addEventListener("open", () => show("live-state", ""));
  stream.addEventListener("error", () => show("live-state", "Lost"));
  stream.addEventListener("message", (event) => {
    const [severity, source, message] = JSON.parse(event.data);
    const at = Number(event.lastEventId);
    const row = h("tr", { "data-level": severity, class: `level-${severity}` },
      h("td", {}, at ? time(at) : ""), h("td", {}, severity), h("td", {}, source), h("td", {}, message));
    hide(row);
    body.append(row);
    while (body.children.length > MAX_LINES) body.firstElementChild?.remove();
    follow();
  });
}

scroll.addEventListener("scroll", () => {
  isFollowing = scroll.scrollTop + scroll.clientHeight >= scroll.scrollHeight - 8;
});
byId("to-bottom").addEventListener("click", () => {
  isFollowing = true;
  localStorage.setItem(SCROLL, "bottom");
  follow();
});
byId("to-top").addEventListener("click", () => {
  isFollowing = false;
  localStorage.setItem(SCROLL, "top");
  scroll.scrollTop = 0;
});
for (const field of [level, text]) {
  field.addEventListener("input", () => {
    for (const row of body.children) hide(/** @type {HTMLElement} */ (row));
    follow();
  });
}
byId("log-filter").addEventListener("submit", (event) => event.preventDefault());
void known.then(() => {
  byId("log-denied").hidden = is();
  byId("log-view").hidden = !is();
  if (is()) start();
});
