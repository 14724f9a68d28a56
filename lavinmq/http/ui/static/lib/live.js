// What keeps a page up to date: every so often, unless it is held or nobody looks.

import { ApiError } from "./api.js";
import { byId, pageError } from "./dom.js";

const RATE = "lmq.rate";
/** @type {{load: () => Promise<void>, timer: number, isBusy: boolean}[]} */
const loads = [];
let isHeld = false;
/** @type {Set<object>} */
const lost = new Set();

const rateMs = () => Number(localStorage.getItem(RATE)) || 5000;

/** @param {typeof loads[number]} each */
async function run(each) {
  if (each.isBusy) return;
  each.isBusy = true;
  clearTimeout(each.timer);
  try {
    await each.load();
    lost.delete(each);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 0) lost.add(each);
    else if (error.status === 403) pageError(`Access denied: ${error.message}`);
    else if (error.status !== 401) pageError(error.message);
  } finally {
    each.isBusy = false;
    tell();
    plan(each);
  }
}

/** @param {typeof loads[number]} each */
function plan(each) {
  clearTimeout(each.timer);
  if (!isHeld && !document.hidden) each.timer = setTimeout(() => void run(each), rateMs());
}

function tell() {
  const box = byId("lost");
  box.hidden = lost.size === 0;
  if (lost.size) box.textContent = "The broker does not answer. What you see is old; it is asked again.";
  byId("live-state").textContent = lost.size ? "Lost" : isHeld ? "Held" : "";
}

/**
 * Load something now and again and again.
 * @param {() => Promise<void>} load
 * @returns {() => Promise<void>} loads it at once
 */
export function live(load) {
  const mine = { load, timer: 0, isBusy: false };
  loads.push(mine);
  void run(mine);
  return () => run(mine);
}

/** Have the controls of the header work. */
export function startControls() {
  const toggle = byId("live-toggle");
  const rate = /** @type {HTMLSelectElement} */ (byId("live-rate"));
  rate.value = String(rateMs());
  rate.addEventListener("change", () => {
    localStorage.setItem(RATE, rate.value);
    for (const each of loads) plan(each);
  });
  toggle.addEventListener("click", () => {
    isHeld = !isHeld;
    toggle.setAttribute("aria-pressed", String(isHeld));
    toggle.textContent = isHeld ? "Go on" : "Hold";
    tell();
    for (const each of loads) isHeld ? clearTimeout(each.timer) : void run(each);
  });
  document.addEventListener("visibilitychange", () => {
    for (const each of loads) {
      if (document.hidden) clearTimeout(each.timer);
      else if (!isHeld) void run(each);
    }
  });
}
