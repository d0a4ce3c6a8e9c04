/** A browser's session, where the cluster wants API keys. */

import { byId, setText } from "./dom.js";

/** Whether this browser has logged in: its cookie can't be read, and only who has one needs a way out. */
const FLAG = "punica-logged-in";

export class Login {
  /** @param {() => void} onLogin */
  constructor(onLogin) {
    this.dialog = byId("login", HTMLDialogElement);
    this.form = byId("login-form", HTMLFormElement);
    this.error = byId("login-error", HTMLElement);
    this.out = byId("logout", HTMLButtonElement);
    this.onLogin = onLogin;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#logIn(String(new FormData(this.form).get("key")).trim());
    });
    this.out.addEventListener("click", () => void this.#logOut());
    this.dialog.addEventListener("cancel", (event) => event.preventDefault());
    this.#note(localStorage.getItem(FLAG) !== null);
  }

  ask() {
    this.#note(false);
    if (!this.dialog.open) this.dialog.showModal();
  }

  /** @param {string} key */
  async #logIn(key) {
    const answer = await post("/v1/login", { key });
    if (!answer?.ok) {
      const body = await answer?.json().catch(() => null);
      return setText(this.error, body?.error.message ?? "The frontend can't be reached.");
    }
    setText(this.error, "");
    this.form.reset();
    this.dialog.close();
    this.#note(true);
    this.onLogin();
  }

  async #logOut() {
    await post("/v1/logout", {});
    this.#note(false);
    this.onLogin();
  }

  /** @param {boolean} isIn */
  #note(isIn) {
    this.out.hidden = !isIn;
    if (isIn) localStorage.setItem(FLAG, "yes");
    else localStorage.removeItem(FLAG);
  }
}

/** @param {string} path @param {object} body */
function post(path, body) {
  const headers = { "content-type": "application/json" };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
}
