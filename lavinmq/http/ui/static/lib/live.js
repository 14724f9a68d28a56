// What keeps a page up to date. It asks once for what it shows; from then on the broker tells what
// changes, in one stream for all views of the page. What is not told in time is asked for: a proxy
// may hold a stream back, a browser may have too many.

import { ApiError, request } from "./api.js";
import { byId, pageError } from "./dom.js";

const RATE = "lmq.rate";
const SETTLED_MS = 500; // a page that is turned quickly does not open a stream for each
const AGAIN_MS = 30_000;

/**
 * @typedef {object} View
 * @property {() => string} path below `api/`
 * @property {(answer: any) => void | Promise<void>} take shows an answer
 * @property {(error: ApiError | null) => boolean} [failed] told how it went; true: that is shown
 * @property {boolean} [isAside] see `request`
 */
/** @typedef {View & {timer: number, isBusy: boolean, isTold: boolean, asked: string}} Watched */

/** @type {Watched[]} */
const views = [];
/** @type {Set<object>} */
const lost = new Set();
/** @type {EventSource | null} */
let stream = null;
let told = ""; // the query of the stream
let refused = ""; // one that is not tried for a while
let saidAt = 0; // when the stream said something, or began
let settling = 0;
let isHeld = false;
const tab = [...crypto.getRandomValues(new Uint8Array(12))].map((each) => each.toString(16).padStart(2, "0")).join("");

const rateMs = () => Number(localStorage.getItem(RATE)) || 5000;
const isIdle = () => isHeld || document.hidden;

/** @param {Watched} view @param {unknown} error */
function failed(view, error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 0) lost.add(view);
  else if (error.status === 401 || view.failed?.(error)) return;
  else if (error.status === 403) pageError(`Access denied: ${error.message}`);
  else pageError(error.message);
}

/** Ask for a view. @param {Watched} view */
async function ask(view) {
  if (view.isBusy) return;
  view.isBusy = true;
  clearTimeout(view.timer);
  const path = view.path();
  try {
    await show(view, await request("GET", path, { isAside: view.isAside }));
  } catch (error) {
    failed(view, error);
  } finally {
    view.isBusy = false;
    view.asked = path;
    tell();
    if (view.path() === path) plan(view);
    else void ask(view); // the page was turned meanwhile
    settle();
  }
}

/** @param {Watched} view @param {any} answer */
async function show(view, answer) {
  view.failed?.(null);
  await view.take(answer);
  lost.delete(view);
}

/** Ask again, unless it is told before. @param {Watched} view */
function plan(view) {
  clearTimeout(view.timer);
  const isTold = view.isTold && stream?.readyState === EventSource.OPEN;
  if (!isIdle()) view.timer = setTimeout(() => void ask(view), isTold ? rateMs() * 1.1 + 400 : rateMs());
}

function tell() {
  const box = byId("lost");
  box.hidden = lost.size === 0;
  if (lost.size) box.textContent = "The broker does not answer. What you see is old; it is asked again.";
  const isAsking = refused || (stream && Date.now() - saidAt > 2 * rateMs() + 1000);
  const state = byId("live-state");
  state.textContent = lost.size ? "Lost" : isHeld ? "Held" : isAsking ? "Asking" : "";
  state.title = isAsking ? "Nothing comes by the stream of changes: a proxy may hold it back, or too many pages are open. The page asks instead." : "";
}

/** Have the stream tell what the page shows, once that has settled. */
function settle() {
  clearTimeout(settling);
  if (!isIdle() && views.every((view) => view.asked)) settling = setTimeout(follow, SETTLED_MS);
}

function follow() {
  const query = new URLSearchParams({ rate: String(rateMs() / 1000), tab });
  for (const path of new Set(views.map((view) => view.asked))) query.append("view", path);
  if (isIdle() || refused === String(query) || (stream && told === String(query))) return;
  leave();
  told = String(query);
  saidAt = Date.now();
  const mine = stream = new EventSource(`api/live?${query}`);
  mine.addEventListener("message", (event) => {
    saidAt = Date.now();
    void heard(JSON.parse(event.data));
  });
  mine.addEventListener("beat", () => {
    saidAt = Date.now();
    tell();
    for (const view of views) if (view.isTold && !view.isBusy) plan(view);
  });
  mine.addEventListener("error", () => {
    if (stream !== mine) return;
    if (mine.readyState === EventSource.CLOSED) {
      leave(); // the page asks, and tries again
      refused = told;
      setTimeout(() => {
        refused = "";
        settle();
      }, AGAIN_MS);
      for (const view of views) plan(view);
    } else for (const view of views) void ask(view);
  });
}

/** @param {{view: string, status: number, answer: any}} event */
async function heard({ view: path, status, answer }) {
  for (const view of views.filter((each) => each.asked === path && !each.isBusy)) {
    view.isTold = status === 200;
    if (!view.isTold) void ask(view); // which says why
    else {
      try {
        await show(view, answer);
      } catch (error) {
        failed(view, error);
      }
      tell();
      plan(view);
    }
  }
}

/** Close the stream: a browser has few connections to a host. */
function leave() {
  stream?.close();
  stream = null;
  clearTimeout(settling);
}

/**
 * Show what a path of the API answers, now and whenever it is another.
 * @param {View} view
 * @returns {() => Promise<void>} asks at once
 */
export function live(view) {
  const mine = { ...view, timer: 0, isBusy: false, isTold: true, asked: "" };
  views.push(mine);
  void ask(mine);
  return () => ask(mine);
}

/** Begin or stop, as it is held or in the background now. */
function changed() {
  if (isIdle()) {
    leave();
    for (const view of views) clearTimeout(view.timer);
  } else for (const view of views) void ask(view);
}

/** Have the controls of the header work. */
export function startControls() {
  const toggle = byId("live-toggle");
  const rate = /** @type {HTMLSelectElement} */ (byId("live-rate"));
  rate.value = String(rateMs());
  rate.addEventListener("change", () => {
    localStorage.setItem(RATE, rate.value);
    for (const view of views) plan(view);
    settle();
  });
  toggle.addEventListener("click", () => {
    isHeld = !isHeld;
    toggle.setAttribute("aria-pressed", String(isHeld));
    toggle.textContent = isHeld ? "Go on" : "Hold";
    tell();
    changed();
  });
  document.addEventListener("visibilitychange", changed);
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => event.persisted && changed());
}
