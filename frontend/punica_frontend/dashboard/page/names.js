/** The names of GPUs, by UUID: those of now, and those that were seen before. */

import { Newest } from "./newest.js";

const collator = new Intl.Collator("en", { numeric: true });

export class Names {
  /** @type {Newest<string>} */
  #names = new Newest();

  /** @param {string} uuid @param {string} name */
  learn(uuid, name) {
    this.#names.set(uuid, name);
  }

  /** @param {string} uuid */
  of(uuid) {
    return this.#names.get(uuid) ?? (uuid.length > 14 ? `${uuid.slice(0, 4)}…${uuid.slice(-6)}` : uuid);
  }

  /** By host, and by number there. @param {string} one @param {string} other */
  compare(one, other) {
    return collator.compare(this.of(one), this.of(other)) || (one < other ? -1 : 1);
  }
}
