/**
 * The cluster over time, a row a second: from the history that comes first and the frames that follow.
 *
 * @typedef {{ p50: number, p90: number, p99: number }} Percentiles
 * @typedef {object} Row
 * @property {number} at Seconds since 1970, whole: frames of the same second share a row, and the newest is right.
 * @property {number | null} requestsPerS
 * @property {number | null} tokensPerS
 * @property {number | null} queue
 * @property {Percentiles | null} firstToken
 * @property {Percentiles | null} interToken
 * @property {string[]} uuids Of the GPUs, in order; the same array as in the row before if they are the same.
 * @property {number[]} batch Their batch sizes, means over the steps of the second.
 * @property {number[]} most The largest batch of these steps.
 * @property {number[]} usedPages
 */

export const MAX_ROWS = 600;

/** Rows that are further apart have a gap between them. */
export const GAP_S = 3;

/** @param {string[]} one @param {string[]} other */
function areEqual(one, other) {
  return one.length === other.length && one.every((uuid, index) => uuid === other[index]);
}

/** Rates of counters, over the last second or from one row to the next. */
class Rates {
  /** @type {{ at: number, arrived: number, tokens: number }[]} */
  #counts = [];

  /** @param {number} at @param {number} arrived @param {number} tokens */
  after(at, arrived, tokens) {
    const newest = this.#counts[this.#counts.length - 1];
    if (newest && (arrived < newest.arrived || at <= newest.at || at > newest.at + GAP_S)) this.#counts = [];
    this.#counts.push({ at, arrived, tokens });
    while (this.#counts.length > 2 && this.#counts[1].at <= at - 0.95) this.#counts.shift();
    const oldest = this.#counts[0];
    if (oldest.at === at) return { requestsPerS: null, tokensPerS: null };
    const seconds = at - oldest.at;
    return { requestsPerS: (arrived - oldest.arrived) / seconds, tokensPerS: (tokens - oldest.tokens) / seconds };
  }
}

export class Timeline {
  /** @type {Row[]} */
  rows = [];
  /** All GPUs of the rows, by name. @type {string[]} */
  uuids = [];
  #rates = new Rates();

  /** @param {import("./names.js").Names} names */
  constructor(names) {
    this.names = names;
  }

  /** The past as the scheduler knows it; what it does not know is kept as it was seen. @param {any} history */
  addHistory(history) {
    if (history.at_ns.length === 0) return;
    const first = Math.round(history.at_ns[0] / 1e9);
    this.rows = this.rows.filter((row) => row.at < first);
    this.#rates = new Rates();
    const gpus = Object.entries(history.gpus);
    for (const [uuid, { name }] of gpus) this.names.learn(uuid, name);
    history.at_ns.forEach((/** @type {number} */ atNs, /** @type {number} */ index) => {
      const there = gpus.filter(([, columns]) => columns.batch_size_mean[index] !== null);
      this.#add(atNs / 1e9, history.arrived[index], history.tokens[index], {
        queue: history.queue_length[index],
        firstToken: history.first_token_s[index],
        interToken: history.inter_token_s[index],
        uuids: there.map(([uuid]) => uuid),
        batch: there.map(([, columns]) => columns.batch_size_mean[index]),
        most: there.map(([, columns]) => columns.batch_size_max[index]),
        usedPages: there.map(([, columns]) => columns.used_kv_pages[index]),
      });
    });
  }

  /** @param {any} cluster */
  addCluster(cluster) {
    for (const { gpu } of cluster.gpus) this.names.learn(gpu.uuid, gpu.name);
    this.#add(cluster.now_ns / 1e9, cluster.counters.arrived, cluster.counters.tokens, {
      queue: cluster.queue_length,
      firstToken: cluster.recent.first_token_s,
      interToken: cluster.recent.inter_token_s,
      uuids: cluster.gpus.map((/** @type {any} */ gpu) => gpu.gpu.uuid),
      batch: cluster.gpus.map((/** @type {any} */ gpu) => gpu.batch_size_mean),
      most: cluster.gpus.map((/** @type {any} */ gpu) => gpu.batch_size_max),
      usedPages: cluster.gpus.map((/** @type {any} */ gpu) => gpu.gpu.num_kv_pages - gpu.free_kv_pages),
    });
  }

  /** @param {number} at @param {number} arrived @param {number} tokens @param {any} rest */
  #add(at, arrived, tokens, rest) {
    // The figures are of the second before this time.
    const second = Math.round(at);
    const before = this.rows[this.rows.length - 1];
    if (before && second < before.at) return; // the scheduler's clock was set back: wait for it
    if (before && areEqual(before.uuids, rest.uuids)) rest.uuids = before.uuids;
    const rates = this.#rates.after(at, arrived, tokens);
    if (before && second === before.at) this.rows.pop();
    else if (before && second > before.at + GAP_S) this.rows.push(emptyRow(before.at + 1));
    this.rows.push({ at: second, ...rates, ...rest });
    if (this.rows.length > MAX_ROWS) this.rows.splice(0, this.rows.length - MAX_ROWS);
    if (!before || before.uuids !== rest.uuids) this.#findUuids();
  }

  #findUuids() {
    const uuids = new Set();
    let previous;
    for (const row of this.rows) {
      if (row.uuids !== previous) row.uuids.forEach((uuid) => uuids.add(uuid));
      previous = row.uuids;
    }
    this.uuids = [...uuids].sort((one, other) => this.names.compare(one, other));
  }
}

/** @param {number} at @returns {Row} */
function emptyRow(at) {
  const nothing = { requestsPerS: null, tokensPerS: null, queue: null, firstToken: null, interToken: null };
  return { at, ...nothing, uuids: [], batch: [], most: [], usedPages: [] };
}
