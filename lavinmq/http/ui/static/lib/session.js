// Who is in front of the browser: asked of the API, kept for an hour, for what is offered. What may
// be done is decided by the API each time.

const KEY = "lmq.whoami";
const CLASSES = "lmq.stateclasses";
const VALID_MS = 3600_000;

/** @typedef {{name: string, tags: string | string[]}} Who */

/** Keep the state of the frame for the next page. */
export function keepClasses() {
  const root = document.documentElement.classList;
  const kept = [...root].filter((name) =>
    /^(user-is-|menu-collapsed$|theme-|system$)/.test(name),
  );
  localStorage.setItem(CLASSES, kept.join(" "));
}

/** @param {string | string[]} tags */
function applyTags(tags) {
  const root = document.documentElement.classList;
  const wanted = (Array.isArray(tags) ? tags : tags.split(",")).map((tag) => tag.trim());
  for (const name of [...root]) if (name.startsWith("user-is-")) root.remove(name);
  for (const tag of wanted) if (/^[\w-]+$/.test(tag)) root.add(`user-is-${tag}`);
  keepClasses();
}

/** @returns {string | null} the name of a user who has logged in elsewhere */
function markedName() {
  const match = /(?:^|; )m=%?\|?(?:%7C)?oauth(?::|%3A)([^;]*)/i.exec(document.cookie);
  if (!match) return null;
  try {
    const octets = Uint8Array.from(atob(decodeURIComponent(match[1] ?? "")), (c) => c.charCodeAt(0));
    return new TextDecoder().decode(octets).replace(/:$/, "");
  } catch {
    return null;
  }
}

/**
 * @param {() => Promise<Who>} ask
 * @returns {Promise<Who>}
 */
export async function whoAmI(ask) {
  /** @type {{at: number, who: Who} | null} */
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(KEY) ?? "null");
  } catch {
    // Somebody else wrote it: it is asked anew.
  }
  let who = kept?.who;
  if (!kept || !who || Date.now() - kept.at > VALID_MS) {
    const said = await ask();
    who = { name: said.name, tags: said.tags };
    localStorage.setItem(KEY, JSON.stringify({ at: Date.now(), who }));
  }
  applyTags(who.tags);
  return { name: markedName() ?? who.name, tags: who.tags };
}

/** Whether the user has one of some tags; an administrator has them all.
 * @param {...string} tags */
export function is(...tags) {
  const root = document.documentElement.classList;
  return ["administrator", ...tags].some((tag) => root.contains(`user-is-${tag}`));
}

/** Forget everything about the user that this browser keeps. */
function forget() {
  localStorage.removeItem(KEY);
  sessionStorage.clear();
  applyTags("");
}

let isLeaving = false;

/**
 * End the log-in and go to the page for another one. All that a page asks for is refused at once
 * when its log-in is over: it is left once.
 * @param {boolean} [everywhere]
 */
export async function signOut(everywhere = false) {
  if (isLeaving) return;
  isLeaving = true;
  const isElsewhere = markedName() !== null;
  forget();
  // An answer that is under way may be kept by the page until it is left.
  addEventListener("pagehide", forget, { once: true });
  if (isElsewhere) {
    location.assign("oauth/logout");
    return;
  }
  try {
    await fetch(everywhere ? "session?everywhere" : "session", { method: "DELETE" });
  } catch {
    // The broker is away: the log-in ends with it.
  }
  location.assign("login");
}
