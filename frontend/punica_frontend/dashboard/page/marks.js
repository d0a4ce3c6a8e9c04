/**
 * Marks on the time axis: GPUs that came and went, requests that were moved, the scheduler's starts.
 *
 * @typedef {object} Mark
 * @property {number} number
 * @property {number} at Seconds since 1970.
 * @property {string} kind
 * @property {string | null} gpu
 * @property {number} count
 */

import { make } from "./dom.js";
import { clock, shortName } from "./format.js";
import { color } from "./theme.js";

const MAX_MARKS = 256;
const MAX_LISTED = 60;

/** @param {string} what @returns {(count: number) => string} */
const gpus = (what) => (count) => (count > 1 ? `${count} GPUs ${what}` : `GPU ${what}`);

/** @param {string} what @returns {(count: number) => string} */
const requests = (what) => (count) => (count > 1 ? `${count} requests ${what}` : `request ${what}`);

/** @type {Record<string, { text: (count: number) => string, color: string }>} */
const KINDS = {
  scheduler_started: { text: () => "scheduler started", color: "warn" },
  gpu_joined: { text: gpus("joined"), color: "good" },
  gpu_left: { text: gpus("left"), color: "warn" },
  gpu_lost: { text: gpus("lost"), color: "bad" },
  gpu_drained: { text: gpus("draining"), color: "warn" },
  gpu_taken_back: { text: gpus("taken back"), color: "good" },
  evicted: { text: requests("evicted"), color: "warn" },
  migrated: { text: requests("moved"), color: "series-1" },
  consolidated: { text: () => "GPU emptied", color: "series-2" },
};

/** The newest, also those of schedulers that were before this one. */
export class Marks {
  /** Oldest first. @type {Mark[]} */
  all = [];
  /** @type {number | null} */
  #incarnation = null;
  /** Of this incarnation, by number. @type {Map<number, Mark>} */
  #numbered = new Map();

  /** @param {any} cluster */
  take(cluster) {
    if (this.#incarnation !== cluster.incarnation) {
      this.#incarnation = cluster.incarnation;
      this.#numbered.clear();
    }
    for (const { number, at_ns, kind, gpu_uuid, count } of cluster.marks) {
      const known = this.#numbered.get(number);
      if (known) {
        Object.assign(known, { gpu: gpu_uuid, count });
        continue;
      }
      this.#numbered.set(number, mark(number, at_ns, kind, gpu_uuid, count));
      this.all.push(/** @type {Mark} */ (this.#numbered.get(number)));
    }
    for (const { number } of this.all.splice(0, this.all.length - MAX_MARKS)) this.#numbered.delete(number);
  }
}

/** @returns {Mark} @param {number} number @param {number} atNs @param {string} kind @param {string | null} gpu @param {number} count */
function mark(number, atNs, kind, gpu, count) {
  return { number, at: atNs / 1e9, kind, gpu, count };
}

/** @param {Mark} mark */
export function textOf({ kind, count, gpu }) {
  return (KINDS[kind]?.text(count) ?? kind) + (gpu ? ` · ${shortName(gpu)}` : "");
}

/** A uPlot hook. @param {any} plot @param {Mark[]} marks */
export function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const [from, to] = [plot.scales.x.min, plot.scales.x.max];
  const colors = Object.fromEntries(Object.entries(KINDS).map(([kind, { color: name }]) => [kind, color(name)]));
  ctx.save();
  for (const { at, kind } of marks) {
    if (at < from || at > to) continue;
    ctx.fillStyle = colors[kind] ?? "gray";
    ctx.fillRect(Math.round(plot.valToPos(at, "x", true)), bbox.top, devicePixelRatio, bbox.height);
  }
  ctx.restore();
}

/** What is marked near a time. @param {Mark[]} marks @param {number} at @param {number} toleranceS */
export function textNear(marks, at, toleranceS) {
  const near = marks.filter((mark) => Math.abs(mark.at - at) <= toleranceS);
  return near.map((mark) => `${clock(mark.at)} ${textOf(mark)}`).join("   ");
}

/** The newest first. @param {HTMLElement} list @param {Mark[]} marks */
export function listMarks(list, marks) {
  if (!marks.length) return;
  const newest = marks.slice(-MAX_LISTED).reverse();
  list.replaceChildren(
    ...newest.map((mark) => {
      const time = make("time", "", clock(mark.at));
      const dot = make("i", "dot");
      dot.style.background = color(KINDS[mark.kind]?.color ?? "muted");
      return make("li", "", time, dot, textOf(mark));
    }),
  );
}
