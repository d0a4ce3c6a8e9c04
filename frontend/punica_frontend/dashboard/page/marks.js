/**
 * Marks of cluster events: GPUs that came and went, requests that were moved, the scheduler's starts.
 *
 * @typedef {object} Mark
 * @property {number} number
 * @property {number} at Seconds since 1970.
 * @property {string} kind
 * @property {string[]} gpus UUIDs.
 * @property {number} count
 */

import { make } from "./dom.js";
import { clock } from "./format.js";
import { color } from "./theme.js";

const MAX_MARKS = 256;
const MAX_LISTED = 60;
/** More are counted. */
const MAX_NAMED = 3;

/** @param {string} what @returns {(count: number) => string} */
const gpus = (what) => (count) => (count > 1 ? `${count} GPUs ${what}` : `GPU ${what}`);

/** @param {string} what @returns {(count: number) => string} */
const requests = (what) => (count) => (count > 1 ? `${count} requests ${what}` : `request ${what}`);

/** @typedef {"cross" | "circle" | "square" | "diamond" | "up" | "down" | "line"} Shape */

/** A shape tells a kind as well as its colour does. @type {Record<string, { text: (count: number) => string, color: string, shape: Shape }>} */
const KINDS = {
  scheduler_started: { text: () => "scheduler started", color: "warn", shape: "line" },
  gpu_joined: { text: gpus("joined"), color: "good", shape: "circle" },
  gpu_left: { text: gpus("left"), color: "warn", shape: "cross" },
  gpu_lost: { text: gpus("lost"), color: "bad", shape: "cross" },
  gpu_drained: { text: gpus("draining"), color: "warn", shape: "square" },
  gpu_taken_back: { text: gpus("taken back"), color: "good", shape: "square" },
  evicted: { text: requests("preempted"), color: "warn", shape: "down" },
  migrated: { text: requests("moved"), color: "series-2", shape: "up" },
  consolidated: { text: () => "GPU emptied", color: "series-2", shape: "diamond" },
};

/** The newest, also those of schedulers that were before this one. */
export class Marks {
  /** Oldest first. @type {Mark[]} */
  all = [];
  /** @type {number | null} */
  #incarnation = null;
  /** The marks of this incarnation, by number. @type {Map<number, Mark>} */
  #numbered = new Map();

  /** @param {any} cluster */
  take(cluster) {
    if (this.#incarnation !== cluster.incarnation) {
      this.#incarnation = cluster.incarnation;
      this.#numbered.clear();
    }
    for (const { number, at_ns, kind, gpu_uuids, count } of cluster.marks) {
      const known = this.#numbered.get(number);
      if (known) {
        Object.assign(known, { gpus: gpu_uuids, count });
        continue;
      }
      /** @type {Mark} */
      const mark = { number, at: at_ns / 1e9, kind, gpus: gpu_uuids, count };
      this.#numbered.set(number, mark);
      this.all.push(mark);
    }
    for (const mark of this.all.splice(0, this.all.length - MAX_MARKS)) {
      // Another incarnation's may have the same number.
      if (this.#numbered.get(mark.number) === mark) this.#numbered.delete(mark.number);
    }
  }
}

/** @param {Mark} mark @param {import("./names.js").Names} names */
export function textOf({ kind, count, gpus: uuids }, names) {
  const first = uuids.slice(0, MAX_NAMED).sort((one, other) => names.compare(one, other));
  const named = first.map((uuid) => names.of(uuid));
  if (uuids.length > MAX_NAMED) named.push(`${uuids.length - MAX_NAMED} more`);
  return [KINDS[kind]?.text(count) ?? kind, named.join(", ")].filter(Boolean).join(" · ");
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

/** @type {Record<Shape, (path: Path2D, r: number) => void>} */
const SHAPES = {
  cross: (path, r) => corners(path, [[-1, -1], [1, 1]], r) || corners(path, [[-1, 1], [1, -1]], r),
  circle: (path, r) => path.arc(0, 0, r, 0, 2 * Math.PI),
  square: (path, r) => path.rect(-r, -r, 2 * r, 2 * r),
  diamond: (path, r) => corners(path, [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]], r) || path.closePath(),
  up: (path, r) => corners(path, [[0, -1], [1.1, 1], [-1.1, 1]], r) || path.closePath(),
  down: (path, r) => corners(path, [[0, 1], [1.1, -1], [-1.1, -1]], r) || path.closePath(),
  line: (path, r) => corners(path, [[0, -1], [0, 1]], r),
};

/** @param {Path2D} path @param {number[][]} points @param {number} r */
function corners(path, points, r) {
  points.forEach(([x, y], index) => (index ? path.lineTo(x * r, y * r) : path.moveTo(x * r, y * r)));
}

/**
 * Draws a mark on the row of its GPU, with a rim that sets it off from any cell.
 * @param {CanvasRenderingContext2D} context @param {string} kind @param {number} x @param {number} y @param {number} size
 */
export function drawGlyph(context, kind, x, y, size) {
  const { shape, color: name } = KINDS[kind] ?? { shape: "circle", color: "muted" };
  const path = new Path2D();
  SHAPES[shape](path, Math.max(2.5, size / 2 - 2));
  const isOpen = shape === "cross" || shape === "line";
  context.save();
  context.translate(x, y);
  context.lineJoin = "round";
  context.strokeStyle = color("paper");
  context.lineWidth = isOpen ? 5 : 3;
  context.stroke(path);
  context.strokeStyle = context.fillStyle = color(name);
  context.lineWidth = 2;
  if (isOpen) context.stroke(path);
  else context.fill(path);
  context.restore();
}

/** The same as a picture for lists. @param {string} kind */
export function glyph(kind) {
  const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", "glyph"));
  canvas.setAttribute("aria-hidden", "true");
  canvas.width = canvas.height = 14 * devicePixelRatio;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(devicePixelRatio, devicePixelRatio);
  drawGlyph(context, kind, 7, 7, 12);
  return canvas;
}

/** The marks near a time. @param {Mark[]} marks @param {number} at @param {number} toleranceS */
export function near(marks, at, toleranceS) {
  return marks.filter((mark) => Math.abs(mark.at - at) <= toleranceS);
}

/** The newest first. @param {HTMLElement} list @param {Mark[]} marks @param {import("./names.js").Names} names */
export function listMarks(list, marks, names) {
  if (!marks.length) return;
  const newest = marks.slice(-MAX_LISTED).reverse();
  list.replaceChildren(
    ...newest.map((mark) => make("li", "", make("time", "", clock(mark.at)), glyph(mark.kind), textOf(mark, names))),
  );
}
