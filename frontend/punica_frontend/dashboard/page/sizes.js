/** Each GPU's capacity. GPUs that have left are remembered: their past is drawn, too. */

import { Newest } from "./newest.js";

export class Sizes {
  /** @type {Newest<{ batch: number, pages: number }>} */
  #sizes = new Newest();
  /** Stands for a GPU that left before the page was opened. */
  #largestBatch = 1;

  /** @param {any} cluster */
  take(cluster) {
    for (const { gpu } of cluster.gpus) {
      this.#sizes.set(gpu.uuid, { batch: gpu.max_batch_size, pages: gpu.num_kv_pages });
      this.#largestBatch = Math.max(this.#largestBatch, gpu.max_batch_size);
    }
  }

  /** Requests of a step. @param {string} uuid */
  batch(uuid) {
    return this.#sizes.get(uuid)?.batch ?? this.#largestBatch;
  }

  /** Pages of the KvCache; 0 if unknown. @param {string} uuid */
  pages(uuid) {
    return this.#sizes.get(uuid)?.pages ?? 0;
  }
}
