/**
 * The link to /v1/cluster/watch: dials again when it is cut, and asks for a login where there has to be one.
 *
 * @typedef {"connecting" | "live" | "no scheduler" | "disconnected" | "login"} LinkState
 */

const FIRST_RETRY_MS = 300;
const LAST_RETRY_MS = 5000;
/** A link of which nothing came for so long is given up. */
const SILENCE_MS = 8000;

export class Watch {
  #perS = 1;
  /** @type {WebSocket | null} */
  #socket = null;
  #retryMs = FIRST_RETRY_MS;
  #silence = 0;
  #retry = 0;

  /**
   * @param {(frame: any) => void} onFrame
   * @param {(state: LinkState) => void} onState
   */
  constructor(onFrame, onState) {
    this.onFrame = onFrame;
    this.onState = onState;
  }

  /** Begins, or begins anew: at another rate, or after a login. @param {number} [perS] */
  async start(perS = this.#perS) {
    this.#perS = perS;
    this.stop();
    this.onState("connecting");
    // A browser tells nothing of why it could not open a websocket; an answer says whether a key is wanted.
    const status = await fetch("/v1/cluster", { cache: "no-store" }).then((answer) => answer.status, () => 0);
    if (status === 401 || status === 403) return this.onState("login");
    if (status === 0) return this.#startAgain();
    this.#open();
  }

  stop() {
    clearTimeout(this.#retry);
    clearTimeout(this.#silence);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #open() {
    this.stop();
    const url = new URL(`/v1/cluster/watch?per_s=${this.#perS}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.#socket = new WebSocket(url));
    const ifCurrent = (/** @type {() => void} */ act) => () => void (this.#socket === socket && act());
    socket.addEventListener("open", ifCurrent(() => this.#listen()));
    socket.addEventListener("message", (message) => this.#socket === socket && this.#take(JSON.parse(message.data)));
    socket.addEventListener("close", ifCurrent(() => this.#startAgain()));
    this.#listen();
  }

  /** @param {any} frame */
  #take(frame) {
    this.#retryMs = FIRST_RETRY_MS;
    this.#listen();
    this.onState(frame.type === "unavailable" ? "no scheduler" : "live");
    this.onFrame(frame);
  }

  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#startAgain(), SILENCE_MS);
  }

  #startAgain() {
    this.stop();
    this.onState("disconnected");
    this.#retry = setTimeout(() => this.start(), this.#retryMs * (0.75 + Math.random() / 2));
    this.#retryMs = Math.min(2 * this.#retryMs, LAST_RETRY_MS);
  }
}
