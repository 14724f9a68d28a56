// What the map is made of: groups of things by the beginnings of their names, the ways between them,
// and the lines that show these.

/**
 * @typedef {object} Thing
 * @property {string} kind
 * @property {string} name
 * @property {string} label what it is called
 * @property {string} [more] told below the label
 * @property {string} href
 * @property {number} rate
 * @property {number} messages
 */
/** @typedef {{from: string, to: string, key: string}} Way of messages, between `kind name` and `kind name` */
/**
 * @typedef {object} Group
 * @property {string} id
 * @property {string} label
 * @property {Thing[]} things that it stands for; none while it is open
 * @property {string} more told below the label
 * @property {number} size
 * @property {number} messages
 * @property {number} rate
 * @property {boolean} isGroup
 * @property {boolean} isOpen
 * @property {boolean} isInside of one that is open
 */
/** @typedef {{from: Group, to: Group, n: number, keys: Set<string>}} Joined */

export const KINDS = ["exchange", "queue", "client"];
const FEW = 30;
const SHOWN = 100;
const LINES = 1500;
const WIDEST = 76; // three quarters of it are seen, within the room that small screens leave
const KEYS = 5;
const TAGS = 3;

/** @param {import("./api.js").Row} row a consumer. @returns {string} the connection it is on */
export const clientOf = (row) => String(row.channel_details?.connection_name ?? "");

/** Tags that brokers and clients make up tell nobody anything. @param {string} tag */
const isMadeUp = (tag) => /^amq\.ctag-|^ctag\d+\.[0-9a-f]{32}$|^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(tag);

/**
 * The connections that consume, by the names that users know: what the client calls itself, else the tags of its
 * consumers, else its address.
 * @param {import("./api.js").Row[]} consumers
 * @param {import("./api.js").Row[]} connections
 * @param {(name: string) => string} href
 * @returns {Thing[]}
 */
export function clientsOf(consumers, connections, href) {
  /** @type {Map<string, Set<string>>} */
  const tags = new Map();
  for (const row of consumers) {
    const name = clientOf(row);
    const tag = String(row.consumer_tag ?? "");
    const known = tags.get(name) ?? new Set();
    tags.set(name, known);
    if (tag && !isMadeUp(tag)) known.add(tag);
  }
  const called = new Map(connections.map((row) => [row.name, String(row.client_properties?.connection_name || row.client_id || "")]));
  return [...tags].map(([name, all]) => {
    const some = [...all].slice(0, TAGS).join(", ") + (all.size > TAGS ? ` and ${all.size - TAGS} more` : "");
    const own = called.get(name) ?? "";
    const [address] = name.split(" -> ");
    const label = own || some || String(address);
    const more = [own && some !== own ? some : "", own || some ? address : ""].filter(Boolean).join(" · ");
    return { kind: "client", name, label, more, href: href(name), rate: 0, messages: 0 };
  });
}

/** The beginning of a name that it shares with others. @param {string} name */
const beginning = (name) => /^.*?[._:/-]/.exec(name)?.[0] ?? name.slice(0, 4);

/** @param {string} id @param {string} label @param {Thing[]} things @param {Partial<Group>} [more] @returns {Group} */
function group(id, label, things, more = {}) {
  const sum = (/** @type {"rate" | "messages"} */ name) => things.reduce((total, each) => total + each[name], 0);
  return {
    id, label, things, size: things.length, messages: sum("messages"), rate: sum("rate"),
    more: "", isGroup: false, isOpen: false, isInside: false, ...more,
  };
}

/**
 * What a column shows: few things as they are, many in groups of which some are open.
 * @param {string} kind
 * @param {Thing[]} things
 * @param {Set<string>} open ids of groups
 * @returns {Group[]}
 */
export function groupsOf(kind, things, open) {
  const sorted = things.toSorted((one, other) => (one.label < other.label ? -1 : 1));
  const single = (/** @type {Thing} */ thing, isInside = false) => group(`${kind} ${thing.name}`, thing.label, [thing], { isInside, more: thing.more ?? "" });
  if (sorted.length <= FEW) return sorted.map((thing) => single(thing));
  /** @type {Map<string, Thing[]>} */
  const parts = new Map();
  for (const thing of sorted) {
    const start = beginning(thing.label);
    const part = parts.get(start);
    if (part) part.push(thing);
    else parts.set(start, [thing]);
  }
  const heads = [...parts];
  const shown = heads.slice(0, SHOWN).flatMap(([start, some]) => {
    const [first] = some;
    if (some.length === 1 && first) return [single(first)];
    const id = `group ${kind} ${start}`;
    const isOpen = open.has(id);
    const head = group(id, `${start}…`, some, { isGroup: true, isOpen });
    if (!isOpen) return [head];
    return [{ ...head, things: some.slice(SHOWN) }, ...some.slice(0, SHOWN).map((thing) => single(thing, true))];
  });
  const rest = heads.slice(SHOWN).flatMap(([, some]) => some);
  return rest.length ? [...shown, group(`rest ${kind}`, `and ${rest.length} others`, rest)] : shown;
}

/**
 * The ways between what is shown, joined.
 * @param {Way[]} ways
 * @param {Map<string, Group>} shown by kind and name of a thing
 * @returns {Joined[]}
 */
export function waysOf(ways, shown) {
  /** @type {Map<string, Joined>} */
  const joined = new Map();
  for (const { from, to, key } of ways) {
    const one = shown.get(from);
    const other = shown.get(to);
    if (!one || !other) continue;
    const id = JSON.stringify([one.id, other.id]);
    const known = joined.get(id) ?? { from: one, to: other, n: 0, keys: new Set() };
    known.n += 1;
    if (key && known.keys.size < KEYS) known.keys.add(key);
    joined.set(id, known);
  }
  return [...joined.values()];
}

/**
 * Draw lines behind the columns.
 * @param {HTMLElement} place
 * @param {[Element, Element][]} lines
 */
export function drawn(place, lines) {
  const name = "http://www.w3.org/2000/svg";
  const svg = place.querySelector("svg") ?? place.insertBefore(document.createElementNS(name, "svg"), place.firstChild);
  svg.setAttribute("aria-hidden", "true");
  for (const side of ["width", "height"]) svg.setAttribute(side, "0"); // what it was does not keep the place large
  svg.setAttribute("width", String(place.scrollWidth));
  svg.setAttribute("height", String(place.scrollHeight));
  const origin = place.getBoundingClientRect();
  const ways = lines.slice(0, LINES).map(([from, to]) => {
    const one = from.getBoundingClientRect();
    const other = to.getBoundingClientRect();
    const y1 = one.top + one.height / 2 - origin.top;
    const y2 = other.top + other.height / 2 - origin.top;
    const x1 = one.right - origin.left;
    const isBeside = other.left >= one.right;
    const x2 = (isBeside ? other.left : other.right) - origin.left;
    // Between things that stand below each other, long ways go around short ones.
    const bend = Math.max(Math.abs(x2 - x1) / 2, isBeside ? 24 : Math.min(24 + Math.abs(y2 - y1) / 12, WIDEST));
    return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 + (isBeside ? -bend : bend)} ${y2} ${x2} ${y2}`;
  });
  const shape = svg.querySelector("path") ?? svg.appendChild(document.createElementNS(name, "path"));
  shape.setAttribute("d", ways.join(""));
}
