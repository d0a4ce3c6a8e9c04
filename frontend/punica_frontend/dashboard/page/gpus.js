/** A card for each GPU: how full it is, and the adapters that it used last. A click opens all of it. */

import { keepChildren, make, setText } from "./dom.js";
import { AdapterList, batchText, Meter, stepTimeText } from "./meters.js";

/** Adapters of a card. */
const NUM_SHOWN = 5;

export class Gpus {
  /** @type {Map<string, Card>} */
  #cards = new Map();

  /** @param {HTMLElement} root @param {import("./names.js").Names} names @param {(uuid: string) => void} onOpen */
  constructor(root, names, onOpen) {
    this.root = root;
    this.names = names;
    this.onOpen = onOpen;
  }

  /** @param {any} cluster */
  show(cluster) {
    const gpus = new Map(cluster.gpus.map((/** @type {any} */ gpu) => [gpu.gpu.uuid, gpu]));
    const uuids = [...gpus.keys()].sort((one, other) => this.names.compare(one, other));
    keepChildren(this.root, this.#cards, uuids, (uuid) => new Card(uuid, this.onOpen));
    for (const [uuid, card] of this.#cards) card.show(gpus.get(uuid), this.names.of(uuid), cluster);
  }
}

class Card {
  /** @param {string} uuid @param {(uuid: string) => void} onOpen */
  constructor(uuid, onOpen) {
    this.device = make("span", "muted");
    this.draining = make("span", "badge");
    this.stepTime = make("span", "badge");
    this.batch = new Meter("Batch");
    this.pages = new Meter("KvCache");
    this.adapters = new AdapterList();
    this.more = make("span", "muted more");
    this.name = make("button", "link gpu-name");
    this.name.title = uuid;
    this.name.addEventListener("click", () => onOpen(uuid));
    const head = make("div", "gpu-head", make("h3", "", this.name), this.draining, this.stepTime, this.device);
    this.root = make("article", "card gpu", head, this.batch.root, this.pages.root, this.adapters.root, this.more);
    this.root.dataset.gpu = uuid;
  }

  /** @param {any} gpu @param {string} name @param {any} cluster */
  show(gpu, name, cluster) {
    const { max_batch_size: capacity, num_kv_pages: pages, device } = gpu.gpu;
    setText(this.name, name);
    setText(this.device, device);
    setText(this.draining, gpu.is_draining ? "draining" : "");
    setText(this.stepTime, stepTimeText(gpu));
    this.batch.show(gpu.batch_size_mean, capacity, batchText(gpu));
    this.pages.show(pages - gpu.free_kv_pages, pages, `${pages - gpu.free_kv_pages} / ${pages}`);
    const byUse = AdapterList.byUse(gpu);
    this.adapters.show(byUse.slice(0, NUM_SHOWN), cluster, cluster.now_ns);
    const numHidden = byUse.length - NUM_SHOWN;
    setText(this.more, numHidden > 0 ? `${numHidden} more` : "");
  }
}
