/** Each GPU's colour and its batch size, at the cursor or now. */

import { keepChildren, make, setText } from "./dom.js";
import { shortName } from "./format.js";
import { gpuColor } from "./theme.js";

export class Legend {
  /** @type {Map<string, { root: HTMLElement, swatch: HTMLElement, value: HTMLElement, color: string }>} */
  #entries = new Map();

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** @param {string[]} uuids @param {import("./timeline.js").Row} row */
  show(uuids, row) {
    keepChildren(this.root, this.#entries, uuids, (uuid) => {
      const [swatch, value] = [make("i", "swatch"), make("b")];
      const root = make("li", "", swatch, shortName(uuid), " ", value);
      root.dataset.gpu = root.title = uuid;
      return { root, swatch, value, color: "" };
    });
    const batch = new Map(row.uuids.map((uuid, index) => [uuid, row.batch[index]]));
    uuids.forEach((uuid, index) => {
      const entry = this.#entries.get(uuid);
      if (!entry) return;
      const color = gpuColor(index, uuids.length);
      if (entry.color !== color) entry.swatch.style.background = entry.color = color;
      setText(entry.value, String(batch.get(uuid) ?? "–"));
    });
  }
}
