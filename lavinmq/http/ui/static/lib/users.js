// What the pages of users have in common.

import { byId } from "./dom.js";
import { wordHelpers } from "./form.js";

export const TAGS = ["administrator", "monitoring", "management", "policymaker", "impersonator"];
const LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789";
const LENGTH = 16;

/** @param {{tags?: string | string[]}} user */
export const tagsOf = (user) => (Array.isArray(user.tags) ? user.tags.join(", ") : (user.tags ?? "").split(",").join(", "));

/** A password that nobody has thought of; each letter is as likely as any other. */
function generated() {
  let made = "";
  while (made.length < LENGTH) {
    for (const octet of crypto.getRandomValues(new Uint8Array(LENGTH))) {
      if (octet < 256 - (256 % LETTERS.length) && made.length < LENGTH) made += LETTERS[octet % LETTERS.length];
    }
  }
  return made;
}

/** Have the buttons beside a password work. */
export function startPassword() {
  const field = /** @type {HTMLInputElement} */ (byId("new-password"));
  const shown = byId("showPassword");
  const show = (/** @type {boolean} */ isShown) => {
    field.type = isShown ? "text" : "password";
    shown.setAttribute("aria-pressed", String(isShown));
    shown.textContent = isShown ? "Hide it" : "Show it";
  };
  byId("generatePassword").addEventListener("click", () => {
    field.value = generated();
    show(true);
  });
  shown.addEventListener("click", () => show(field.type === "password"));
  field.form?.addEventListener("reset", () => show(false));
  wordHelpers("dataTags", "tags", TAGS);
}
