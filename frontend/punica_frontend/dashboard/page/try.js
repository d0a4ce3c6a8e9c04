/** The form that sends a prompt through /v1/generate/stream and shows the answer as it comes. */

import { byId, make, setText } from "./dom.js";
import { duration } from "./format.js";

/** @typedef {{ requestId: string, sentMs: number, firstMs: number | null, numTokens: number }} Running */

export class Trial {
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {Running | null} */
  #running = null;
  #count = 0;

  constructor() {
    this.form = byId("try", HTMLFormElement);
    this.answer = byId("answer", HTMLOutputElement);
    this.figures = byId("answer-figures", HTMLElement);
    this.stopButton = byId("stop", HTMLButtonElement);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#begin(new FormData(this.form));
    });
    this.stopButton.addEventListener("click", () => this.#stop());
  }

  /** Fills the list of adapters with those that the caller may use. */
  async offerAdapters() {
    const answer = await fetch("/v1/adapters?limit=1000").catch(() => null);
    if (!answer?.ok) return;
    const { data: adapters } = await answer.json();
    const count = new Map();
    for (const { name } of adapters) count.set(name, (count.get(name) ?? 0) + 1);
    const options = adapters.map((/** @type {{ name: string, full_name: string, owner: string }} */ adapter) => {
      const option = /** @type {HTMLOptionElement} */ (make("option"));
      // Two owners may use one name.
      option.value = count.get(adapter.name) > 1 ? adapter.full_name : adapter.name;
      option.label = `${option.value} (${adapter.owner})`;
      return option;
    });
    byId("adapters", HTMLDataListElement).replaceChildren(...options);
  }

  /** @param {FormData} fields */
  async #begin(fields) {
    this.#stop();
    const requestId = `dashboard-${++this.#count}`;
    this.#running = { requestId, sentMs: performance.now(), firstMs: null, numTokens: 0 };
    this.answer.className = "answer";
    this.answer.value = "";
    setText(this.figures, "waiting …");
    this.stopButton.hidden = false;
    try {
      const socket = await this.#open();
      if (this.#running?.requestId !== requestId) {
        // Stopped while it was opened. The newest link is kept for what comes.
        if (socket !== this.#socket) socket.close();
        return;
      }
      const request = {
        op: "generate",
        request_id: requestId,
        prompt: fields.get("prompt"),
        lora_id: String(fields.get("adapter")).trim() || null,
        max_tokens: Number(fields.get("maxTokens")),
      };
      socket.send(JSON.stringify(request));
    } catch {
      if (this.#running?.requestId === requestId) this.#end("The frontend can't be reached.");
    }
  }

  /** @returns {Promise<WebSocket>} */
  #open() {
    if (this.#socket?.readyState === WebSocket.OPEN) return Promise.resolve(this.#socket);
    const url = new URL("/v1/generate/stream", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.#socket = new WebSocket(url));
    const isCurrent = () => socket === this.#socket; // another run may have opened its own
    socket.addEventListener("message", (message) => isCurrent() && this.#take(JSON.parse(message.data)));
    socket.addEventListener("close", () => {
      if (isCurrent() && this.#running) this.#end("The link to the frontend was lost.");
    });
    return new Promise((resolve, reject) => {
      socket.addEventListener("open", () => resolve(socket));
      socket.addEventListener("error", reject);
    });
  }

  /** @param {any} frame */
  #take(frame) {
    const running = this.#running;
    if (!running || frame.request_id !== running.requestId) return;
    if (frame.error) return this.#end(frame.error.message);
    if (frame.token_ids.length) running.firstMs ??= performance.now();
    running.numTokens += frame.token_ids.length;
    this.answer.value += frame.text;
    setText(this.figures, figuresOf(running));
    if (frame.finish_reason) this.#end();
  }

  #stop() {
    if (!this.#running) return;
    if (this.#socket?.readyState === WebSocket.OPEN) {
      this.#socket.send(JSON.stringify({ op: "cancel", request_id: this.#running.requestId }));
    }
    this.#end();
  }

  /** @param {string} [error] */
  #end(error) {
    this.#running = null;
    this.stopButton.hidden = true;
    if (!error) return;
    this.answer.className = "answer error";
    this.answer.value = error;
    setText(this.figures, "");
  }
}

/** @param {Running} running */
function figuresOf({ sentMs, firstMs, numTokens }) {
  if (firstMs === null) return "waiting …";
  const first = `first token after ${duration((firstMs - sentMs) / 1e3)}`;
  const seconds = (performance.now() - firstMs) / 1e3;
  const rate = numTokens > 1 && seconds > 0 ? `, ${((numTokens - 1) / seconds).toFixed(0)} tokens / s` : "";
  return `${numTokens} token${numTokens === 1 ? "" : "s"}, ${first}${rate}`;
}
