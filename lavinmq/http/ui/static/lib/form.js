// Forms: what is typed goes to the API, what the API says is shown in the form.

import { ApiError } from "./api.js";
import { h, toast } from "./dom.js";

/** What is said to the user about a form that makes no sense. */
export class InputError extends Error {}

/**
 * The fields of a form by name: text, or whether a box is ticked.
 * @param {HTMLFormElement} form
 * @returns {Record<string, any>}
 */
export function values(form) {
  /** @type {Record<string, any>} */
  const found = {};
  for (const field of form.elements) {
    if (field instanceof HTMLInputElement && field.name) {
      found[field.name] = field.type === "checkbox" ? field.checked : field.value;
    } else if ((field instanceof HTMLSelectElement || field instanceof HTMLTextAreaElement) && field.name) {
      found[field.name] = field.value;
    }
  }
  return found;
}

/**
 * A field of JSON: an object, `{}` for an empty one. Raises InputError.
 * @param {string} text
 * @returns {Record<string, any>}
 */
export function jsonObject(text) {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new InputError(`Input must be JSON: ${/** @type {Error} */ (error).message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new InputError('Input must be a JSON object, such as {"x-max-length": 10}');
  }
  return value;
}

/**
 * Have a form work.
 * @param {string} id
 * @param {(data: Record<string, any>, form: HTMLFormElement) => Promise<string | void>} submit
 *   returns what is said when it is done
 * @param {{confirm?: (data: Record<string, any>) => string, isKept?: boolean}} [more]
 *   `confirm`: a question that is asked first; `isKept`: the fields stay as they are
 */
export function onSubmit(id, submit, { confirm: question, isKept = false } = {}) {
  const form = document.getElementById(id);
  if (!(form instanceof HTMLFormElement)) return;
  const error = h("p", { class: "form-error", role: "alert", hidden: true });
  form.append(error);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const data = values(form);
    error.hidden = true;
    if (question) {
      const text = question(data);
      if (text && !confirm(text)) return;
    }
    void attempt(async () => {
      const said = await submit(data, form);
      if (!isKept) form.reset();
      if (said) toast(said);
    }, error);
  });
}

/**
 * Do something, and show what goes wrong.
 * @param {() => Promise<void>} work
 * @param {HTMLElement} place
 */
async function attempt(work, place) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof InputError)) throw error;
    place.textContent = error.message;
    place.hidden = false;
  }
}

/**
 * A button of a row or a page that asks the API for something.
 * @param {string} label
 * @param {() => Promise<unknown>} work
 * @param {{confirm?: string, className?: string, title?: string, role?: string}} [more]
 */
export function actionButton(label, work, { confirm: question, className = "row-button", role = "require-management" } = {}) {
  return h("button", {
    type: "button", class: `${className} ${role}`,
    click: () => void act(work, question),
  }, label);
}

/**
 * @param {() => Promise<unknown>} work
 * @param {string} [question]
 */
export async function act(work, question) {
  if (question && !confirm(question)) return;
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof InputError)) throw error;
    toast(error.message);
  }
}

/**
 * Links that write an argument into a field of JSON.
 * @param {string} id of the element that holds them
 * @param {string} fieldId
 * @param {[string, unknown][]} defaults
 */
export function jsonHelpers(id, fieldId, defaults) {
  helpers(id, defaults.map(([name]) => name), (name) => {
    const field = /** @type {HTMLTextAreaElement} */ (document.getElementById(fieldId));
    try {
      const value = jsonObject(field.value);
      if (!(name in value)) value[name] = defaults.find(([each]) => each === name)?.[1];
      field.value = JSON.stringify(value, null, 2);
      field.focus();
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      toast(error.message);
    }
  });
}

/**
 * Links that write a word into a field of words between commas.
 * @param {string} id
 * @param {string} fieldId
 * @param {string[]} words
 */
export function wordHelpers(id, fieldId, words) {
  helpers(id, words, (word) => {
    const field = /** @type {HTMLInputElement} */ (document.getElementById(fieldId));
    const there = field.value.split(",").map((each) => each.trim()).filter(Boolean);
    if (!there.includes(word)) there.push(word);
    field.value = there.join(", ");
    field.focus();
  });
}

/**
 * @param {string} id
 * @param {string[]} words
 * @param {(word: string) => void} insert
 */
function helpers(id, words, insert) {
  const box = document.getElementById(id);
  if (!box) return;
  box.classList.add("helpers");
  box.replaceChildren(...words.map((word) =>
    h("a", {
      href: "#", "data-tag": word,
      click: (/** @type {Event} */ event) => {
        event.preventDefault();
        insert(word);
      },
    }, word),
  ));
}
