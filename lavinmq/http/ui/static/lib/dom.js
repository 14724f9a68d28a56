// Elements made and found. Text only ever becomes text: nothing here writes HTML.

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Make an element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [attributes] functions become listeners, `true` an empty value
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      made.addEventListener(name, /** @type {EventListener} */ (value));
    } else if (value === true) {
      made.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(name, String(value));
    }
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) {
      made.append(child instanceof Node ? child : String(child));
    }
  }
  return made;
}

/**
 * The element of an id; a page that lacks one is wrong.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/**
 * Show a text if there is an element for it.
 * @param {string} id
 * @param {unknown} text
 */
export function show(id, text) {
  const found = document.getElementById(id);
  const wanted = text === null || text === undefined ? "" : String(text);
  if (found && found.textContent !== wanted) found.textContent = wanted;
}

/**
 * Fill a list of facts; only what has changed is written.
 * @param {string} id of a `dl`
 * @param {[string, Child][]} facts
 */
export function facts(id, facts) {
  const made = h("dl");
  for (const [name, value] of facts) made.append(h("dt", {}, name), h("dd", {}, value ?? "–"));
  const shown = byId(id);
  if (shown.textContent === "" || !sameChildren(shown, made)) keepFocus(shown, () => shown.replaceChildren(...made.childNodes));
}

/**
 * Change what is in a place. What had the focus there has it afterwards; if it is gone, what is around
 * it: never the button of another row, which would do something else.
 * @param {Element} place
 * @param {() => void} work
 * @param {{isMadeAnew?: boolean}} [more] `isMadeAnew`: what looks like it has taken its place
 */
export function keepFocus(place, work, { isMadeAnew = true } = {}) {
  const had = document.activeElement;
  const isInside = had instanceof HTMLElement && had !== place && place.contains(had);
  work();
  if (!isInside || document.activeElement === had) return;
  const likeIt = () => [...place.querySelectorAll(had.localName)].find((each) =>
    each.textContent === had.textContent && each.getAttribute("aria-label") === had.getAttribute("aria-label"));
  const next = place.contains(had) ? had : isMadeAnew && likeIt();
  focusOn(next instanceof HTMLElement && !next.matches(":disabled") ? next : place);
}

/** Give something the focus, or what is around it. @param {Element} element */
export function focusOn(element) {
  const next = element.closest("a[href], button, input, select, textarea, [tabindex]");
  if (next instanceof HTMLElement) next.focus({ preventScroll: true });
}

/**
 * Hide something or show it. Focus that was in what is hidden goes elsewhere.
 * @param {HTMLElement} element
 * @param {boolean} isHidden
 * @param {Element} next
 */
export function hide(element, isHidden, next) {
  const hadFocus = element.contains(document.activeElement);
  element.hidden = isHidden;
  if (isHidden && hadFocus) focusOn(next);
}

/**
 * @param {Element} one
 * @param {Element} other
 */
function sameChildren(one, other) {
  return (
    one.childNodes.length === other.childNodes.length &&
    [...one.childNodes].every((each, at) => each.isEqualNode(other.childNodes[at] ?? null))
  );
}

let toasts = 0;
/**
 * Say something for seven seconds.
 * @param {string} text
 */
export function toast(text) {
  const mine = ++toasts;
  byId("toast").replaceChildren(h("p", {}, text));
  setTimeout(() => {
    if (mine === toasts) byId("toast").replaceChildren();
  }, 7000);
}

/**
 * Tell what went wrong where everybody sees it; an empty text takes it away.
 * @param {string} text
 */
export function pageError(text) {
  const box = byId("page-error");
  box.textContent = text;
  box.hidden = !text;
}
