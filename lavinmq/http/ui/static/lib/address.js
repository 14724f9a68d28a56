// What is in the address behind `#`: names of what is shown, and the state of its table.

export const parameters = () => new URLSearchParams(location.hash.slice(1));

/** @param {string} name */
export const parameter = (name) => parameters().get(name) ?? "";

/**
 * Change parameters; the others stay. null takes one away.
 * @param {Record<string, string | number | null>} changes
 */
export function change(changes) {
  const now = parameters();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) now.delete(name);
    else now.set(name, String(value));
  }
  location.hash = now.toString();
}

/**
 * The address of a page about something.
 * @param {string} page
 * @param {Record<string, string>} names
 */
export const to = (page, names) => `${page}#${new URLSearchParams(names)}`;
