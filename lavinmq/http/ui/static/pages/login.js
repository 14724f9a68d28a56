// Logging in: with a password, or at the issuer of tokens.

import { byId } from "../lib/dom.js";

const error = byId("login-error");
const form = /** @type {HTMLFormElement} */ (byId("login"));
const username = /** @type {HTMLInputElement} */ (byId("username"));
const password = /** @type {HTMLInputElement} */ (byId("password"));

async function logIn() {
  error.textContent = "";
  // Another user may have been here: what he might do is not offered to this one.
  localStorage.removeItem("lmq.whoami");
  let answer;
  try {
    answer = await fetch("session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ username: username.value, password: password.value }),
    });
  } catch {
    error.textContent = "The broker does not answer";
    return;
  }
  if (answer.ok) {
    password.value = "";
    location.assign(".");
    return;
  }
  const said = await answer.json().catch(() => ({}));
  error.textContent = said.reason || "Authentication failure";
}

async function offerSso() {
  try {
    const answer = await fetch("session");
    byId("sso").hidden = !(answer.ok && (await answer.json()).sso);
  } catch {
    // Without an answer there is nothing to offer.
  }
}

byId("sso-btn").addEventListener("click", (event) => {
  event.preventDefault();
  void (async () => {
    const answer = await fetch("oauth/authorize");
    const said = await answer.json().catch(() => ({}));
    if (answer.ok && said.authorize_url) location.assign(said.authorize_url);
    else error.textContent = said.reason || "Single sign-on is not available";
  })();
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void logIn();
});

const why = new URLSearchParams(location.search).get("error");
const given = new URLSearchParams(location.hash.slice(1));
if (why || location.hash) history.replaceState(null, "", location.pathname);
if (why) error.textContent = why;
if (given.has("username") && given.has("password")) {
  username.value = given.get("username") ?? "";
  password.value = given.get("password") ?? "";
  void logIn();
}
void offerSso();
