// Runs before the first paint: theme, menu and roles are those of the page before. No module, so
// that the browser waits for it.
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
})();
