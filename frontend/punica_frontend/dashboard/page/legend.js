/** Each GPU's colour in the stacked chart and its batch size, at the cursor or now. */

import { keepChildren, make, setText } from "./dom.js";
import { number } from "./format.js";
import { gpuColor } from "./theme.js";

export class Legend {
  /** @type {Map<string, { root: HTMLElement, swatch: HTMLElement, value: HTMLElement, color: string }>} */
  #entries = new Map();

  /** @param {HTMLElement} root @param {import("./names.js").Names} names */
  constructor(root, names) {
    this.root = root;
    this.names = names;
  }

  /** An entry for each. @param {string[]} uuids */
  keep(uuids) {
    keepChildren(this.root, this.#entries, uuids, (uuid) => {
      const [swatch, value] = [make("i", "swatch"), make("b")];
      const root = make("li", "", swatch, this.names.of(uuid), " ", value);
      root.title = uuid;
      return { root, swatch, value, color: "" };
    });
  }

  /** @param {string[]} uuids @param {import("./timeline.js").Row} row */
  show(uuids, row) {
    const batch = new Map(row.uuids.map((uuid, index) => [uuid, row.batch[index]]));
    uuids.forEach((uuid, index) => {
      const entry = this.#entries.get(uuid);
      if (!entry) return;
      const color = gpuColor(index, uuids.length);
      if (entry.color !== color) entry.swatch.style.background = entry.color = color;
      setText(entry.value, number(batch.get(uuid)));
    });
  }
}
