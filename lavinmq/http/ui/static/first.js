// Runs before the first paint: theme, menu and roles are those of the page before; and what is done
// when the page's scripts do not come. No module, so that the browser waits for it.
"use strict";
(() => {
  const root = document.documentElement;
  /** @type {string[]} */
  let kept = [];
  try {
    const text = localStorage.getItem("lmq.stateclasses") ?? "";
    kept = text.startsWith("[") ? JSON.parse(text) : text.split(/\s+/);
  } catch {
    // Storage may be forbidden, or hold what somebody else wrote: the usual look, then.
  }
  for (const name of kept) {
    if (/^(user-is-[\w-]+|menu-collapsed|theme-light|theme-dark|system)$/.test(name)) {
      root.classList.add(name);
    }
  }
  const isChosen = /\btheme-(light|dark)\b/.test(root.className);
  if (!isChosen) root.classList.add("system");
  if (root.classList.contains("system")) {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    root.classList.toggle("theme-dark", isDark);
    root.classList.toggle("theme-light", !isDark);
  }

  let isWhole = true;
  /** @returns {boolean} whether the page before was whole, so that it may help to load this anew */
  const mayHelp = () => {
    try {
      const before = sessionStorage.getItem("lmq.anew");
      sessionStorage.setItem("lmq.anew", "1");
      return before === null;
    } catch {
      return false;
    }
  };
  addEventListener("load", () => {
    try {
      if (isWhole) sessionStorage.removeItem("lmq.anew");
    } catch {
      // Nothing was kept, then.
    }
  });
  // Without its scripts a page does nothing, and would not say why: it is loaded anew, once.
  addEventListener("error", ({ target }) => {
    if (!(target instanceof HTMLScriptElement)) return;
    isWhole = false;
    if (mayHelp()) {
      location.reload();
      return;
    }
    const said = document.createElement("p");
    said.className = "banner error";
    said.role = "alert";
    said.textContent = "The broker did not send all of this page. Load it anew.";
    document.querySelector("main")?.prepend(said);
  }, true);
})();
