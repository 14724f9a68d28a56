// The broker's API: one request, its answer, and what is wrong as text.

import { signOut } from "./session.js";

/** @typedef {Record<string, any>} Row */

export class ApiError extends Error {
  /**
   * @param {number} status 0: no answer
   * @param {string} reason
   */
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

const REASONS = /** @type {Record<number, string>} */ ({
  403: "You may not do this",
  404: "There is no such thing any more",
});

/** @type {string | null} */
let shown = null;

/** @param {Response} answer */
function noteVersion(answer) {
  const version = answer.headers.get("LavinMQ-Version");
  if (!version) return;
  const before = shown ?? sessionStorage.getItem("lavinmq_version");
  sessionStorage.setItem("lavinmq_version", version);
  const element = document.getElementById("version");
  if (element) element.textContent = version;
  // Another release has other pages. `shown` is of this page: a page is loaded anew once at most.
  if (shown !== null && before !== version) location.reload();
  shown = version;
}

/** A browser takes these parts of a path for the way up, however they are written. */
const UPWARDS = /(^|\/)\.\.?($|[/?])/;

/**
 * Ask the API.
 * @param {string} method
 * @param {string} path below `api/`
 * @param {{body?: unknown, form?: FormData, headers?: Record<string, string>, isAside?: boolean}} [more]
 *   isAside: what is asked beside what the page is about, which finds out itself that a log-in is over
 * @returns {Promise<any>} the JSON of the answer, null for none
 */
export async function request(method, path, { body, form, headers = {}, isAside = false } = {}) {
  if (UPWARDS.test(path)) throw new ApiError(400, "A browser cannot ask for what is called “.” or “..”: lavinmqctl can");
  /** @type {RequestInit} */
  const options = { method, headers: { ...headers }, cache: "no-store" };
  if (form) {
    options.body = form;
    options.referrerPolicy = "no-referrer"; // else the answer sends the browser back to the page
  }
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { ...headers, "Content-Type": "application/json" };
  }
  let answer;
  try {
    answer = await fetch(`api/${path}`, options);
  } catch {
    throw new ApiError(0, "The broker does not answer");
  }
  noteVersion(answer);
  const text = await answer.text();
  if (answer.ok) {
    if (!text) return null;
    return answer.headers.get("Content-Type")?.startsWith("text/plain") ? text : JSON.parse(text);
  }
  if (answer.status === 401) {
    if (!isAside) await signOut();
    throw new ApiError(401, "You are not logged in any more");
  }
  let reason = "";
  try {
    reason = JSON.parse(text).reason;
  } catch {
    // Some refusals come without a body.
  }
  throw new ApiError(answer.status, reason || REASONS[answer.status] || `Status ${answer.status}`);
}

/** @param {string} path */
export const get = (path) => request("GET", path);

/**
 * A path of names.
 * @param {TemplateStringsArray} words
 * @param {...unknown} names
 */
export function path(words, ...names) {
  return words.reduce(
    (made, word, at) => made + word + (at < names.length ? encodeURIComponent(String(names[at])) : ""),
    "",
  );
}

/** @returns {string} the chosen virtual host, "" for all */
export function chosenVhost() {
  const vhost = sessionStorage.getItem("vhost");
  return vhost === null || vhost === "_all" ? "" : vhost;
}

/**
 * The path of a list, of the chosen virtual host if there is one.
 * @param {string} base
 */
export function listOf(base) {
  const vhost = chosenVhost();
  if (!vhost) return base;
  if (base === "connections" || base === "channels") return path`vhosts/${vhost}/` + base;
  return `${base}/${encodeURIComponent(vhost)}`;
}

/** @param {unknown} answer of a list. @returns {Row[]} */
export function rowsOf(answer) {
  if (Array.isArray(answer)) return answer;
  const items = /** @type {Row | null | undefined} */ (answer)?.items;
  return Array.isArray(items) ? items : [];
}
