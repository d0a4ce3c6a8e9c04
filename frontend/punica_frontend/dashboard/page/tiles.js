/** The figures at the top of the page. */

import { make, setText } from "./dom.js";
import { duration, keptShare, number, percent } from "./format.js";

/** @param {any} cluster @param {import("./timeline.js").Row} row @returns {Record<string, [string, string]>} */
function figures(cluster, row) {
  const sum = (/** @type {(gpu: any) => number} */ of) => cluster.gpus.reduce((/** @type {number} */ all, /** @type {any} */ gpu) => all + of(gpu), 0);
  const pages = sum((gpu) => gpu.gpu.num_kv_pages);
  const free = sum((gpu) => gpu.free_kv_pages);
  const busy = sum((gpu) => (gpu.batch_size_max ? 1 : 0));
  const { first_token_s: first, inter_token_s: inter } = cluster.recent;
  return {
    GPUs: [String(cluster.gpus.length), `${busy} busy`],
    Running: [number(sum((gpu) => gpu.working_set)), `of ${number(sum((gpu) => gpu.gpu.max_batch_size))}`],
    Waiting: [number(cluster.queue_length), "requests"],
    "Requests / s": [number(row.requestsPerS), `${number(cluster.counters.arrived)} in all`],
    "Tokens / s": [number(row.tokensPerS), `${number(cluster.counters.tokens)} in all`],
    KvCache: [percent(pages ? 1 - free / pages : null), free === 1 ? "1 page free" : `${number(free)} pages free`],
    "First token, p50": [duration(first?.p50), `p99 ${duration(first?.p99)}`],
    "Next token, p50": [duration(inter?.p50), `p99 ${duration(inter?.p99)}`],
  };
}

/** Tiles of promised latencies, once any has been judged. @param {any} cluster @returns {Record<string, [string, string]>} */
function promises({ counters, recent }) {
  /** @type {Record<string, [string, string]>} */
  const tiles = {};
  for (const [name, promise] of [["First token kept", "first_token"], ["Time per token kept", "time_per_token"]]) {
    const [kept, broken] = [counters[`${promise}_kept`] ?? 0, counters[`${promise}_broken`] ?? 0];
    if (!kept && !broken) continue;
    const [keptNow, brokenNow] = [recent.promises[`${promise}_kept`], recent.promises[`${promise}_broken`]];
    const share = keptNow + brokenNow ? keptNow / (keptNow + brokenNow) : null;
    tiles[name] = [keptShare(share), `${number(kept)} kept, ${number(broken)} broken`];
  }
  return tiles;
}

/** Tiles of shared pages, once a GPU shares any. @param {any} cluster @returns {Record<string, [string, string]>} */
function prefixCaching({ gpus }) {
  if (!gpus.some((/** @type {any} */ gpu) => gpu.gpu.prefix_caching)) return {};
  const sum = (/** @type {string} */ name) => gpus.reduce((/** @type {number} */ all, /** @type {any} */ gpu) => all + gpu[name], 0);
  const [hits, queries] = [sum("prefix_cache_hits"), sum("prefix_cache_queries")];
  return {
    "Prefix cache hits": [percent(queries ? hits / queries : null), `${number(hits)} prefill tokens saved`],
    "Cached pages": [number(sum("num_known_kv_pages")), "found by later prompts"],
  };
}

export class Tiles {
  /** @type {Map<string, { value: HTMLElement, note: HTMLElement }>} */
  #tiles = new Map();

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
  }

  /** @param {any} cluster @param {import("./timeline.js").Row} row */
  show(cluster, row) {
    for (const [name, [value, note]] of Object.entries({ ...figures(cluster, row), ...promises(cluster), ...prefixCaching(cluster) })) {
      const tile = this.#tiles.get(name) ?? this.#add(name);
      setText(tile.value, value);
      setText(tile.note, note);
    }
  }

  /** @param {string} name */
  #add(name) {
    const tile = { value: make("dd", "tile-value"), note: make("dd", "muted") };
    this.root.append(make("div", "tile", make("dt", "", name), tile.value, tile.note));
    this.#tiles.set(name, tile);
    return tile;
  }
}
