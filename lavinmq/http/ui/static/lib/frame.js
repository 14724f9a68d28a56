// Header and menu of every page; imported for its effect by each of them.

import { ApiError, chosenVhost, get, rowsOf } from "./api.js";
import { byId, focusOn, h, show } from "./dom.js";
import { startControls } from "./live.js";
import { keepClasses, signOut, whoAmI } from "./session.js";

const root = document.documentElement.classList;
const AGAIN_MS = 2000;

/**
 * Ask until there is an answer, which nothing else of the page would do: without it less is offered for
 * as long as the page is open.
 * @param {string} path
 * @returns {Promise<any>}
 */
async function insist(path) {
  for (;;) {
    try {
      return await get(path);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 0) throw error;
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

function startMenu() {
  const toggle = byId("toggle-menu");
  const label = () => {
    const text = root.contains("menu-collapsed") ? "Expand sidebar" : "Collapse sidebar";
    toggle.setAttribute("aria-label", text);
    const tip = toggle.querySelector(".tip");
    if (tip) tip.textContent = text;
  };
  label();
  toggle.addEventListener("click", () => {
    root.toggle("menu-collapsed");
    keepClasses();
    label();
  });
  startOpener("menu-button", "menu", "menu-open");
  startOpener("usermenu-button", "user-menu", "usermenu-open");
  for (const item of document.querySelectorAll("#menu-content li li")) {
    if (root.contains(item.classList[0] ?? "")) {
      item.querySelector("a")?.setAttribute("aria-current", "page");
    }
  }
}

/**
 * A menu of small screens: it has the focus when it opens, and closes with Escape or when the focus goes elsewhere.
 * @param {string} button
 * @param {string} menu
 * @param {string} name of the class of an open one
 */
function startOpener(button, menu, name) {
  const opener = byId(button);
  const box = byId(menu);
  const open = (/** @type {boolean} */ isOpen) => opener.setAttribute("aria-expanded", String(root.toggle(name, isOpen)));
  opener.addEventListener("click", () => {
    open(!root.contains(name));
    if (root.contains(name)) focusOn(box.querySelector("a, select") ?? opener);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !root.contains(name)) return;
    if (box.contains(document.activeElement)) focusOn(opener);
    open(false);
  });
  document.addEventListener("focusin", ({ target }) => {
    if (root.contains(name) && target instanceof Node && !box.contains(target) && target !== opener) open(false);
  });
}

/** The address behind `#` says what a page shows: a link to the content must not change it. */
function startSkipping() {
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
}

function startThemes() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const names = ["light", "dark", "system"];
  const apply = () => {
    const isSystem = root.contains("system");
    if (isSystem) {
      root.toggle("theme-dark", dark.matches);
      root.toggle("theme-light", !dark.matches);
    }
    const active = isSystem ? "system" : root.contains("theme-dark") ? "dark" : "light";
    for (const name of names) {
      const button = byId(`theme-${name}`);
      button.classList.toggle("active", name === active);
      button.setAttribute("aria-pressed", String(name === active));
    }
    keepClasses();
    document.dispatchEvent(new Event("theme"));
  };
  for (const name of names) {
    byId(`theme-${name}`).addEventListener("click", () => {
      root.remove("theme-light", "theme-dark", "system");
      root.add(name === "system" ? "system" : `theme-${name}`);
      apply();
    });
  }
  dark.addEventListener("change", () => root.contains("system") && apply());
  apply();
}

async function startVhosts() {
  const select = /** @type {HTMLSelectElement} */ (byId("userMenuVhost"));
  const chosen = chosenVhost();
  const choose = () => {
    select.value = chosen || "_all";
  };
  if (chosen) select.append(h("option", { value: chosen }, chosen));
  choose();
  select.addEventListener("change", () => {
    sessionStorage.setItem("vhost", select.value);
    location.reload();
  });
  const names = (await vhosts()).map((each) => String(each.name)).sort();
  select.replaceChildren(
    h("option", { value: "_all" }, "All"),
    ...names.map((name) => h("option", { value: name }, name)),
  );
  if (chosen && !names.includes(chosen)) sessionStorage.removeItem("vhost");
  choose();
  if (select.selectedIndex < 0) select.value = "_all";
}

/** @type {Promise<import("./api.js").Row[]> | null} */
let asked = null;
/** The virtual hosts, asked for once in a page. */
export function vhosts() {
  asked ??= insist("vhosts").then(rowsOf);
  return asked;
}

/**
 * Fill a list of choices with the virtual hosts; the chosen one is chosen.
 * @param {string} id
 * @param {{first?: [string, string]}} [more] a choice before them: value and text
 */
export async function fillVhosts(id, { first } = {}) {
  const select = /** @type {HTMLSelectElement} */ (byId(id));
  const names = (await vhosts()).map((each) => String(each.name)).sort();
  select.replaceChildren(
    ...(first ? [h("option", { value: first[0] }, first[1])] : []),
    ...names.map((name) => h("option", { value: name }, name)),
  );
  if (chosenVhost() && names.includes(chosenVhost())) select.value = chosenVhost();
}

for (const [id, everywhere] of /** @type {[string, boolean][]} */ ([["signoutLink", false], ["signout-everywhere", true]])) {
  byId(id).addEventListener("click", (event) => {
    event.preventDefault();
    void signOut(everywhere);
  });
}
function startSearch() {
  const open = () => void import("./search.js").then((search) => search.open());
  byId("search-button").addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault(); // of the browser's own
    open();
  });
}

startMenu();
startSkipping();
startSearch();
startThemes();
startControls();

/** Done when it is known what to offer. */
export const known = whoAmI(() => insist("whoami")).then(
  (who) => show("username", who.name),
  () => undefined,
);
void startVhosts().catch(() => undefined);
