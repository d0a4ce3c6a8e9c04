/** A card for each GPU: how full it is, and which adapters are in its memory. */

import { keepChildren, make, setText } from "./dom.js";
import { ago, shortName } from "./format.js";

/** Adapters that a card shows before one asks for all. */
const NUM_SHOWN = 8;

export class Gpus {
  /** @type {Map<string, Card>} */
  #cards = new Map();

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** @param {any} cluster */
  show(cluster) {
    const gpus = new Map(cluster.gpus.map((/** @type {any} */ gpu) => [gpu.gpu.uuid, gpu]));
    keepChildren(this.root, this.#cards, [...gpus.keys()], (uuid) => new Card(uuid));
    for (const [uuid, card] of this.#cards) card.show(gpus.get(uuid), cluster);
  }
}

class Card {
  /** @type {Map<string, { root: HTMLElement, rank: HTMLElement, used: HTMLElement }>} */
  #adapters = new Map();
  #showsAll = false;

  /** @param {string} uuid */
  constructor(uuid) {
    this.runner = make("span", "muted");
    this.draining = make("span", "badge");
    this.batch = new Bar("batch");
    this.pages = new Bar("KvCache");
    this.adapters = make("ul", "adapters");
    this.more = make("button", "link");
    this.more.addEventListener("click", () => (this.#showsAll = !this.#showsAll));
    const name = make("h3", "", shortName(uuid));
    name.title = uuid;
    const head = make("div", "gpu-head", name, this.draining, this.runner);
    this.root = make("article", "card gpu", head, this.batch.root, this.pages.root, this.adapters, this.more);
    this.root.dataset.gpu = uuid;
  }

  /** @param {any} gpu @param {any} cluster */
  show(gpu, cluster) {
    const { max_batch_size: maxBatch, num_kv_pages: pages, device } = gpu.gpu;
    setText(this.runner, `${device} · ${gpu.runner_id}`);
    setText(this.draining, gpu.is_draining ? "draining" : "");
    this.batch.show(gpu.batch_size, maxBatch, gpu.working_set > gpu.batch_size ? `${gpu.working_set} placed` : "");
    this.pages.show(pages - gpu.free_kv_pages, pages, "");
    this.#showAdapters(gpu, cluster);
  }

  /** Those used last come first. @param {any} gpu @param {any} cluster */
  #showAdapters(gpu, cluster) {
    const used = new Map(gpu.resident_adapters.map((/** @type {string} */ digest, /** @type {number} */ index) => [
      digest, gpu.adapters_used_ns[index],
    ]));
    const byUse = [...used.keys()].sort((one, other) => used.get(other) - used.get(one));
    const shown = this.#showsAll ? byUse : byUse.slice(0, NUM_SHOWN);
    keepChildren(this.adapters, this.#adapters, shown, (digest) => adapterEntry(digest, cluster.adapters[digest]));
    for (const [digest, entry] of this.#adapters) {
      const usedNs = used.get(digest);
      const isUsed = usedNs === cluster.now_ns;
      entry.root.classList.toggle("in-use", isUsed);
      setText(entry.used, isUsed ? "in use" : usedNs ? ago((cluster.now_ns - usedNs) / 1e9) : "unused");
    }
    const numHidden = byUse.length - NUM_SHOWN;
    setText(this.more, numHidden > 0 ? (this.#showsAll ? "fewer" : `${numHidden} more`) : "");
  }
}

/** @param {string} digest @param {{ name: string | null, rank: number | null }} adapter */
function adapterEntry(digest, adapter) {
  const [rank, used] = [make("span", "rank", adapter.rank === null ? "" : `r${adapter.rank}`), make("span", "used")];
  const root = make("li", "", make("span", "adapter", adapter.name ?? digest.slice(0, 12)), rank, used);
  root.title = digest;
  return { root, rank, used };
}

class Bar {
  /** @param {string} label */
  constructor(label) {
    this.meter = /** @type {HTMLProgressElement} */ (make("progress"));
    this.meter.setAttribute("aria-label", label);
    this.value = make("span", "bar-value");
    this.root = make("div", "meter", make("span", "muted", label), this.meter, this.value);
  }

  /** @param {number} value @param {number} max @param {string} note */
  show(value, max, note) {
    this.meter.max = max;
    this.meter.value = value;
    setText(this.value, `${value} / ${max}${note && ` · ${note}`}`);
  }
}
