/**
 * The heat map: a row a GPU, time to the right, the colour its batch size. It draws cells on one canvas, and marks and
 * the cursor on another above it, so that the cursor moves without painting the cells again.
 */

import { keepChildren, make } from "./dom.js";
import { cellsOf, namedRows, orderedGpus, rowHeight } from "./heat_rows.js";
import { drawGlyph } from "./marks.js";
import { Ramp } from "./ramp.js";
import { color, isDark } from "./theme.js";
import { drawTimeAxis } from "./time_axis.js";

const AXIS_PX = 24;
/** Rows take no more, however many there are, unless they would be too small to see. */
const MAX_ROWS_PX = 560;

/**
 * @typedef {import("./timeline.js").Row} Row
 * @typedef {{ uuid: string, at: number }} Cell
 */

export class HeatMap {
  /** @type {Row[]} */
  #rows = [];
  /** Top to bottom. @type {string[]} */
  #uuids = [];
  #height = 20;
  /** @type {Cell | null} */
  #pointed = null;
  /** @type {number | null} */
  #cursorAt = null;
  #ramp = new Ramp(isDark());
  #cells = document.createElement("canvas");
  /** @type {Map<string, { root: HTMLElement }>} */
  #labels = new Map();
  /** @type {import("./heat_rows.js").Order} */
  order = "busiest";

  /**
   * @param {HTMLElement} root
   * @param {object} of
   * @param {import("./view.js").View} of.view
   * @param {import("./names.js").Names} of.names
   * @param {() => import("./marks.js").Mark[]} of.marks
   * @param {(uuid: string) => number} of.capacity The most requests of a step.
   * @param {(cell: Cell | null) => void} of.onPoint
   * @param {(uuid: string) => void} of.onOpen
   */
  constructor(root, of) {
    this.of = of;
    this.root = root;
    this.labels = make("div", "heat-labels");
    this.canvas = /** @type {HTMLCanvasElement} */ (make("canvas", "heat-cells"));
    this.canvas.setAttribute("role", "img");
    this.overlay = /** @type {HTMLCanvasElement} */ (make("canvas", "heat-overlay"));
    this.overlay.setAttribute("aria-hidden", "true");
    this.plot = make("div", "heat-plot", this.canvas, this.overlay);
    root.append(this.labels, this.plot);
    this.plot.addEventListener("pointermove", (event) => this.#point(event));
    this.plot.addEventListener("pointerleave", () => this.#pointAt(null));
    this.plot.addEventListener("click", (event) => {
      this.#point(event);
      if (this.#pointed) of.onOpen(this.#pointed.uuid);
    });
    new ResizeObserver(() => this.#paint()).observe(this.plot);
  }

  /** With the colours of the scheme. */
  restyle() {
    this.#ramp = new Ramp(isDark());
  }

  get gradient() {
    return this.#ramp.gradient;
  }

  /** Orders the GPUs anew, as they were in these rows. @param {Row[]} rows */
  sort(rows) {
    this.#uuids = orderedGpus(rows, this.of.names, this.order);
    this.#height = rowHeight(this.#uuids.length, MAX_ROWS_PX);
    const named = namedRows(this.#uuids.length, this.#height).map((place) => this.#uuids[place]);
    keepChildren(this.labels, this.#labels, named, (uuid) => this.#label(uuid));
    this.labels.style.setProperty("--label-height", `${Math.ceil(17 / this.#height) * this.#height}px`);
  }

  /** @param {Row[]} rows Of the window. */
  draw(rows) {
    this.#rows = rows;
    this.#paint();
  }

  /** A time that is pointed at in another chart. @param {number | null} at */
  showTime(at) {
    if (at === this.#cursorAt) return;
    this.#cursorAt = at;
    this.#paintOverlay();
  }

  /** @param {string} uuid */
  #label(uuid) {
    const root = make("button", "heat-label", this.of.names.of(uuid));
    root.title = uuid;
    root.dataset.gpu = uuid;
    root.addEventListener("click", () => this.of.onOpen(uuid));
    return { root };
  }

  #paint() {
    const { width } = this.plot.getBoundingClientRect();
    const height = this.#uuids.length * this.#height;
    this.plot.style.height = `${height + AXIS_PX}px`;
    if (!width) return;
    const [from, to] = this.of.view.window();
    const first = Math.floor(from) + 1;
    const numColumns = Math.max(1, Math.floor(to) - first + 1);
    this.#fillCells(first, numColumns);
    const context = sized(this.canvas, width, height + AXIS_PX);
    context.fillStyle = hatch(context);
    context.fillRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    const [left, right] = [first - 1, first - 1 + numColumns].map((at) => this.#x(at, width));
    if (height) context.drawImage(this.#cells, left, 0, right - left, height);
    if (this.#height >= 9) drawSeparators(context, this.#uuids.length, this.#height, width);
    drawTimeAxis(context, { from, to, width, top: height, x: (at) => this.#x(at, width) });
    this.#paintOverlay();
  }

  /** @param {number} first @param {number} numColumns */
  #fillCells(first, numColumns) {
    const step = (/** @type {number} */ size, /** @type {string} */ uuid) => this.#ramp.step(size, this.of.capacity(uuid));
    const cells = cellsOf(this.#rows, this.#uuids, first, numColumns, step);
    this.#cells.width = numColumns;
    this.#cells.height = Math.max(1, this.#uuids.length);
    const context = /** @type {CanvasRenderingContext2D} */ (this.#cells.getContext("2d"));
    const image = context.createImageData(this.#cells.width, this.#cells.height);
    const pixels = new Uint32Array(image.data.buffer);
    cells.forEach((cell, index) => {
      if (cell) pixels[index] = this.#ramp.pixels[cell - 1];
    });
    context.putImageData(image, 0, 0);
  }

  #paintOverlay() {
    const { width, height } = this.plot.getBoundingClientRect();
    if (!width) return;
    const context = sized(this.overlay, width, height);
    const [from, to] = this.of.view.window();
    const rowsHeight = this.#uuids.length * this.#height;
    const placeOf = new Map(this.#uuids.map((uuid, place) => [uuid, place]));
    for (const mark of this.of.marks()) {
      if (mark.at < from || mark.at > to) continue;
      const x = this.#x(mark.at, width);
      if (mark.kind === "scheduler_started") drawGlyph(context, mark.kind, x, 6, 12);
      for (const uuid of mark.gpus) {
        const place = placeOf.get(uuid);
        if (place !== undefined) drawGlyph(context, mark.kind, x, (place + 0.5) * this.#height, Math.min(this.#height, 13));
      }
    }
    const at = this.#pointed?.at ?? this.#cursorAt;
    if (at !== null && at !== undefined) {
      context.fillStyle = color("muted");
      context.fillRect(Math.round(this.#x(at, width)), 0, 1, rowsHeight);
    }
    const place = this.#pointed ? placeOf.get(this.#pointed.uuid) : undefined;
    if (place === undefined) return;
    context.strokeStyle = color("ink");
    context.strokeRect(0.5, place * this.#height + 0.5, width - 1, this.#height - 1);
  }

  /** @param {number} at @param {number} width */
  #x(at, width) {
    const [from, to] = this.of.view.window();
    return ((at - from) / (to - from)) * width;
  }

  /** @param {MouseEvent} event */
  #point(event) {
    const box = this.plot.getBoundingClientRect();
    const uuid = this.#uuids[Math.floor((event.clientY - box.top) / this.#height)];
    const [from, to] = this.of.view.window();
    const at = from + ((event.clientX - box.left) / box.width) * (to - from);
    this.#pointAt(uuid ? { uuid, at } : null);
  }

  /** @param {Cell | null} cell */
  #pointAt(cell) {
    this.#pointed = cell;
    this.#paintOverlay();
    this.of.onPoint(cell);
  }
}

/** A cleared canvas of so many CSS pixels. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
function sized(canvas, width, height) {
  const ratio = devicePixelRatio;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Where a GPU was not in the cluster. @param {CanvasRenderingContext2D} context */
function hatch(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  lines.strokeStyle = color("line");
  lines.beginPath();
  for (const [x, y] of [[-1, 1], [0, 6], [5, 7]]) {
    lines.moveTo(x, y);
    lines.lineTo(x + (x ? 2 : 6), y - (x ? 2 : 6));
  }
  lines.stroke();
  return context.createPattern(tile, "repeat") ?? "transparent";
}

/** @param {CanvasRenderingContext2D} context @param {number} numRows @param {number} height @param {number} width */
function drawSeparators(context, numRows, height, width) {
  context.fillStyle = color("paper");
  for (let place = 1; place < numRows; place++) context.fillRect(0, place * height - 1, width, 1);
}
