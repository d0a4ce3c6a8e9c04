/**
 * The heat map: a row a GPU, time to the right, the colour its batch size. It draws cells on one canvas, and marks and
 * the cursor on another above it. The marks are painted in advance, so that a move of the cursor copies one picture.
 */

import { drawSeparators, hatch, sized } from "./canvas.js";
import { keepChildren, make, setText } from "./dom.js";
import { cellsOf, namedRows, orderedGpus, rowHeight } from "./heat_rows.js";
import { drawGlyph } from "./marks.js";
import { Ramp } from "./ramp.js";
import { color, isDark } from "./theme.js";
import { drawTimeAxis } from "./time_axis.js";

const AXIS_PX = 24;
/** A pointer that moves less between press and release has clicked. */
const DRAG_PX = 6;
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
  #pressedX = 0;
  /** Where the pointer rests, in pixels of the window. @type {{ clientX: number, clientY: number } | null} */
  #pointer = null;
  /** @type {Cell | null} */
  #pointed = null;
  /** @type {number | null} */
  #cursorAt = null;
  #ramp = new Ramp(isDark());
  #cells = document.createElement("canvas");
  #marks = document.createElement("canvas");
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
    this.plot.addEventListener("pointerleave", () => this.#point(null));
    this.plot.addEventListener("pointerdown", (event) => (this.#pressedX = event.clientX));
    this.plot.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.#paint()).observe(this.plot);
  }

  /** Takes the colours of the scheme. */
  restyle() {
    this.#ramp = new Ramp(isDark());
  }

  get ramp() {
    return this.#ramp;
  }

  /** Orders the GPUs anew, as they were in these rows. @param {Row[]} rows */
  sort(rows) {
    this.#uuids = orderedGpus(rows, this.of.names, this.order);
    this.#height = rowHeight(this.#uuids.length, MAX_ROWS_PX);
    const named = namedRows(this.#uuids.length, this.#height).map((place) => this.#uuids[place]);
    keepChildren(this.labels, this.#labels, named, (uuid) => this.#label(uuid));
    for (const [uuid, { root }] of this.#labels) setText(root, this.of.names.of(uuid));
    this.labels.style.setProperty("--label-height", `${Math.ceil(17 / this.#height) * this.#height}px`);
  }

  /** @param {Row[]} rows Those of the window. */
  draw(rows) {
    this.#rows = rows;
    this.#paint();
    // Under a pointer that rests, time moves on.
    if (this.#pointer) this.#point(this.#pointer);
  }

  /** A time that is pointed at in another chart. @param {number | null} at */
  showTime(at) {
    if (at === this.#cursorAt) return;
    this.#cursorAt = at;
    this.#paintOverlay();
  }

  /** Opens a GPU or, at the end of a drag, shows the stretch that was dragged over. @param {MouseEvent} event */
  #click(event) {
    if (Math.abs(event.clientX - this.#pressedX) > DRAG_PX) {
      const [from, to] = [this.#pressedX, event.clientX].map((x) => this.#time(x)).sort((one, other) => one - other);
      return this.of.view.set({ zoom: [from, to] });
    }
    const cell = this.#cellAt(event);
    if (cell) this.of.onOpen(cell.uuid);
  }

  /** @param {number} clientX */
  #time(clientX) {
    const box = this.plot.getBoundingClientRect();
    const [from, to] = this.of.view.window();
    return from + ((clientX - box.left) / box.width) * (to - from);
  }

  /** @param {string} uuid */
  #label(uuid) {
    const root = make("button", "heat-label");
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
    const numColumns = Math.max(1, Math.ceil(to) - first + 1);
    this.#fillCells(first, numColumns);
    const context = sized(this.canvas, width, height + AXIS_PX);
    context.fillStyle = hatch(context);
    context.fillRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    const [left, right] = [first - 1, first - 1 + numColumns].map((at) => this.#x(at, width));
    if (height) context.drawImage(this.#cells, left, 0, right - left, height);
    if (this.#height >= 9) drawSeparators(context, this.#uuids.length, this.#height, width);
    drawTimeAxis(context, { from, to, width, top: height, x: (at) => this.#x(at, width) });
    this.#paintMarks(width, height);
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

  /** @param {number} width @param {number} height */
  #paintMarks(width, height) {
    const context = sized(this.#marks, width, height + AXIS_PX);
    const [from, to] = this.of.view.window();
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
  }

  #paintOverlay() {
    const { width } = this.plot.getBoundingClientRect();
    if (!width) return;
    const height = this.#uuids.length * this.#height;
    const context = sized(this.overlay, width, height + AXIS_PX);
    context.drawImage(this.#marks, 0, 0, width, height + AXIS_PX);
    const at = this.#pointed?.at ?? this.#cursorAt;
    if (at !== null && at !== undefined) {
      context.fillStyle = color("muted");
      context.fillRect(Math.round(this.#x(at, width)), 0, 1, height);
    }
    const place = this.#pointed ? this.#uuids.indexOf(this.#pointed.uuid) : -1;
    if (place < 0) return;
    context.strokeStyle = color("ink");
    context.strokeRect(0.5, place * this.#height + 0.5, width - 1, this.#height - 1);
  }

  /** @param {number} at @param {number} width */
  #x(at, width) {
    const [from, to] = this.of.view.window();
    return ((at - from) / (to - from)) * width;
  }

  /** @param {{ clientX: number, clientY: number }} pointer @returns {Cell | null} */
  #cellAt({ clientX, clientY }) {
    const box = this.plot.getBoundingClientRect();
    const uuid = this.#uuids[Math.floor((clientY - box.top) / this.#height)];
    return uuid ? { uuid, at: this.#time(clientX) } : null;
  }

  /** @param {{ clientX: number, clientY: number } | null} pointer */
  #point(pointer) {
    this.#pointer = pointer;
    this.#pointed = pointer && this.#cellAt(pointer);
    this.#paintOverlay();
    this.of.onPoint(this.#pointed);
  }
}
