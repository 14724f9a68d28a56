// Numbers and times as people read them.

const counts = new Intl.NumberFormat("en");

/** @param {unknown} value */
export const count = (value) => (typeof value === "number" ? counts.format(value) : "–");

/** @param {unknown} value */
export function rate(value) {
  return typeof value === "number" ? `${counts.format(Math.round(value * 10) / 10)}/s` : "–";
}

/**
 * @param {unknown} value
 * @param {number} [step]
 * @param {string} [unit]
 */
export function short(value, step = 1000, unit = "") {
  if (typeof value !== "number") return "–";
  const names = ["", "K", "M", "G", "T"];
  let at = 0;
  while (Math.abs(value) >= step && at < names.length - 1) {
    value /= step;
    at += 1;
    if (typeof value !== "number") break;
  }
  const digits = at === 0 ? 1 : 2;
  return `${Number(/** @type {number} */ (value).toFixed(digits))}${unit ? ` ${step === 1024 && at ? `${names[at]}i` : names[at]}${unit}` : names[at]}`;
}

/** @param {unknown} value */
export const bytes = (value) => short(value, 1024, "B");

/** @param {number} seconds */
export function duration(seconds) {
  const days = Math.floor(seconds / 86400);
  const hours = Math.floor((seconds % 86400) / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  if (days) return `${days}d, ${hours}h, ${minutes}m`;
  if (hours) return `${hours}h, ${minutes}m`;
  return minutes ? `${minutes}m, ${Math.floor(seconds % 60)}s` : `${Math.floor(seconds)}s`;
}

/** @param {import("./api.js").Row} session of MQTT, whose client is there */
export const keepAlive = ({ keepalive }) => (keepalive ? `${keepalive} s` : "none");

/** @param {number} ms */
export function time(ms) {
  return Number.isFinite(ms) ? new Date(ms).toLocaleString("sv") : "–";
}

/** @param {unknown} value */
export const json = (value) => JSON.stringify(value, null, 2);
